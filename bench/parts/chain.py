"""Plays a run without verl in its own process: `python -m bench.parts.chain`.

It replaces the command and verl's driver: `launch.start_agl_trainer` forks the runners (and keeps the store, if no
other is named), and the rollout manager asks for rollouts, through the LLM proxy if the settings say so. It
reads one line of JSON, which `bench.parts.overhead` and `bench.parts.long_run` write, and answers with lines of JSON.
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
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from agentgrpo.agl_without_litellm import agl
from agentgrpo.processes import RUN_ID, Events, end_run, end_with_parent, tell
from bench.parts.children import answer, cpu_s
from bench.parts.overhead import AT_ONCE, ROUNDS
from sql_agent.lightning.agent import SqlLitAgent
from sql_agent.lightning.child_processes import log_file, spawn
from sql_agent.lightning.heartbeats import TRAINER_WORKER
from sql_agent.model_address.request_guard import give_token
from sql_agent.settings.load import load_config
from sql_agent.source import run_context
from sql_agent.startup.launch import start_agl_trainer


class Chain(agl.Algorithm):
    """Asks for batches of rollouts as a trainer does; its subclasses choose the batches and the measurements."""

    def __init__(self, order: dict[str, Any], events: Events) -> None:
        super().__init__()
        self.order, self.events, self.cfg = order, events, load_config(None, order["settings"])
        self.tasks = Path(order["tasks"]).read_text().splitlines()
        self.proxy: subprocess.Popen[str] | None = None

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        try:
            manager = await asyncio.to_thread(self._manager)
            await self.measure(store, manager)
            await store.update_worker(TRAINER_WORKER, {"state": "finished"})
        finally:
            if self.proxy is not None and self.proxy.stdin is not None:
                self.proxy.stdin.close()
                await asyncio.to_thread(self.proxy.wait, 20)
            if "store_pid" in self.order:
                await store.close()

    async def measure(self, store: Any, manager: Any) -> None:
        raise NotImplementedError

    def _manager(self) -> Any:
        from sql_agent.verl_side.rollout_manager import RolloutManager

        self.context = run_context.RunContext(self.cfg, "bench", self.order["store_url"], 0, self._start_proxy)
        run_context.enter(self.context)
        model, trainer = SimpleNamespace(path=self.order["model"]), SimpleNamespace(resume_from_path=None)
        config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(model=model), trainer=trainer)
        addresses = [self.order["server"].removeprefix("http://")]
        return RolloutManager(config, SimpleNamespace(_load_balancer=SimpleNamespace(addresses=addresses)))

    def _start_proxy(self, servers: dict[str, Any]) -> str | None:
        if not self.cfg.llm_proxy:
            return None
        log = log_file(self.cfg.run_dir, "proxy")
        self.proxy = spawn("sql_agent.lightning.llm_proxy", "--store", self.order["store_url"], log=log)
        tell(self.proxy, servers)
        return answer(self.proxy, log)["url"]

    def play(self, manager: Any, rows: int, group: int, how: dict[str, Any]) -> dict[str, float]:
        """Play one batch and return the manager's own metrics of it.

        Raises:
            RuntimeError: a rollout was lost.
        """
        import numpy as np
        from verl import DataProto

        tasks = np.array([{"task": task} for task in self.tasks[:rows]], dtype=object)
        uids = np.array([str(row // group) for row in range(rows)], dtype=object)
        manager.generate_sequences(DataProto(non_tensor_batch={"extra_info": tasks, "uid": uids}, meta_info=how))
        metrics = {name.removeprefix("val/"): value for name, value in self.context.step_metrics.items()}
        self.context.step_metrics.clear()  # the metrics sink does this in a run
        if metrics["reward/unjudged_frac"]:
            raise RuntimeError(f"{metrics['reward/unjudged_frac']:.0%} of the rollouts were lost: {metrics}")
        return metrics

    def processes(self) -> dict[str, list[int]]:
        proxies = [self.proxy.pid] if self.proxy else []
        keepers = [child for child in psutil.Process().children() if child.pid not in proxies]
        parts = {"runners": [runner.pid for keeper in keepers for runner in keeper.children()], "LLM proxy": proxies}
        return {name: pids for name, pids in parts.items() if pids}


class Throughput(Chain):
    """Plays validation batches, which decode greedily; measures their time, and the CPU time of each part."""

    async def measure(self, store: Any, manager: Any) -> None:
        async def play(rows: int) -> dict[str, float]:
            return await asyncio.to_thread(self.play, manager, rows, 1, {"validate": True})

        await play(AT_ONCE)  # warms up, as the direct way does
        batch = await play(AT_ONCE)
        before, asked = self._cpu_s(), time.time()
        loads = [await play(len(self.tasks)) for _ in range(ROUNDS)]
        after, rollout_s = self._cpu_s(), statistics.fmean(load["rollout/seconds"] for load in loads)
        load = {
            "wall_s": statistics.median(load["time/rollout_s"] for load in loads),
            "rollout_s": rollout_s,
            "around_s": await _claim_to_end_s(store, asked) - rollout_s,
            "turns": statistics.fmean(load["rollout/turns"] for load in loads),
            "batch_s": batch["time/rollout_s"],
            "cpu_s": {name: (after[name] - before[name]) / ROUNDS for name in after},
        }
        self.events.emit(load)

    def _cpu_s(self) -> dict[str, float]:
        parts = self.processes() | {"store": [self.order["store_pid"]], "rollout manager": [os.getpid()]}
        return {name: sum(map(cpu_s, pids)) for name, pids in parts.items()}


async def _claim_to_end_s(store: Any, since: float) -> float:
    rollouts = [r for r in await store.query_rollouts(limit=-1) if r.start_time >= since]
    return statistics.fmean(r.end_time - r.attempt.start_time for r in rollouts)


class Growth(Chain):
    """Plays train steps one after another, in groups of two; measures resident memory of each part after every step."""

    async def measure(self, store: Any, manager: Any) -> None:
        for step in range(1, self.order["steps"] + 1):
            await asyncio.to_thread(self.play, manager, len(self.tasks), 2, {"global_steps": step})
            parts = {"command, with store and rollout manager": [os.getpid()]} | self.processes()
            self.events.emit({name: _rss_mib(pids) for name, pids in parts.items()})


def _rss_mib(pids: Sequence[int]) -> float:
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / 2**20


def main() -> None:
    events = Events()
    end_with_parent()
    order = json.loads(sys.stdin.readline())
    chain = (Throughput if "store_pid" in order else Growth)(order, events)
    chain.cfg.run_dir.mkdir(parents=True, exist_ok=True)
    os.environ[RUN_ID] = run_id = uuid.uuid4().hex[:12]
    give_token(shared=False, own_store="store_pid" not in order)
    try:
        start_agl_trainer(
            chain.cfg.rollout, chain.cfg.store, chain.cfg.run_dir / "logs", chain, SqlLitAgent(chain.cfg), debug=False
        )
    finally:
        end_run(run_id)


if __name__ == "__main__":
    main()
