"""Runs the runners of a run on a Ray cluster, as actors spread over its nodes; Ray starts those that die again.

A runner's worker id is made from the run and its number, so the successor of a dead one gives back what that one held.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sql_agent.cluster.network import settle
from sql_agent.lightning.runner_processes import DEATHS_WITHIN_S, MOST_DEATHS, RESTART_PAUSE_S, NeverSet


class RunnerActor:
    def __init__(self, config: str, cwd: str, store_url: str, number: int) -> None:
        settle()
        if Path(cwd).is_dir():  # settings may name the user's files from there, and then it is on every node
            os.chdir(cwd)
            sys.path.insert(0, "")
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
        except BaseException:  # an actor ends here, whatever it was; its log says why
            traceback.print_exc()
            raise
        finally:
            runner.teardown_worker(self._number)


def start_runners(order: dict[str, Any], nodes: Sequence[str], failed: Callable[[str], None]) -> list[Any]:
    """Start the actors, let them play, and return their handles, which have to be kept.

    Args:
        nodes: ids of those that are ready for the run (`Network.nodes`); Ray starts a runner, also one that died, on
            no other.
        failed: called once, from a thread, with the reason if a runner cannot be started or ends again and again.
    """
    import ray

    actor, runners = ray.remote(RunnerActor), []
    ready = {"ray.io/node-id": f"in({','.join(nodes)})"}  # Ray takes " ID" after a comma for another id
    for number in range(order["n_runners"]):
        options = {"name": f"runner-{number}", "num_cpus": order["runner_cpus"], "scheduling_strategy": "SPREAD"}
        runners.append(
            actor.options(max_restarts=-1, label_selector=ready, **options).remote(  # type: ignore[attr-defined]
                order["config"], order["cwd"], order["store_url"], number
            )
        )
    threading.Thread(target=_follow, args=(runners, failed), daemon=True, name="runners").start()
    return runners


def _follow(runners: list[Any], failed: Callable[[str], None]) -> None:
    """Let each runner play, and again whenever it ends; as `runner_processes.keep_going` does, it gives up on one that
    ends `MOST_DEATHS` times within `DEATHS_WITHIN_S`.

    The run's own end takes the actors away. A runner that ends before, in order too, has lost the store for a while.
    """
    import ray
    from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

    playing = {runner.play.remote(): number for number, runner in enumerate(runners)}
    deaths, restarts = [deque[float](maxlen=MOST_DEATHS) for _ in runners], [0 for _ in runners]
    while playing:
        (done, *_), _ = ray.wait(list(playing))
        number, cause, counts = playing.pop(done), "it had lost the store", True
        try:
            ray.get(done)
        except (RayActorError, RayTaskError) as error:
            cause = str(error).strip().splitlines()[-1]
            if isinstance(error, RayActorError) and error.actor_init_failed:  # Ray starts it no more
                return failed(f"runner {number} cannot be started: {cause}")
            before, restarts[number] = restarts[number], _restarts(runners[number])
            # a runner on a dead node is asked in vain until Ray has noticed, and dies once
            counts = restarts[number] > before or not isinstance(error, ActorUnavailableError)
        if counts:
            deaths[number].append(time.monotonic())
            if len(deaths[number]) == MOST_DEATHS and time.monotonic() - deaths[number][0] < DEATHS_WITHIN_S:
                return failed(f"runner {number} ended {MOST_DEATHS} times within {DEATHS_WITHIN_S:.0f} s: {cause}")
        time.sleep(RESTART_PAUSE_S)
        playing[runners[number].play.remote()] = number


def _restarts(runner: Any) -> int:
    from ray._private.state import state  # what `ray list actors` shows needs the dashboard

    return state.actor_table(runner._actor_id.hex())["NumRestarts"]
