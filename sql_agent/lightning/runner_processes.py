"""Restarts runner processes that die; agent-lightning starts each once and does not notice when one is killed.

Each runner is the child of a process that only restarts it and that ends with the command. SIGTERM alone tells runners
to end: upstream's shared event stays locked for all of them if one is killed while it reads it. On a Ray cluster they
are actors, spread over its nodes, which Ray restarts. Leaves out the rollouts of a killed runner, which its successor
gives back (`sql_agent.lightning.runner`): its worker id is made from the run and its number.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.agl_without_litellm import agl
from agentgrpo.processes import end_with_parent, set_process_name
from sql_agent.cluster.network import settle
from sql_agent.store_server import StoreServer

logger = logging.getLogger(__name__)

# Seconds that a runner that is told to end may take before it is killed.
END_S = 12.0
MOST_DEATHS = 5
# A runner that dies `MOST_DEATHS` times within this many seconds is not started again.
DEATHS_WITHIN_S = 60.0
RESTART_PAUSE_S = 0.5


class SupervisedRunners(agl.ClientServerExecutionStrategy):
    """Upstream's execution strategy with runners that are restarted when they die.

    Args:
        logs: folder of `runner-N.log`, which has the N-th runner's output.
        elsewhere: whether the runners are on the nodes of a Ray cluster (`start_runners`); this process starts none.
        options: upstream's.
    """

    def __init__(self, *, logs: Path, elsewhere: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._logs, self._elsewhere = logs, elsewhere

    def _spawn_runners(self, runner: Any, store: Any, stop_evt: Any, *, ctx: Any) -> list[Any]:
        if self._elsewhere:
            return []

        def play(number: int) -> None:
            asyncio.run(_until_told(self._execute_runner(runner, number, store, NeverSet())))

        self._logs.mkdir(parents=True, exist_ok=True)
        processes = [
            ctx.Process(target=keep_going, args=(play, number, self._logs), name=f"runner-{number}")
            for number in range(self.n_runners)
        ]
        for process in processes:
            process.start()
        return processes

    async def _execute_algorithm(self, algorithm: Any, store: Any, stop_evt: Any) -> None:
        """As upstream, but with a store server that checks its clients."""
        if not self.managed_store:
            return await super()._execute_algorithm(algorithm, store, stop_evt)
        server = StoreServer(store, host=self.server_host, port=self.server_port)
        await server.start()
        try:
            await algorithm(server, stop_evt)
        finally:
            await server.stop()

    def _shutdown_processes(self, processes: Sequence[Any], stop_evt: Any) -> None:
        self._signal_processes(processes, lambda process: process.terminate())
        super()._shutdown_processes(list(processes), stop_evt)


class NeverSet:
    """Replaces the stop event that upstream shares among its runners."""

    def is_set(self) -> bool:
        return False

    def set(self) -> None:
        pass


async def _until_told(work: Any) -> None:
    """Await `work`; SIGTERM cancels it, and its clean-up is awaited too."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def keep_going(play: Callable[[int], None], number: int, logs: Path) -> None:
    """Run `play(number)` in a child process, and again after each failure, until it succeeds or SIGTERM arrives."""
    end_with_parent()
    set_process_name()
    for sign in (signal.SIGINT, signal.SIGHUP):
        signal.signal(sign, signal.SIG_IGN)  # the command receives them too, and ends this process
    signals = {signal.SIGTERM, signal.SIGCHLD}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    log = logs / f"runner-{number}.log"
    deaths: deque[float] = deque(maxlen=MOST_DEATHS)
    while True:
        child = _start(play, number, log, signals)
        code = _end_of(child, signals)
        if code == 0:
            return
        print(f"runner {number} ended with {code}; its log is {log}", file=sys.stderr, flush=True)
        deaths.append(time.monotonic())
        if len(deaths) == MOST_DEATHS and time.monotonic() - deaths[0] < DEATHS_WITHIN_S:
            raise SystemExit(
                f"runner {number} died {MOST_DEATHS} times within {DEATHS_WITHIN_S:.0f} s and is not started again; "
                f"{log} has the cause"
            )
        time.sleep(RESTART_PAUSE_S)


def _start(play: Callable[[int], None], number: int, log: Path, blocked: set[signal.Signals]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        end_with_parent(signal.SIGKILL)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        agl.setup_logging("WARNING")
        play(number)
        code = 0
    except BaseException:  # a forked child ends here, whatever it was; its log says why
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _end_of(child: int, signals: set[signal.Signals]) -> int:
    """Wait for the child's end and return its exit code as `subprocess` does; 0 when it was told to end."""
    while signal.sigwait(signals) != signal.SIGTERM:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
    os.kill(child, signal.SIGTERM)
    if signal.sigtimedwait({signal.SIGCHLD}, END_S) is None:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 0


class RunnerActor:
    def __init__(self, config: str, cwd: str, store_url: str, number: int) -> None:
        settle()
        if Path(cwd).is_dir():  # settings may name the user's files from there, and then it is on every node
            os.chdir(cwd)
            sys.path.insert(0, "")
        self._config, self._store_url, self._number = Path(config), store_url, number

    async def play(self) -> None:
        """Play rollouts until the trainer has finished, or the store is gone."""
        from sql_agent.lightning.agent import SqlLitAgent
        from sql_agent.lightning.runner import ConcurrentRunner
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
        runner = ConcurrentRunner.of_run(cfg.rollout, self._store_url)
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
    """Let each runner play, and again whenever it ends; as `keep_going` does, it gives up on one that
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
