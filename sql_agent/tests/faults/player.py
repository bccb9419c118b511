"""Stands where verl stands, in a process of its own: runners, LLM proxy and rollout manager as in a run, no model.

    python -m sql_agent.tests.faults.player MODEL_URL SETTING...

Talks in lines of JSON. It says where its LLM proxy is and is told which address to give to agents; it is told tasks and
says what became of each, or which words would end the run.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from agentgrpo.agl_without_litellm import agl
from agentgrpo.processes import Events, end_with_parent, own_run
from sql_agent.lightning.agent import SqlLitAgent
from sql_agent.lightning.child_processes import log_file, spawn
from sql_agent.lightning.heartbeats import TRAINER_WORKER
from sql_agent.oracle import MODEL
from sql_agent.settings.load import load_config
from sql_agent.settings.train import TrainConfig
from sql_agent.source import run_context
from sql_agent.startup.launch import start_agl_trainer


@dataclass
class Context(run_context.RunContext):
    def save_trajectories(self, results: Any, *, step: int, validate: bool) -> None:
        self.results = list(results)


class Player(agl.Algorithm):
    def __init__(self, cfg: TrainConfig, model_url: str, events: Events) -> None:
        super().__init__()
        self.cfg, self.model_url, self.events = cfg, model_url, events
        self.proxy: subprocess.Popen[str] | None = None

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        heartbeat = asyncio.create_task(self._heartbeat())
        try:
            manager = await asyncio.to_thread(self._manager)
            self.events.emit({"up": True})
            while line := await asyncio.to_thread(sys.stdin.readline):
                self.events.emit(await asyncio.to_thread(self._play, manager, **json.loads(line)))
        finally:
            heartbeat.cancel()
            if self.proxy is not None and self.proxy.stdin is not None:
                self.proxy.stdin.close()
                await asyncio.to_thread(self.proxy.wait, 20)
            await self.get_store().update_worker(TRAINER_WORKER, {"state": "finished"})

    async def _heartbeat(self) -> None:
        while True:
            await self.get_store().update_worker(TRAINER_WORKER, {"state": "running"})
            await asyncio.sleep(5)

    def _manager(self) -> Any:
        from sql_agent.verl_side.rollout_manager import RolloutManager

        self.context = Context(self.cfg, "faults", str(self.cfg.store.address), 0, self._start_proxy)
        run_context.enter(self.context)
        config = SimpleNamespace(
            actor_rollout_ref=SimpleNamespace(model=SimpleNamespace(path=MODEL)),
            trainer=SimpleNamespace(resume_from_path=None),
        )
        servers = SimpleNamespace(_load_balancer=SimpleNamespace(addresses=[self.model_url.removeprefix("http://")]))
        return RolloutManager(config, servers)

    def _start_proxy(self, servers: dict[str, Any]) -> str | None:
        if not self.cfg.llm_proxy:
            return None
        arguments = ("--store", str(self.cfg.store.address), "--timeout-s", str(self.cfg.agent.turn_timeout_s))
        self.proxy = spawn("sql_agent.lightning.llm_proxy", *arguments, log=log_file(self.cfg.run_dir, "proxy"))
        assert self.proxy.stdin is not None and self.proxy.stdout is not None
        self.proxy.stdin.write(json.dumps(servers) + "\n")
        self.proxy.stdin.flush()
        self.events.emit({"proxy": json.loads(self.proxy.stdout.readline())["url"]})
        return json.loads(sys.stdin.readline())["proxy"]

    def _play(self, manager: Any, *, step: int, tasks: list[str], groups: list[str]) -> dict[str, Any]:
        import numpy as np
        from verl import DataProto

        rows = np.array([{"task": task} for task in tasks], dtype=object)
        batch = {"extra_info": rows, "uid": np.array(groups, dtype=object)}
        self.context.results = []
        try:
            answer = manager.generate_sequences(DataProto(non_tensor_batch=batch, meta_info={"global_steps": step}))
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        trained = answer.batch["response_mask"].sum(dim=1).bool().tolist()
        return {"results": [facts(r) | {"trained": t} for r, t in zip(self.context.results, trained, strict=True)]}


def facts(result: Any) -> dict[str, Any]:
    """What a rollout came to, without what depends on the clock."""
    row, played = result.row, result.played
    ids = repr((row.ids, row.sampled, row.log_probs)) if row else None
    return {
        "group": result.group,
        "task": result.task_id,
        "lost": result.lost,
        "reward": result.reward,
        "base": result.earned.parts.get("base"),
        "unshaped": result.unshaped,
        "reason": result.earned.reason if played else None,
        "turns": played.num_turns if played else None,
        "messages": played.messages if played else None,
        "ids": hashlib.sha256(ids.encode()).hexdigest() if ids else None,
    }


def main() -> None:
    events = Events()
    end_with_parent()
    model_url, *settings = sys.argv[1:]
    cfg = load_config(None, settings)
    cfg.run_dir.mkdir(parents=True, exist_ok=True)
    with own_run():
        logs = cfg.run_dir / "logs"
        start_agl_trainer(cfg.rollout, cfg.store, logs, Player(cfg, model_url, events), SqlLitAgent(cfg), debug=False)


if __name__ == "__main__":
    main()
