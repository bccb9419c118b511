"""Steps of rollouts as a run asks for them, in a process of its own:
`python -m scripts.bench.long_run_player STORE_URL SERVER TASKS STEPS SETTING...`.

Stands where the command and verl's driver stand: `launch.fit` keeps the store and forks the runners, the
rollout manager asks for the rollouts through the LLM proxy. Answers a line of JSON after every step.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from core.processes import RUN_ID, Events, end_run, end_with_parent
from sql_agent.config import TrainConfig, load_config
from sql_agent.launch import fit
from sql_agent.lightning.agl_light import agl
from sql_agent.lightning.algorithm import log_file, spawn
from sql_agent.lightning.door import give_token
from sql_agent.lightning.runner import TRAINER_WORKER
from sql_agent.oracle import MODEL
from sql_agent.rollouts import run_context


class Steps(agl.Algorithm):
    def __init__(
        self,
        cfg: TrainConfig,
        store_url: str,
        server: str,
        tasks: list[str],
        steps: int,
        events: Events,
    ) -> None:
        super().__init__()
        self.cfg, self.store_url, self.server = cfg, store_url, server
        self.tasks, self.steps, self.events = tasks, steps, events
        self.proxy: subprocess.Popen[str] | None = None

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        try:
            manager = await asyncio.to_thread(self._manager)
            for step in range(1, self.steps + 1):
                await asyncio.to_thread(self._play, manager, step)
                self.events.emit({"rss_mib": self._rss_mib()})
            await store.update_worker(TRAINER_WORKER, {"state": "finished"})
        finally:
            if self.proxy is not None and self.proxy.stdin is not None:
                self.proxy.stdin.close()
                await asyncio.to_thread(self.proxy.wait, 20)

    def _manager(self) -> Any:
        from sql_agent.rollouts.manager import LightningRolloutManager

        self.context = run_context.RunContext(self.cfg, "bench", self.store_url, 0, self._start_proxy)
        run_context.enter(self.context)
        config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(model=SimpleNamespace(path=MODEL)))
        addresses = [self.server.removeprefix("http://")]
        return LightningRolloutManager(config, SimpleNamespace(_load_balancer=SimpleNamespace(addresses=addresses)))

    def _start_proxy(self, servers: dict[str, Any]) -> str:
        self.proxy = spawn("sql_agent.lightning.llm_proxy", "--store", self.store_url, log=log_file(self.cfg, "proxy"))
        assert self.proxy.stdin is not None and self.proxy.stdout is not None
        self.proxy.stdin.write(json.dumps(servers) + "\n")
        self.proxy.stdin.flush()
        return json.loads(self.proxy.stdout.readline())["url"]

    def _play(self, manager: Any, step: int) -> None:
        import numpy as np
        from verl import DataProto

        rows = np.array([{"task": task} for task in self.tasks], dtype=object)
        uids = np.array([str(row // 2) for row in range(len(self.tasks))], dtype=object)
        batch = {"extra_info": rows, "uid": uids}
        manager.generate_sequences(DataProto(non_tensor_batch=batch, meta_info={"global_steps": step}))
        lost = self.context.step_metrics["reward/unjudged_frac"]
        self.context.step_metrics.clear()  # as the metrics sink does
        if lost:
            raise RuntimeError(f"{lost:.0%} of the rollouts of step {step} were lost")

    def _rss_mib(self) -> dict[str, float]:
        me = psutil.Process()
        assert self.proxy is not None
        runners = [runner for keeper in me.children() for runner in keeper.children() if keeper.pid != self.proxy.pid]
        parts = {
            "command, with store and rollout manager": [me],
            "runners": runners,
            "LLM proxy": [psutil.Process(self.proxy.pid)],
        }
        return {part: sum(p.memory_info().rss for p in processes) / 2**20 for part, processes in parts.items()}


def main() -> None:
    events = Events()
    end_with_parent()
    store_url, server, file, steps, *settings = sys.argv[1:]
    cfg = load_config(None, settings)
    cfg.run_dir.mkdir(parents=True, exist_ok=True)
    os.environ[RUN_ID] = run_id = uuid.uuid4().hex[:12]
    give_token(shared=False, own_store=True)
    tasks = Path(file).read_text().splitlines()
    try:
        fit(cfg, Steps(cfg, store_url, server, tasks, int(steps), events), debug=False)
    finally:
        end_run(run_id)


if __name__ == "__main__":
    main()
