"""How a run's processes grow over 200 steps of rollouts.

The chain: everything around verl as in a run, store in the command (`scripts.bench.long_run_player`); the model
is a script, so that a step takes a second or two. The store alone, kept outside in two ways: the requests of runners,
LLM proxy and rollout manager, with spans of a 7B model's lengths.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from core.machine import free_port
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.tasks.load import write_tasks
from scripts.bench.children import answer, python, started, wait_for
from scripts.bench.report import Row
from sql_agent import oracle
from sql_agent.config import load_config
from sql_agent.lightning.agl_light import agl
from sql_agent.lightning.store import PatientStore
from sql_agent.rollouts.stitch import TURN_SPAN
from sql_agent.verl_side.config import worker_environment

STEPS, WARM_STEPS = 200, 80
"""Growth is counted from the end of the warm steps on: 1,280 rollouts, more than a store lists (1,024)."""
KEEPING_STEPS = 40
"""Steps against a store that keeps everything; it fills memory no faster later."""
ROLLOUTS = 16
CHAIN_TURNS = 4
SEVEN_B_TURNS = [(1_500 + 800 * turn, 300) for turn in range(5)]
"""Tokens of prompt and reply of each turn: a rollout of 0.7 MiB of spans."""
STEP_ROLLOUTS = 512
MOST_GROWTH_MIB = 16.0
START_S = 180.0
Sizes = list[dict[str, float]]
"""After every step: resident memory of each part, MiB."""


def chain(folder: Path, steps: int = STEPS) -> Iterator[Row]:
    port, log, tasks = free_port(), folder / "chain.log", folder / "tasks.jsonl"
    write_tasks(tasks, generate_tasks(ROLLOUTS, seed=0, split="held_out"))
    settings = [
        f"store.port={port}",
        "llm_proxy=true",
        f"run_dir={folder / 'run'}",
        "rollout.n_runners=2",
        f"rollout.runner_concurrency={ROLLOUTS // 2}",
        "data.max_response_tokens=100000",  # the script's tokens are bytes
        "rollout.redraws=0",
    ]
    environment, seen = worker_environment(load_config(None, settings), cpu=True), []
    with oracle.serve(oracle.app(script())) as url:
        server = url.removesuffix("/v1")
        command = python("scripts.bench.long_run_player", f"http://127.0.0.1:{port}", server, str(tasks), str(steps))
        with started([*command, *settings], log, environment, talks=True) as player:
            for _ in range(steps):
                seen.append(answer(player, log)["rss_mib"])
                _show("chain", seen)
    yield from _growth("the chain: ", seen)


def script() -> oracle.Script:
    """Looks at the whole table again and again, each time with a comment, then commits."""
    look = "SELECT * FROM sqlite_master -- " + 40 * "one more look at what is there; "
    looks = [oracle.calls(oracle.call("execute_sql", {"query": look})) for _ in range(CHAIN_TURNS - 1)]
    return oracle.recite([*looks, oracle.calls(oracle.call("commit_final_answer", {"answers": ["0"]}))])


def store_server(folder: Path, steps: int = STEPS) -> Iterator[Row]:
    seen = _store_alone(python("sql_agent.store_server"), folder, steps)
    yield from _growth("7B lengths, `python -m sql_agent.store_server`: ", seen)


def agl_store(folder: Path, steps: int = KEEPING_STEPS) -> Iterator[Row]:
    command = str(Path(sys.executable).with_name("agl"))
    seen = _store_alone([command, "store", "--host", "127.0.0.1"], folder, steps)
    first, last = seen[steps // 4]["store"], seen[-1]["store"]
    each = (last - first) / ((len(seen) - 1 - steps // 4) * ROLLOUTS)
    limit = f"{first:,.0f} MiB after {steps // 4 + 1} steps of {ROLLOUTS}, {last:,.0f} after {steps}"
    what = f"7B lengths, `agl store`: growth per step of {STEP_ROLLOUTS} rollouts"
    yield Row(what, each * STEP_ROLLOUTS, "MiB", limit=limit)


PARTS = {"chain": chain, "store_server": store_server, "agl_store": agl_store}


def _growth(name: str, seen: Sizes) -> Iterator[Row]:
    warm = min(WARM_STEPS, len(seen)) - 1
    for part, end in seen[-1].items():
        limit = (
            f"{seen[0][part]:,.0f} MiB after a step, {seen[warm][part]:,.0f} after {warm + 1}, {end:,.0f} at the end"
        )
        yield Row(f"{name}{part}, growth", end - seen[warm][part], "MiB", MOST_GROWTH_MIB, limit=limit)


def _show(name: str, seen: Sizes) -> None:
    if len(seen) % 20 == 0:
        print(name, len(seen), json.dumps(seen[-1]), file=sys.stderr, flush=True)


def _store_alone(command: list[str], folder: Path, steps: int) -> Sizes:
    with _store(command, folder / "store.log") as (address, process):
        return asyncio.run(_drive(address, process, steps))


@contextmanager
def _store(command: list[str], log: Path) -> Iterator[tuple[str, psutil.Process]]:
    port = free_port()
    with started([*command, "--port", str(port)], log, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}) as process:
        wait_for(f"http://127.0.0.1:{port}/v1/agl/health", process, log, START_S)
        yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)


async def _drive(address: str, process: psutil.Process, steps: int) -> Sizes:
    """Every request that runners, LLM proxy and rollout manager make for a rollout, by one client."""
    store, seen = PatientStore(address), []
    tasks = [task.to_dict() for task in generate_tasks(ROLLOUTS, seed=0, split="held_out")]
    try:
        for _ in range(steps):
            await store.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input=task) for task in tasks])
            claimed = await store.dequeue_many_rollouts(limit=ROLLOUTS, worker_id="runner")
            await asyncio.gather(*(_play(store, rollout) for rollout in claimed))
            ended = await store.wait_for_rollouts(rollout_ids=[r.rollout_id for r in claimed], timeout=0)
            await asyncio.gather(*(_read(store, rollout) for rollout in ended))
            seen.append({"store": process.memory_info().rss / 2**20})
            _show(address, seen)
    finally:
        await store.close()
    return seen


async def _play(store: PatientStore, rollout: Any) -> None:
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    for number, (prompt_tokens, reply_tokens) in enumerate(SEVEN_B_TURNS, start=1):
        attributes = {
            "prompt_token_ids": random.choices(range(150_000), k=prompt_tokens),
            "response_token_ids": random.choices(range(150_000), k=reply_tokens),
            "response_log_probs": [random.random() for _ in range(reply_tokens)],
        }
        now, ok = time.time(), agl.TraceStatus(status_code="OK")
        fields = agl.SpanCoreFields(name=TURN_SPAN, attributes=attributes, start_time=now, end_time=now, status=ok)
        await store.add_span(agl.Span.from_core_fields(fields, **ids, sequence_id=number))
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")


async def _read(store: PatientStore, rollout: Any) -> None:
    spans = await store.query_spans(rollout.rollout_id, attempt_id="latest")
    if len(spans) != len(SEVEN_B_TURNS):
        raise RuntimeError(f"rollout {rollout.rollout_id} has {len(spans)} spans, expected {len(SEVEN_B_TURNS)}")
    await store.mark_read(rollout)
