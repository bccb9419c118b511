"""Runs the runners of a run on a Ray cluster, as actors spread over its nodes; Ray starts those that die again.

A runner's worker id is made from the run and its number, so the successor of a dead one gives back what that one held.
"""

from __future__ import annotations

import os
import socket
import traceback
from pathlib import Path
from typing import Any

from sql_agent.cluster.network import settle
from sql_agent.lightning.runner_processes import NeverSet


class RunnerActor:
    def __init__(self, config: str, store_url: str, number: int) -> None:
        settle()
        self._config, self._store_url, self._number = Path(config), store_url, number

    async def play(self) -> None:
        """Play rollouts until the trainer has finished, or the store is gone."""
        from agentgrpo.agl_without_litellm import agl
        from sql_agent.lightning.runner import ConcurrentRunner, PassiveTracer, SqlLitAgent
        from sql_agent.settings.load import load_config

        cfg = load_config(self._config)
        logs = cfg.run_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        out = os.open(
            logs / f"runner-{self._number}.{socket.gethostname()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        os.dup2(out, 1)
        os.dup2(out, 2)
        agl.setup_logging("WARNING")
        runner = ConcurrentRunner(
            PassiveTracer(),
            concurrency=cfg.rollout.runner_concurrency,
            poll_s=cfg.rollout.poll_s,
            store_url=self._store_url,
        )
        runner.init(SqlLitAgent(cfg))
        runner.init_worker(self._number, None)
        try:
            await runner.iter(event=NeverSet())
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            runner.teardown_worker(self._number)


def start_runners(order: dict[str, Any]) -> list[Any]:
    """Start the actors and let them play; the caller has to keep what this returns."""
    import ray

    actor, kept = ray.remote(RunnerActor), []
    for number in range(order["n_runners"]):
        options = {"name": f"runner-{number}", "num_cpus": order["runner_cpus"], "scheduling_strategy": "SPREAD"}
        runner = actor.options(max_restarts=-1, max_task_retries=-1, **options).remote(  # type: ignore[attr-defined]
            order["config"], order["store_url"], number
        )
        kept += [runner, runner.play.remote()]
    return kept
