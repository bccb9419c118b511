"""Measures actor update and log-probs of verl's worker: our settings against the prototype's, one row per rollout
against one sample per turn, groups that share their first prompt against rows with their own prompts.

Each setting is measured in a fresh process (`bench.parts.update_worker`). Both sides of a ratio have to compute the
same log-probs, or nothing is reported. Seconds are medians over the repetitions.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentgrpo.machine import free_port
from agentgrpo.processes import tell
from bench.parts.children import answer, python, started
from bench.parts.local_tokens import TARGET_TURNS, TURNS, per_turn, rollouts
from bench.parts.report import Row
from sql_agent.settings.load import load_config
from sql_agent.verl_side.config import worker_environment

# The most tokens of prompt and response in the prototype's runs; the rows fit into it.
MAX_TOKENS = 384
# The prototype's command line, as far as it differs from `to_verl`.
PADDED_MICRO_BATCHES = {
    "actor_rollout_ref.actor.use_dynamic_bsz": False,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": False,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.model.use_remove_padding": False,
    "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
}
GROUPS, GROUP_SIZE = 8, 4
ONE, PER_TURN = "one row", "a sample per turn"
# Lengths of LifelongAgentBench's tasks under a pretrained policy; a small model shows no difference.
SHARED_GROUPS, SHARED_GROUP_SIZE, SHARED_PROMPT, SHARED_RESPONSE = 2, 8, 440, 310
# Ids of the prompt, ids of the response, and its mask.
UpdateRow = tuple[Sequence[int], Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Setting:
    name: str
    threads: int = os.cpu_count() or 1
    pad_to: int | None = None
    """The width of every row; None takes the longest row's."""
    upstream: bool = False
    """Whether to use verl's own engine and transformers' attention, unchanged by `sql_agent.verl_side.plugin`."""
    verl: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    """More settings of ours."""


# The prototype has one OpenMP thread, as Ray sets it, micro-batches of 8 rows of 384 tokens, and verl's functions.
PROTOTYPE = {"upstream": True, "verl": PADDED_MICRO_BATCHES}
# These settings are added one by one; the first and the last are compared.
SETTINGS = (
    Setting("prototype's settings", 1, MAX_TOKENS, **PROTOTYPE),
    Setting("+ threads = cores", pad_to=MAX_TOKENS, **PROTOTYPE),
    Setting("+ batch as wide as its longest row", **PROTOTYPE),
    Setting("our settings on one thread", 1),
    Setting("our settings"),
)


def measure(model: Path, folder: Path) -> list[Row]:
    lengths = row_lengths()
    batches = {"rows": random_rows(lengths)}
    results = {s.name: run_worker(batches, model, folder / "update.log", s, repeats=5)["rows"] for s in SETTINGS}
    check_same_log_probs({name: result["log_prob_sum"] for name, result in results.items()})
    return update_rows(sum(prompt + response for prompt, response in lengths), results)


def measure_tokens(model: Path, folder: Path) -> list[Row]:
    """Play real episodes of exactly this many turns, in the ids of the policy's own tokenizer. One sample per turn, as
    agent-lightning's own verl integration trains, holds the whole prompt of that turn. The weights do not change."""
    from transformers import AutoTokenizer

    policy = SimpleNamespace(tokenizer=AutoTokenizer.from_pretrained(model, trust_remote_code=False))
    batches: dict[str, list[UpdateRow]] = {}
    for turns in TURNS:
        whole = rollouts(policy, turns, count=GROUPS * GROUP_SIZE)
        for way, samples in ((ONE, whole), (PER_TURN, [sample for t in whole for sample in per_turn(t)])):
            batches[f"{turns} {way}"] = [
                (row.ids[: row.prompt_tokens], row.ids[row.prompt_tokens :], row.sampled[row.prompt_tokens :])
                for row in samples
            ]
    setting = Setting("weights stand still", verl={"actor_rollout_ref.actor.optim.lr": 0.0})
    results = run_worker(batches, model, folder / "tokens.log", setting, repeats=3)
    rows = []
    for turns in TURNS:
        found = {way: results[f"{turns} {way}"] for way in (ONE, PER_TURN)}
        check_same_log_probs({way: result["log_prob_sum"] for way, result in found.items()})
        rows += token_rows(turns, {way: num_tokens(batches[f"{turns} {way}"]) for way in found}, found)
    return rows


def measure_shared(model: Path, folder: Path) -> list[Row]:
    more = (f"rollout.group_size={SHARED_GROUP_SIZE}", "engine.gradient_checkpointing=true")
    batches = {"apart": random_groups(shared=False), "shared": random_groups(shared=True)}
    found = run_worker(batches, model, folder / "shared.log", Setting("two groups", more=more), repeats=2)
    bare = run_bare(batches["apart"], model, folder / "bare.log", repeats=2)
    apart = SHARED_GROUPS * SHARED_GROUP_SIZE * (SHARED_PROMPT + SHARED_RESPONSE)
    shared = SHARED_GROUPS * (SHARED_PROMPT + SHARED_GROUP_SIZE * SHARED_RESPONSE)
    limit = "attention and the head cost the same; recomputed activations"
    ratio = seconds(found["shared"]) / seconds(found["apart"])
    check_same_log_probs({"apart": found["apart"]["log_prob_sum"], "bare": bare["log_prob_sum"]}, tolerance=2e-3)
    bare_s, update_s = (statistics.median(result["update_s"]) for result in (bare, found["shared"]))
    return [
        Row("tokens, shared / apart", shared / apart, "x", 0.5, limit=f"{shared} of {apart}"),
        Row("seconds, shared / apart", ratio, "x", 0.6, limit=limit),
        *(Row(f"... {name}", seconds(result), "s", limit=describe_parts(result)) for name, result in found.items()),
        # one update after a batch takes the old log-probs from its own pass, so theirs are left out
        Row(
            "update: computed tokens/s / those of a loop without a framework that shares nothing",
            (shared / update_s) / (apart / bare_s),
            "x",
            0.9,
            "at least",
            "products in float32 where verl has them: head, attention of shared tokens, optimiser",
        ),
        Row("... that loop", bare_s, "s"),
    ]


def row_lengths() -> list[tuple[int, int]]:
    """(prompt, response) tokens of 32 rollouts, spread as in a first step of the small policy: most end after two short
    turns, one in eight runs on until a limit cuts it (here the prototype's limit).
    """
    size = GROUPS * GROUP_SIZE
    prompts = [56 + 50 * (i // GROUP_SIZE) // (GROUPS - 1) for i in range(size)]  # each group has one task
    longest = MAX_TOKENS - max(prompts)
    # 11 and 32 have no common factor, so the response lengths are mixed over the groups
    responses = [longest if i % 8 == 7 else 40 + 110 * (11 * i % size) // size for i in range(size)]
    return list(zip(prompts, responses, strict=True))


def random_rows(lengths: Sequence[tuple[int, int]]) -> list[UpdateRow]:
    """Every response token is trained."""
    draw = random.Random(0)
    rows = []
    for prompt, response in lengths:
        ids = [draw.randrange(10, 1000) for _ in range(prompt + response)]
        rows.append((ids[:prompt], ids[prompt:], [1] * response))
    return rows


def random_groups(*, shared: bool) -> list[UpdateRow]:
    """Rows of random ids, in which every third of a response is a tool's. The prompts of a group are equal, or differ
    from their first token on.
    """
    draw = random.Random(0)
    mask = [int(i % 3 != 2) for i in range(SHARED_RESPONSE)]
    rows: list[UpdateRow] = []
    for _ in range(SHARED_GROUPS):
        prompt = [draw.randrange(1000) for _ in range(SHARED_PROMPT)]
        for member in range(SHARED_GROUP_SIZE):
            own = prompt if shared else [member, *prompt[1:]]
            rows.append((own, [draw.randrange(1000) for _ in range(SHARED_RESPONSE)], mask))
    return rows


def run_worker(
    batches: Mapping[str, Sequence[UpdateRow]], model: Path, log: Path, setting: Setting, *, repeats: int
) -> dict[str, Any]:
    """What `bench.parts.update_worker` measured on each batch; the group size divides its number of rows."""
    overrides = [f"data.train_batch_size={GROUPS}", f"rollout.group_size={GROUP_SIZE}"]
    overrides += [f"engine.train_threads={setting.threads}", f"model={model}", *setting.more]
    spec = {
        "settings": overrides,
        "verl": dict(setting.verl),
        "upstream": setting.upstream,
        "model": str(model),
        "batches": batches,
        "pad_to": setting.pad_to,
        "repeats": repeats,
        "port": free_port(),
    }
    environment = worker_environment(load_config(None, overrides), cpu=True)
    if setting.upstream:
        environment["VERL_ENGINE_DEVICE"] = "cuda"  # verl's own engine has this name and runs on a CPU too
    with started(python("bench.parts.update_worker"), log, environment, talks=True) as worker:
        tell(worker, spec)
        return answer(worker, log)


def run_bare(rows: Sequence[UpdateRow], model: Path, log: Path, *, repeats: int) -> dict[str, Any]:
    """What `bench.parts.bare_update` measured, on all cores and with recomputed activations, as
    `measure_shared` has them."""
    spec = {
        "model": str(model),
        "threads": Setting("bare").threads,
        "rows": rows,
        "group_size": SHARED_GROUP_SIZE,
        "gradient_checkpointing": True,
        "repeats": repeats,
    }
    with started(python("bench.parts.bare_update"), log, talks=True) as worker:
        tell(worker, spec)
        return answer(worker, log)


def check_same_log_probs(sums: Mapping[str, float], tolerance: float = 1e-4) -> None:
    """Raises RuntimeError: two settings computed different log-probs from the same weights and rows.

    Args:
        tolerance: the largest difference, as a share; bfloat16 weights and float32 ones differ by more.
    """
    values = list(sums.values())
    if max(values) - min(values) > tolerance * abs(values[0]):
        raise RuntimeError(f"the settings disagree on the sum of all log-probs, so their times mean nothing: {sums}")


def update_rows(tokens: int, results: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The tokens/s of each setting and the ratio of the last to the first.

    Args:
        tokens: the tokens in the rows, without padding.
        results: the worker's measurements by setting.
    """
    speeds = {name: tokens / seconds(result) for name, result in results.items()}
    first, *_, last = results
    limit = "matrix products of a model this small, FSDP around them"
    rows = [Row("our tokens/s / the prototype's", speeds[last] / speeds[first], "x", 4.0, "at least", limit)]
    return rows + [
        Row(f"... {name}", speeds[name], "tokens/s", limit=describe_parts(result)) for name, result in results.items()
    ]


def token_rows(turns: int, tokens: Mapping[str, int], results: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The two ratios, and the numbers behind them.

    Args:
        tokens: the tokens of each way, prompts included.
        results: the worker's measurements by way.
    """
    took = {way: seconds(result) for way, result in results.items()}
    target, limit = (2.0, "the first prompt, which both have") if turns == TARGET_TURNS else (None, "")
    what = f"{turns} turns: tokens of one sample per turn / of one row per rollout"
    return [
        Row(what, tokens[PER_TURN] / tokens[ONE], "x", target, "at least", limit),
        Row("... seconds of log-probs and update, the same ratio", took[PER_TURN] / took[ONE], "x"),
        Row("... one row per rollout", tokens[ONE], "tokens", limit=f"{took[ONE]:.2f} s"),
        Row("... one sample per turn", tokens[PER_TURN], "tokens", limit=f"{took[PER_TURN]:.2f} s"),
    ]


def num_tokens(rows: Sequence[UpdateRow]) -> int:
    return sum(len(prompt) + len(response) for prompt, response, _ in rows)


def seconds(result: Mapping[str, Any]) -> float:
    return statistics.median(result["log_probs_s"]) + statistics.median(result["update_s"])


def describe_parts(result: Mapping[str, Any]) -> str:
    log_probs_s, update_s = (statistics.median(result[name]) for name in ("log_probs_s", "update_s"))
    return f"log-probs {log_probs_s:.2f} s, update {update_s:.2f} s"
