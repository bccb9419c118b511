"""The agent through store, runners and, as the settings say, the LLM proxy, in a process of its own:
`python -m scripts.bench.through_store STORE_PID SERVER MODEL TASKS SETTING...`.

Stands where the trainer stands: `launch.fit` forks the runners, the rollout manager asks for the rollouts.
Answers one line of JSON with the load and what single operations take alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from core.processes import RUN_ID, Events, end_run, end_with_parent
from dbbench_adapter.datatypes import Task
from dbbench_adapter.protocols import fc
from scripts.bench.children import cpu_s
from scripts.bench.overhead import AT_ONCE, ROUNDS
from sql_agent.config import TrainConfig, load_config
from sql_agent.launch import fit
from sql_agent.lightning.agl_light import agl
from sql_agent.lightning.algorithm import log_file, spawn
from sql_agent.lightning.door import give_token
from sql_agent.lightning.runner import TRAINER_WORKER
from sql_agent.rollouts import run_context

ALONE = 30
"""Repetitions of each operation that is measured alone."""


class Measure(agl.Algorithm):
    """Plays the tasks as a trainer would ask for them, and emits the load."""

    def __init__(
        self, cfg: TrainConfig, store_pid: int, server: str, model: str, tasks: list[str], events: Events
    ) -> None:
        super().__init__()
        self.store_pid = store_pid
        self.cfg, self.server, self.model, self.tasks = cfg, server, model, tasks
        self.events = events
        self.proxy: subprocess.Popen[str] | None = None

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        try:
            manager = await asyncio.to_thread(self._manager)
            await asyncio.to_thread(self._play, manager, AT_ONCE)  # warms up, as the straight way does
            batch = await asyncio.to_thread(self._play, manager, AT_ONCE)
            before, asked = self._cpu_s(), time.time()
            loads = [await asyncio.to_thread(self._play, manager, len(self.tasks)) for _ in range(ROUNDS)]
            after, rollout_s = self._cpu_s(), statistics.fmean(load["rollout/seconds"] for load in loads)
            load = {
                "wall_s": statistics.median(load["time/rollout_s"] for load in loads),
                "rollout_s": rollout_s,
                "around_s": await _claim_to_end_s(store, asked) - rollout_s,
                "turns": statistics.fmean(load["rollout/turns"] for load in loads),
                "batch_s": batch["time/rollout_s"],
                "cpu_s": {name: (after[name] - before[name]) / ROUNDS for name in after},
            }
            self.events.emit({"load": load, "alone_ms": await self._alone(store, manager)})
            await store.update_worker(TRAINER_WORKER, {"state": "finished"})
        finally:
            if self.proxy is not None and self.proxy.stdin is not None:
                self.proxy.stdin.close()
                await asyncio.to_thread(self.proxy.wait, 20)
            await store.close()

    def _manager(self) -> Any:
        from sql_agent.rollouts.manager import LightningRolloutManager

        self.context = run_context.RunContext(self.cfg, "bench", str(self.cfg.store.address), 0, self._start_proxy)
        run_context.enter(self.context)
        config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(model=SimpleNamespace(path=self.model)))
        addresses = [self.server.removeprefix("http://")]
        return LightningRolloutManager(config, SimpleNamespace(_load_balancer=SimpleNamespace(addresses=addresses)))

    def _start_proxy(self, servers: dict[str, Any]) -> str | None:
        if not self.cfg.llm_proxy:
            return None
        self.proxy = spawn(
            "sql_agent.lightning.llm_proxy", "--store", str(self.cfg.store.address), log=log_file(self.cfg, "proxy")
        )
        assert self.proxy.stdin is not None and self.proxy.stdout is not None
        self.proxy.stdin.write(json.dumps(servers) + "\n")
        self.proxy.stdin.flush()
        return json.loads(self.proxy.stdout.readline())["url"]

    def _play(self, manager: Any, episodes: int) -> dict[str, float]:
        """One validation batch, which decodes greedily; answers the manager's own metrics of it."""
        import numpy as np
        from verl import DataProto

        rows = np.array([{"task": task} for task in self.tasks[:episodes]], dtype=object)
        uids = np.array([str(i) for i in range(episodes)], dtype=object)
        manager.generate_sequences(
            DataProto(non_tensor_batch={"extra_info": rows, "uid": uids}, meta_info={"validate": True})
        )
        metrics = {name.removeprefix("val/"): value for name, value in self.context.step_metrics.items()}
        self.context.step_metrics.clear()
        if metrics["reward/unjudged_frac"]:
            raise RuntimeError(f"{metrics['reward/unjudged_frac']:.0%} of the rollouts were lost: {metrics}")
        return metrics

    def _cpu_s(self) -> dict[str, float]:
        """CPU seconds so far of each part of the run."""
        me = psutil.Process()
        proxies = [self.proxy.pid] if self.proxy else []
        runners = [child.pid for child in me.children(recursive=True) if child.pid not in proxies]
        parts = {"runners": runners, "LLM proxy": proxies, "store": [self.store_pid], "rollout manager": [me.pid]}
        return {name: sum(map(cpu_s, pids)) for name, pids in parts.items() if pids}

    async def _alone(self, store: Any, manager: Any) -> dict[str, float]:
        """Milliseconds of single operations, one after another, with nothing else going on."""
        import httpx

        from sql_agent.lightning.runner import turn_fields

        rollout = await store.start_rollout(input={})
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        messages = fc.messages(Task.from_dict(json.loads(self.tasks[0])))
        body: dict[str, Any] = {"model": self.model, "messages": messages, "max_tokens": 1, "temperature": 0}
        numbers = iter(range(1, 10_000))
        async with httpx.AsyncClient(timeout=60) as client:

            async def call(url: str, model: str) -> Any:
                return await client.post(f"{url}/chat/completions", json={**body, "model": model})

            tokens = {"return_token_ids": True, "logprobs": True}
            reply = (await client.post(f"{self.server}/v1/chat/completions", json=body | tokens)).json()

            async def write_span() -> None:
                span = agl.Span.from_core_fields(turn_fields(reply), sequence_id=next(numbers), **ids)
                await store.add_span(span)

            straight = await _median_ms(lambda: call(f"{self.server}/v1", self.model))
            times = {
                "one span written to the store": await _median_ms(write_span),
                "one look for a rollout to claim": await _median_ms(lambda: store.dequeue_many_rollouts(limit=1)),
            }
            if manager.proxy_url:
                route = f"{manager.proxy_url}/rollout/{ids['rollout_id']}/attempt/{ids['attempt_id']}/v1"
                times = {"the proxy, per call": await _median_ms(lambda: call(route, "policy-0")) - straight} | times
        return times


async def _claim_to_end_s(store: Any, since: float) -> float:
    """Mean time from claim to end of the rollouts that were asked for since then."""
    rollouts = [r for r in await store.query_rollouts(limit=-1) if r.start_time >= since]
    return statistics.fmean(r.end_time - r.attempt.start_time for r in rollouts)


async def _median_ms(operation: Callable[[], Awaitable[Any]]) -> float:
    times = []
    for _ in range(ALONE):
        started = time.perf_counter()
        await operation()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def main() -> None:
    events = Events()
    end_with_parent()
    store_pid, server, model, file, *settings = sys.argv[1:]
    cfg = load_config(None, settings)
    cfg.run_dir.mkdir(parents=True, exist_ok=True)
    os.environ[RUN_ID] = run_id = uuid.uuid4().hex[:12]
    give_token(shared=False, own_store=False)
    tasks = Path(file).read_text().splitlines()
    try:
        fit(cfg, Measure(cfg, int(store_pid), server, model, tasks, events), debug=False)
    finally:
        end_run(run_id)


if __name__ == "__main__":
    main()
