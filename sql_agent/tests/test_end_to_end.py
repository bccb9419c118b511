"""The whole chain, nothing scripted: store, proxy, runners, vLLM, verl, a small policy, real DB-Bench tasks.

Two runs. The first takes two steps through the LLM proxy and a store that is kept outside; the second, with a store of
its own and the runner's tracing, is killed on the way to the same two steps, goes on as a script would start it, and is
told to stop after them. `--full` kills a run over and over, and fills a disk. About four minutes.
"""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from agentgrpo.agl_without_litellm import agl
from agentgrpo.checkpoints import check_checkpoint, checkpoints
from agentgrpo.processes import folders_of, processes_of
from scripts.tests.metric_names import unregistered
from sql_agent.lightning.spans import read_turns
from sql_agent.tests.conftest import COMMAND, TASKS, TRAINING, metrics
from sql_agent.tests.records import reported

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2700)]

ROOT = Path(__file__).parents[2]


def rollouts_of(run) -> list:
    """(train step, outcome, turns) of every rollout in the store."""

    async def read():
        store = agl.LightningStoreClient(run.store)
        try:
            rollouts = [r for r in await store.query_rollouts() if r.metadata["run_id"] == run.id]
            spans = [await store.query_spans(r.rollout_id, attempt_id="latest") for r in rollouts]
            return [
                (r.metadata["train_step"], reported(s), read_turns(s)) for r, s in zip(rollouts, spans, strict=True)
            ]
        finally:
            await store.close()

    return asyncio.run(read())


def huggingface(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"global_step_{step}" / "actor" / "huggingface"


def test_two_steps_happened_and_the_console_shows_them(first_run):
    assert sorted(first_run.metrics) == [1, 2]
    assert "step 1/2" in first_run.out
    assert "step 2/2" in first_run.out
    assert first_run.metrics[1]["reward/unjudged_frac"] == 0.0
    assert unregistered({name for row in first_run.metrics.values() for name in row}) == []


def test_prompts_of_a_group_and_later_turns_come_from_the_prefix_cache(first_run):
    assert all(0.5 < row["rollout/cached_prompt_frac"] < 1 for row in first_run.metrics.values())


def test_the_kinds_that_are_trained_on_and_held_out_are_named_and_kept(first_run):
    kinds = json.loads((first_run.dir / "run.json").read_text())["tasks"]
    assert sum(kinds["held_out"].values()) == pq.read_table(first_run.dir / "data" / "val.parquet").num_rows
    for words, half in (("to train on, by kind: ", "train"), ("held out, by kind: ", "held_out")):
        assert words + ", ".join(f"{kind} {count}" for kind, count in kinds[half].items()) in first_run.out


def test_the_store_holds_every_turn_and_every_reward(first_run):
    rollouts = rollouts_of(first_run)
    counts = Counter(step for step, _, _ in rollouts)
    assert counts == {step: first_run.metrics[step]["rollout/count"] for step in (1, 2)}
    assert min(counts.values()) >= 16  # four tasks, four rollouts each, and those played in the place of others
    for _, outcome, turns in rollouts:
        assert outcome is not None
        assert outcome.reward in (0.0, 1.0)
        assert len(turns) == outcome.record.num_turns


def test_every_trained_token_was_sampled_by_the_engine(first_run):
    for step in (1, 2):
        row = first_run.metrics[step]
        assert row["prefix/broken_frac"] == row["prefix/overflow_frac"] == 0.0
        sampled = sum(len(turn.sampled_ids) for s, _, turns in rollouts_of(first_run) if s == step for turn in turns)
        assert row["rollout/sampled_tokens"] * row["rollout/count"] == pytest.approx(sampled)
        # the actor gives the sampled ids the probabilities that the engine gave them
        assert row["engine/probs_diff_max"] < 1e-3


def test_the_weights_changed_and_vllm_served_the_changed_ones(first_run, small_policy):
    turns = [turn for step, _, turns in rollouts_of(first_run) if step == 2 for turn in turns]
    error_before = max(log_prob_error(small_policy, turn) for turn in turns[:8])
    error_after = max(log_prob_error(huggingface(first_run.dir, 1), turn) for turn in turns[:8])
    assert error_after < 1e-3 < error_before


def log_prob_error(folder: Path, turn) -> float:
    """How far the engine's log-probs of one turn are from those of the model in `folder`, in nats."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([turn.prompt_ids + turn.sampled_ids])
    with torch.no_grad():
        log_probs = model(ids).logits[0, len(turn.prompt_ids) - 1 : -1].log_softmax(-1)
    ours = log_probs.gather(1, torch.tensor(turn.sampled_ids)[:, None])[:, 0]
    return (ours - torch.tensor(turn.log_probs)).abs().max().item()


def test_nothing_is_left_of_the_first_run(first_run):
    assert (left_of(first_run.dir, first_run.id), folders_of(first_run.id)) == ([], [])


def test_a_run_that_is_killed_ends_as_the_unbroken_one_and_when_it_is_told_to(first_run, small_policy, tmp_path):
    run = Broken(tmp_path / "run", small_policy, steps=50)
    with run.started():  # SIGKILL to every process at once, while the second checkpoint is written
        run.wait(lambda: "first rollouts" in run.said())
        everyone = processes_of(run.id)
        run.wait(lambda: (run.dir / "checkpoints/global_step_2/actor").exists(), every_s=0.001)
        run.kill(*everyone)
    with run.started(deaf=True):
        run.wait(lambda: "step 2/50" in run.said())
        run.process.send_signal(signal.SIGTERM)  # the signal of batch schedulers
        assert run.process.wait(60) == 130, run.said()
    assert f"stopped; the same command resumes from {run.dir / 'checkpoints' / 'global_step_2'}" in run.said()
    torn = run.dir / "checkpoints" / "global_step_2"
    assert f"checkpoint {torn} is skipped: manifest.json is missing" in run.said()
    assert f"resuming from {run.dir / 'checkpoints' / 'global_step_1'}" in run.said()
    assert "step 1/50" not in run.said()
    assert (left_of(run.dir, run.id), folders_of(run.id)) == ([], [])

    assert differences(first_run.dir, run.dir, 2) == []
    assert {path.name: check_checkpoint(path) for path in checkpoints(run.dir / "checkpoints")} == {
        "global_step_2": None,
        "global_step_1": None,
    }
    assert sorted(metrics(run.dir)) == [1, 2]


def test_with_a_lag_rollouts_go_on_during_updates_and_those_that_were_open_at_a_kill_are_played_again(
    small_policy, tmp_path
):
    short = ["agent.max_turns=2", "agent.max_tokens=64"]
    run = Broken(
        tmp_path / "run", small_policy, "--llm-proxy", "--set", "trainer.max_off_policy_steps=1", *short, steps=4
    )
    with run.started():
        run.wait(lambda: "step 2/4" in run.said())
        run.kill(*processes_of(run.id))
    (opened,) = (run.dir / "checkpoints").glob("global_step_2/open_groups.json")
    left = json.loads(opened.read_text())
    with run.started():
        assert run.process.wait(600) == 0, run.said()
    assert "resuming from" in run.said()
    steps = metrics(run.dir)
    groups = steps[1]["group/count"]
    # batches 1 to 3 have begun at step 2, which is one more than were trained; the last step begins none
    assert (left["batches"], len(left["slots"])) == (3, groups)
    assert [steps[step]["lag/open_groups"] for step in (1, 2, 3, 4)] == [groups, groups, groups, 0]
    assert [steps[step]["group/count"] for step in (1, 2, 3, 4)] == [groups] * 4
    assert max(step["lag/max"] for step in steps.values()) == 1
    assert [step["reward/unjudged_frac"] for step in steps.values()] == [0.0] * 4
    # a weight of 1 where sampler and trainer have the same weights
    assert steps[1]["rollout_corr/rollout_is_min"] == pytest.approx(1, abs=1e-3)


@pytest.mark.timeout(3 * 3600)
@pytest.mark.full("kills a run twenty times: an hour")
def test_a_run_that_is_killed_twenty_times_ends_as_the_unbroken_one(small_policy, tmp_path):
    """At random: a phase of the start or a step, up to ten seconds later, the command alone or every process."""
    steps, chance, kills, number = 6, random.Random(0), 0, 0
    unbroken = Broken(tmp_path / "unbroken", small_policy, steps=steps)
    with unbroken.started():
        assert unbroken.process.wait(900) == 0, unbroken.said()
    while kills < 20:
        number += 1
        run = Broken(tmp_path / f"run-{number}", small_policy, steps=steps)
        code = None
        while code is None:
            with run.started():
                mark = chance.choice(["importing verl", "loading the policy", "first rollouts", *["step "] * 6])
                later_s, everyone = chance.uniform(0, 10), chance.random() < 0.5
                # the long form of 20 kills has to come to an end: then the last one is left alone
                run.wait(lambda: (mark in run.said() and kills < 20) or run.process.poll() is not None)  # noqa: B023
                deadline = time.monotonic() + later_s
                while run.process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.01)
                code = run.process.poll()
                if code is None:
                    run.kill(*(processes_of(run.id) if everyone else ()))
                    kills += 1
        assert code == 0, run.said()
        assert differences(unbroken.dir, run.dir, steps) == []


@pytest.mark.full("fills a disk: three minutes")
def test_a_disk_that_fills_up_stops_the_run_and_with_room_it_goes_on(first_run, small_policy, tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        run = Broken(tmp_path / "run", small_policy, steps=2)
        with run.started():
            assert run.process.wait(900) == 1, run.said()
        assert "global_step_2 could not be written, its disk is full" in run.said()
        subprocess.run(["mount", "-o", "remount,size=100m", tmp_path], check=True)
        with run.started():
            assert run.process.wait(900) == 0, run.said()
        assert "global_step_2 is skipped: manifest.json is missing" in run.said()
        assert differences(first_run.dir, run.dir, 2) == []
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


class Broken:
    """A run that is started again and again in the same folder, with a store of its own and the runner's tracing."""

    def __init__(self, run_dir: Path, model: Path, *flags: str, steps: int) -> None:
        self.dir, self._log = run_dir, run_dir / "command.log"
        where = ["--resume", "auto", "--model", str(model), "--run-dir", str(run_dir)]
        self._command = [*COMMAND, *TRAINING, *TASKS, *where, *flags, "--set", f"trainer.steps={steps}"]
        self._earlier: str | None = None

    @contextmanager
    def started(self, *, deaf: bool = False):
        """Start it, if `deaf` as `command &` in a script does, which makes it ignore SIGINT; when the block ends so
        does whatever is left of it."""
        self.dir.mkdir(exist_ok=True)
        self._earlier = self._run_id()
        environment = {name: value for name, value in os.environ.items() if name != "AGL_MANAGED_STORE"}
        with self._log.open("w") as out:
            # session of its own: a signal goes to the command alone, as a service manager would send it
            self.process = subprocess.Popen(
                [*(["sh", "-c", "trap '' INT; exec \"$@\"", "sh"] if deaf else []), *self._command],
                cwd=ROOT,
                env=environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            yield
        finally:
            self.process.kill()
            self.process.wait()
            wait_s = time.monotonic() + 60
            while self.id is not None and processes_of(self.id) and time.monotonic() < wait_s:
                time.sleep(0.2)

    @property
    def id(self) -> str | None:
        """Of the latest start, once it has one."""
        now = self._run_id()
        return now if now != self._earlier else None

    def _run_id(self) -> str | None:
        try:
            return json.loads((self.dir / "run.json").read_text())["run_id"]
        except (OSError, ValueError):
            return None

    def said(self) -> str:
        return self._log.read_text()

    def wait(self, until, *, every_s: float = 0.1) -> None:
        deadline = time.monotonic() + 900
        while not until():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(every_s)

    def kill(self, *others: int) -> None:
        for pid in (self.process.pid, *others):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


VARYING = (
    "at",
    "time/",
    "timing",
    "perf/",
    "actor/perf/",
    "rollout/seconds",
    "engine/",
    "rollout_corr/",
    "training/roll",
)
"""Metrics that no two runs share: the clock, memory, and the last digits of what the engine says of its samples, which
depend on what it computes beside them (doc/operate/checkpoints.md)."""


def differences(one: Path, other: Path, step: int) -> list[str]:
    """Where two runs differ at a checkpoint: weights, optimiser, the place in the tasks, metrics, rollouts."""
    import torch

    names = [run_dir / "checkpoints" / f"global_step_{step}" for run_dir in (one, other)]
    files = [json.loads((name / "manifest.json").read_text())["files"] for name in names]
    found = [name for name in ("actor/huggingface/model.safetensors", "data.pt") if files[0][name] != files[1][name]]
    for part in sorted(path.name for path in names[0].glob("actor/*_rank_*.pt")):
        states = [dict(leaves(torch.load(name / "actor" / part, weights_only=False))) for name in names]
        assert states[0].keys() == states[1].keys()
        found += [f"{part}: {key}" for key in states[0] if repr_of(states[0][key]) != repr_of(states[1][key])]
    rows = [metrics(run_dir) for run_dir in (one, other)]
    for number in {number for number in (*rows[0], *rows[1]) if number <= step}:
        keys = [key for key in {**rows[0][number], **rows[1][number]} if not key.startswith(VARYING)]
        found += [f"step {number}: {key}" for key in keys if rows[0][number].get(key) != rows[1][number].get(key)]
    saved = [path for run_dir in (one, other) for path in (run_dir / "trajectories").glob("*_*.jsonl")]
    for name in sorted({path.name for path in saved if int(path.stem.split("_")[1]) <= step}):
        said = [conversations(run_dir / "trajectories" / name) for run_dir in (one, other)]
        found += [name] if said[0] != said[1] else []
    return found


def leaves(tree, path: str = ""):
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list | tuple):
            yield from leaves(value, f"{path}.{key}")
        else:
            yield f"{path}.{key}", value


def repr_of(value) -> str | bytes:
    """Something that compares bit for bit."""
    value = value.to_local() if hasattr(value, "to_local") else value
    value = value.numpy() if hasattr(value, "numpy") else value
    return value.tobytes() if hasattr(value, "tobytes") else repr(value)


def conversations(file: Path) -> list[str]:
    """What was said, in order; vLLM gives every call an id that never comes again."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    kept = ("task_id", "lost", "set_aside", "reward", "advantage", "messages")
    return [re.sub(r"chatcmpl-tool-\w+", "call", json.dumps([x.get(name) for name in kept])) for x in lines]


def left_of(run_dir: Path, run_id: str) -> list[str]:
    """Processes of a run that are still there: by its mark in the environment, or its folder in the command line."""
    found = [str(pid) for pid in processes_of(run_id)]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(run_dir) in command:
            found.append(command)
    return found
