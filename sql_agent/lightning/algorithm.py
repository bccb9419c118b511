"""Runs verl's GRPO trainer as an agent-lightning algorithm.

The trainer runs in one child process (`sql_agent.verl_side.driver`), the LLM proxy in another. Both begin their imports
at once, and both end with this process, which only waits, reports events and keeps a heartbeat in the store. Leaves out
how the driver's order is made (`sql_agent.startup.launch.prepare_run`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from agentgrpo.agl_without_litellm import agl
from agentgrpo.processes import tell
from sql_agent.lightning.child_processes import STARTED, log_file, spawn
from sql_agent.lightning.heartbeats import HEARTBEAT_S, TRAINER_WORKER
from sql_agent.lightning.store import UNFINISHED
from sql_agent.source.run_context import TrainingFailedError

logger = logging.getLogger(__name__)

TICK_S = 1.0
PROXY_START_S = 120.0
END_S = 15.0


class VerlGrpo(agl.Algorithm):
    """Run verl 0.9.1's own trainer with rollouts from agent-lightning's store.

    Args:
        startup_timeout_s: the longest until the model servers are there.
        proxy: arguments of the LLM proxy beside its store and its address; None: there is none.
        order: the input of `sql_agent.verl_side.driver`: verl's config, environment, run id.
        driver: its process, from `start_driver`; it already imports verl and waits for its order.
        show: called with every event of the run (`phase`, `rollouts`, `step`, `finished`, `failed`), each second with
            `tick`, and with `stopped` at its end.
    """

    def __init__(
        self,
        run_dir: Path,
        startup_timeout_s: float,
        proxy: list[str] | None,
        order: dict[str, Any],
        driver: subprocess.Popen[str],
        show: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__()
        self.run_dir, self.startup_timeout_s, self.proxy_arguments = run_dir, startup_timeout_s, proxy
        self.order, self.driver, self.show = order, driver, show
        self.finished = False

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        store_url = store_address(store)
        beat = asyncio.create_task(heartbeat(store, self.order["run_id"]))
        await self._cancel_leftovers(store)
        proxy = None
        if self.proxy_arguments is not None:
            arguments = ["--store", store_url, "--host", self.order["network"]["host"], *self.proxy_arguments]
            proxy = spawn("sql_agent.lightning.llm_proxy", *arguments, log=log_file(self.run_dir, "proxy"))
        try:
            tell(self.driver, self.order | {"store_url": store_url})
            await first_of(self._follow(proxy), until_no_runner_is_left(self.run_dir), self._tick())
        finally:
            beat.cancel()
            await asyncio.gather(_end(proxy, close_stdin=True), _end(self.driver))
            await tell_store(store, {"state": "finished"})
            if isinstance(store, agl.LightningStoreClient):
                await store.close()

    async def _follow(self, proxy: subprocess.Popen[str] | None) -> None:
        log, limit = log_file(self.run_dir, "driver"), self.startup_timeout_s
        deadline: float | None = time.monotonic() + limit
        error = ""
        while True:
            try:
                line = await _read_line(self.driver, None if deadline is None else deadline - time.monotonic())
            except TimeoutError:
                if self.finished or error:  # everything is written; `run` ends the driver
                    break
                message = (
                    f"no model server within trainer.startup_timeout_s={limit:.0f} s; {log} says how far it came; "
                    "raise the limit if the machine is only slow"
                )
                raise TrainingFailedError(message) from None
            if not line:
                break
            event = json.loads(line)
            if event["event"] == "servers":
                proxy_url = await self._start_proxy(proxy, event) if proxy else None
                tell(self.driver, {"proxy_url": proxy_url})
                event = {"event": "phase", "name": "first rollouts"}
            if event.get("name") == "first rollouts":
                deadline = None
            self.finished |= event["event"] == "finished"
            error = event.get("error", error)
            if self.finished or error:
                deadline = time.monotonic() + END_S
            self.show(event)
        if self.finished:
            return
        if not error:
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.driver.wait, END_S)
            error = f"verl ended with exit code {self.driver.returncode}; its log has the cause"
        written = log.read_text(errors="replace") if log.is_file() else ""
        if cause := first_engine_error(written.rpartition(STARTED)[2]):
            error = f"{error}\nthe first error of a vLLM engine: {cause}"
        raise TrainingFailedError(f"{error}\nlog: {log}")

    async def _tick(self) -> None:
        """Let the progress line go on, and erase it at the end of the run, however it ends."""
        try:
            while True:
                await asyncio.sleep(TICK_S)
                self.show({"event": "tick"})
        finally:
            self.show({"event": "stopped"})

    async def _start_proxy(self, proxy: subprocess.Popen[str], servers: dict[str, Any]) -> str:
        """Send the LLM proxy the addresses of the model servers and return the proxy's own address."""
        tell(proxy, {"model": servers["model"], "backends": servers["backends"]})
        line = await _read_line(proxy, PROXY_START_S)
        if not line:
            raise TrainingFailedError(f"the LLM proxy ended before it served; see {log_file(self.run_dir, 'proxy')}")
        return json.loads(line)["url"]

    async def _cancel_leftovers(self, store: Any) -> None:
        """Cancel rollouts of an earlier run that was killed; they would send our runners to a model that is gone."""
        for rollout in await store.query_rollouts(status_in=UNFINISHED):
            if (rollout.metadata or {}).get("run_id", self.order["run_id"]) != self.order["run_id"]:
                await store.update_rollout(rollout.rollout_id, status="cancelled")


# vLLM's form, `ERROR 11-28 21:20:47 [core.py:1346] EngineCore failed to start.`, behind Ray's name of the process
_ERROR = re.compile(r"\bERROR [\d-]+ [\d:]+ \[\S+:\d+\] ?(.*)")


def first_engine_error(log: str) -> str | None:
    """What a vLLM engine said when it failed: its cause, where there is a traceback.

    Others meet it later, as `Engine core initialization failed. See root cause above`, or as `'State' object has no
    attribute 'server'`, since vLLM's answer of a dead engine ends a server that verl does not give it.
    """
    said = [match[1] for match in map(_ERROR.search, log.splitlines()) if match]
    if not said:
        return None
    if said[1:2] != ["Traceback (most recent call last):"]:
        return said[0]
    cause = next((line for line in said[2:] if line and not line[0].isspace()), "")
    if "EngineDeadError" in cause:  # nothing was said before somebody missed it
        return "its process was ended from outside, as the kernel does where memory is short (`dmesg` says so)"
    return f"{said[0].rstrip('.')}: {cause}"


async def heartbeat(store: Any, run_id: str) -> None:
    """Tell the store again and again that the run is alive; its runners end when nobody has for a while."""
    who = {"run_id": run_id, "host": socket.gethostname(), "pid": os.getpid()}
    while True:
        await tell_store(store, {"state": "running", **who})
        await asyncio.sleep(HEARTBEAT_S)


async def until_no_runner_is_left(run_dir: Path) -> None:
    """Raise when no runner of this command is left; the algorithm would wait for rollouts that nobody plays."""
    runners = multiprocessing.active_children()
    while not runners or any(runner.is_alive() for runner in runners):
        await asyncio.sleep(HEARTBEAT_S)
    ends = ", ".join(f"{runner.name} with {runner.exitcode}" for runner in runners)
    raise TrainingFailedError(f"no runner is left ({ends}); their logs are in {run_dir / 'logs'}")


async def first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Wait until the first of `works` ends, raise its error if it has one, and cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()


def store_address(store: Any) -> str:
    """The base address of the store, which is external or served by this run."""
    address = getattr(store, "server_address_root", None) or getattr(store, "endpoint", None)
    if address is None:
        raise TrainingFailedError(f"{type(store).__name__} has no address that other processes could reach")
    return str(address)


async def tell_store(store: Any, stats: dict[str, Any]) -> None:
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            await store.update_worker(TRAINER_WORKER, stats)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:  # the next heartbeat may arrive
        logger.warning("the store did not take the trainer's heartbeat: %s", error)


async def _read_line(process: subprocess.Popen[str], timeout_s: float | None) -> str:
    assert process.stdout is not None
    return await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), timeout_s)


async def _end(process: subprocess.Popen[str] | None, *, close_stdin: bool = False) -> None:
    if process is None or process.poll() is not None:
        return
    if close_stdin and process.stdin is not None:
        process.stdin.close()
    else:
        process.terminate()
    try:
        await asyncio.to_thread(process.wait, END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait)
