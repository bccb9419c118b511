"""Tokens of a train step and the time of verl's update: one row per rollout against one sample per turn.

The rollouts are real episodes of exactly so many turns (`scripts.bench.local_tokens`), in the ids of the policy's own
tokenizer. One sample per turn, as agent-lightning's own verl integration trains, holds the whole prompt of that turn.
Both ways train the same sampled tokens; the weights stand still, so that the sum of their log-probs has to be the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scripts.bench.local_tokens import TARGET_TURNS, TURNS, per_turn, rollouts
from scripts.bench.report import Row
from scripts.bench.update import GROUP_SIZE, GROUPS, Setting, UpdateRow, check_same_log_probs, median, run_worker

REPEATS = 3
ONE, PER_TURN = "one row", "a sample per turn"


def measure(model: Path, folder: Path) -> list[Row]:
    batches = _batches(model)
    setting = Setting("weights stand still", os.cpu_count() or 1, verl={"actor_rollout_ref.actor.optim.lr": 0.0})
    results = run_worker(batches, model, folder / "trained_tokens.log", setting, repeats=REPEATS)
    rows = []
    for turns in TURNS:
        ways = {way: results[f"{turns} {way}"] for way in (ONE, PER_TURN)}
        check_same_log_probs({way: result["log_prob_sum"] for way, result in ways.items()})
        rows += token_rows(turns, {way: num_tokens(batches[f"{turns} {way}"]) for way in ways}, ways)
    return rows


def _batches(model: Path) -> dict[str, list[UpdateRow]]:
    from transformers import AutoTokenizer

    policy = SimpleNamespace(tokenizer=AutoTokenizer.from_pretrained(model, trust_remote_code=False))
    batches = {}
    for turns in TURNS:
        whole = rollouts(policy, turns, count=GROUPS * GROUP_SIZE)
        ways = {ONE: whole, PER_TURN: [sample for t in whole for sample in per_turn(t)]}
        for way, trajectories in ways.items():
            batches[f"{turns} {way}"] = [(t.prompt_ids, t.response_ids, t.response_mask) for t in trajectories]
    return batches


def num_tokens(rows: Sequence[UpdateRow]) -> int:
    return sum(len(prompt) + len(response) for prompt, response, _ in rows)


def token_rows(turns: int, tokens: Mapping[str, int], results: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The two ratios, and what they are made of.

    Args:
        tokens: by way, prompts included.
        results: by way, `log_probs_s` and `update_s` of each repetition; the medians count.
    """
    seconds = {way: median(result, "log_probs_s") + median(result, "update_s") for way, result in results.items()}
    target = 2.0 if turns == TARGET_TURNS else None
    limit = "the first prompt, which both have" if target else ""
    return [
        Row(
            f"{turns} turns: tokens of one sample per turn / of one row per rollout",
            tokens[PER_TURN] / tokens[ONE],
            "x",
            target,
            "at least",
            limit,
        ),
        Row("... seconds of log-probs and update, the same ratio", seconds[PER_TURN] / seconds[ONE], "x"),
        Row("... one row per rollout", tokens[ONE], "tokens", limit=f"{seconds[ONE]:.2f} s"),
        Row("... one sample per turn", tokens[PER_TURN], "tokens", limit=f"{seconds[PER_TURN]:.2f} s"),
    ]
