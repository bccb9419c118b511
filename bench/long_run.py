"""Measures how much the processes of a run grow over 200 steps: `python -m bench.long_run`; about ten minutes.

The part `chain` runs everything around verl as in a run, with the store in the command (`bench.parts.chain`); a
script replaces the model, so that a step takes a second or two. Two parts run a store alone, outside the command, with
the requests of runners, LLM proxy and rollout manager, and with spans as long as a 7B model's. The exit status is 1 if
a process grows that may not.
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from agentgrpo.agl_without_litellm import agl
from agentgrpo.flags import Parser
from agentgrpo.machine import free_port
from agentgrpo.processes import tell
from bench.parts import children
from bench.parts.children import AGL_STORE, answer, python, started
from bench.parts.overhead import CHAIN_SETTINGS
from bench.parts.report import Row, facts, finish
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.tasks.load import write_tasks
from sql_agent import oracle
from sql_agent.lightning.spans import TURN_SPAN
from sql_agent.lightning.store import RetryingStore
from sql_agent.settings.load import load_config
from sql_agent.verl_side.config import worker_environment

# Growth is counted after the warm steps: these are 1,280 rollouts, more than a store lists (1,024).
STEPS, WARM_STEPS = 200, 80
# Steps against a store that keeps everything; its memory grows no faster later.
KEEPING_STEPS = 40
ROLLOUTS = 16
CHAIN_TURNS = 4
# Tokens of prompt and reply of each turn; a rollout has 0.7 MiB of spans.
SEVEN_B_TURNS = [(1_500 + 800 * turn, 300) for turn in range(5)]
STEP_ROLLOUTS = 512
MOST_GROWTH_MIB = 16.0
# Resident memory of each part after every step, in MiB.
Sizes = list[dict[str, float]]


def chain(folder: Path, steps: int = STEPS) -> Iterator[Row]:
    port, log, tasks = free_port(), folder / "chain.log", folder / "tasks.jsonl"
    write_tasks(tasks, generate_tasks(ROLLOUTS, seed=0, split="held_out"))
    settings = [*CHAIN_SETTINGS, f"store.port={port}", "llm_proxy=true", f"run_dir={folder / 'run'}"]
    order = {"store_url": f"http://127.0.0.1:{port}", "model": oracle.MODEL, "tasks": str(tasks), "steps": steps}
    environment, seen = worker_environment(load_config(None, settings), cpu=True), []
    with (
        oracle.serve(oracle.app(script())) as url,
        started(python("bench.parts.chain"), log, environment, talks=True) as player,
    ):
        tell(player, {**order, "server": url.removesuffix("/v1"), "settings": settings})
        for _ in range(steps):
            seen.append(answer(player, log))
            _show_progress("chain", seen)
    yield from _growth("the chain: ", seen)


def script() -> oracle.Script:
    """Script a model that reads the whole table again and again, each time with a comment, then commits."""
    look = "SELECT * FROM sqlite_master -- " + 40 * "one more look at what is there; "
    looks = [oracle.calls(oracle.call("execute_sql", {"query": look})) for _ in range(CHAIN_TURNS - 1)]
    return oracle.recite([*looks, oracle.calls(oracle.call("commit_final_answer", {"answers": ["0"]}))])


def store_server(folder: Path, steps: int = STEPS) -> Iterator[Row]:
    seen = store_alone(python("sql_agent.store_server"), folder, steps)
    yield from _growth("7B lengths, `python -m sql_agent.store_server`: ", seen)


def agl_store(folder: Path, steps: int = KEEPING_STEPS) -> Iterator[Row]:
    seen = store_alone(AGL_STORE, folder, steps)
    first, last = seen[steps // 4]["store"], seen[-1]["store"]
    each = (last - first) / ((len(seen) - 1 - steps // 4) * ROLLOUTS)
    limit = f"{first:,.0f} MiB after {steps // 4 + 1} steps of {ROLLOUTS}, {last:,.0f} after {steps}"
    what = f"7B lengths, `agl store`: growth per step of {STEP_ROLLOUTS} rollouts"
    yield Row(what, each * STEP_ROLLOUTS, "MiB", limit=limit)


PARTS = {"chain": chain, "store_server": store_server, "agl_store": agl_store}


def main() -> int:
    parser = Parser(prog="python -m bench.long_run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="one part")
    only, found = parser.parse_args().only, facts()
    with tempfile.TemporaryDirectory(prefix="agentgrpo-bench-") as folder:
        rows = [row for name, part in PARTS.items() if only in (None, name) for row in part(Path(folder))]
    return finish(rows, found)


def _growth(name: str, seen: Sizes) -> Iterator[Row]:
    warm = min(WARM_STEPS, len(seen)) - 1
    for part, end in seen[-1].items():
        first, before = seen[0][part], seen[warm][part]
        sizes = f"{first:,.0f} MiB after a step, {before:,.0f} after {warm + 1}, {end:,.0f} at the end"
        yield Row(f"{name}{part}, growth", end - before, "MiB", MOST_GROWTH_MIB, limit=sizes)


def _show_progress(name: str, seen: Sizes) -> None:
    if len(seen) % 20 == 0:
        print(name, len(seen), json.dumps(seen[-1]), file=sys.stderr, flush=True)


def store_alone(command: list[str], folder: Path, steps: int) -> Sizes:
    with children.store(folder / "store.log", command) as server:
        return asyncio.run(_drive(server.url, psutil.Process(server.pid), steps))


async def _drive(address: str, process: psutil.Process, steps: int) -> Sizes:
    store, seen = RetryingStore(address), []
    tasks = [task.to_dict() for task in generate_tasks(ROLLOUTS, seed=0, split="held_out")]
    try:
        for _ in range(steps):
            await store.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input=task) for task in tasks])
            claimed = await store.dequeue_many_rollouts(limit=ROLLOUTS, worker_id="runner")
            await asyncio.gather(*(_play(store, rollout) for rollout in claimed))
            ended = await store.wait_for_rollouts(rollout_ids=[r.rollout_id for r in claimed], timeout=0)
            await asyncio.gather(*(_read(store, rollout) for rollout in ended))
            seen.append({"store": process.memory_info().rss / 2**20})
            _show_progress(address, seen)
    finally:
        await store.close()
    return seen


async def _play(store: RetryingStore, rollout: Any) -> None:
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    for number, (prompt_tokens, reply_tokens) in enumerate(SEVEN_B_TURNS, start=1):
        attributes = {
            "prompt_token_ids": json.dumps(random.choices(range(150_000), k=prompt_tokens)),
            "response_token_ids": json.dumps(random.choices(range(150_000), k=reply_tokens)),
            "response_log_probs": json.dumps([random.random() for _ in range(reply_tokens)]),
        }
        now, ok = time.time(), agl.TraceStatus(status_code="OK")
        fields = agl.SpanCoreFields(name=TURN_SPAN, attributes=attributes, start_time=now, end_time=now, status=ok)
        await store.add_span(agl.Span.from_core_fields(fields, **ids, sequence_id=number))
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")


async def _read(store: RetryingStore, rollout: Any) -> None:
    spans = await store.query_spans(rollout.rollout_id, attempt_id="latest")
    if len(spans) != len(SEVEN_B_TURNS):
        raise RuntimeError(f"rollout {rollout.rollout_id} has {len(spans)} spans, expected {len(SEVEN_B_TURNS)}")
    await store.mark_read([rollout])


if __name__ == "__main__":
    execute(main)
