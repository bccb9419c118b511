"""verl's GRPO trainer as an agent-lightning algorithm.

The trainer runs in a child process (`sql_agent.verl_driver`), the LLM proxy in another; both start importing at once,
and both end with this one. This process only waits, shows what happens and keeps a heartbeat in the store.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sql_agent.agl_light import agl
from sql_agent.config import TrainConfig
from sql_agent.processes import RUN_ID
from sql_agent.runner import TRAINER_WORKER

logger = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
PROXY_START_S = 120.0


class TrainingFailedError(RuntimeError):
    """verl's process ended without finishing the run."""


class VerlGrpo(agl.Algorithm):
    """Runs verl 0.9.1's own trainer with rollouts from agent-lightning's store.

    Args:
        cfg: the resolved config, as saved in the run directory.
        order: what `sql_agent.verl_driver` reads: verl's config, environment, run id.
        show: called with every event of the run (`phase`, `step`, `finished`, `failed`).
    """

    def __init__(self, cfg: TrainConfig, order: dict[str, Any], show: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.cfg, self.order, self.show = cfg, order, show

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store = self.get_store()
        store_url = store_address(store)
        logs = self.cfg.run_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        order_file = self.cfg.run_dir / "driver.json"
        order_file.write_text(json.dumps(self.order | {"store_url": store_url}))
        environment = {**os.environ, **self.order["environment"], RUN_ID: self.order["run_id"]}
        environment["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # otherwise Ray leaves one in the home folder
        heartbeat = asyncio.create_task(self._heartbeat(store))
        # The driver imports longest; the proxy's imports fit beside it.
        driver = await _spawn("sql_agent.verl_driver", str(order_file), log=logs / "driver.log", env=environment)
        proxy = None
        if self.cfg.llm_proxy:
            timeout = str(self.cfg.agent.turn_timeout_s)
            arguments = ("--store", store_url, "--timeout-s", timeout)
            proxy = await _spawn("sql_agent.llm_proxy", *arguments, log=logs / "proxy.log", env=environment)
        try:
            await self._follow(driver, proxy, logs)
            await store.update_worker(TRAINER_WORKER, {"state": "finished"})
        finally:
            heartbeat.cancel()
            await asyncio.gather(_end(proxy, close_stdin=True), _end(driver))
            if isinstance(store, agl.LightningStoreClient):
                await store.close()

    async def _follow(
        self, driver: asyncio.subprocess.Process, proxy: asyncio.subprocess.Process | None, logs: Path
    ) -> None:
        assert driver.stdout is not None and driver.stdin is not None
        deadline = time.monotonic() + self.cfg.trainer.startup_timeout_s
        started = finished = False
        error = ""
        while True:
            timeout = None if started else deadline - time.monotonic()
            try:
                line = await asyncio.wait_for(driver.stdout.readline(), timeout)
            except TimeoutError:
                raise TrainingFailedError(
                    f"no train step within trainer.startup_timeout_s={self.cfg.trainer.startup_timeout_s:.0f} s; "
                    f"see {logs / 'driver.log'}"
                ) from None
            if not line:
                break
            event = json.loads(line)
            if event["event"] == "servers":
                proxy_url = await self._start_proxy(proxy, event, logs) if proxy else None
                driver.stdin.write(json.dumps({"proxy_url": proxy_url}).encode() + b"\n")
                event = {"event": "phase", "name": "first rollouts"}
            started |= event["event"] == "step"
            finished |= event["event"] == "finished"
            error = event.get("error", error)
            self.show(event)
        code = await driver.wait()
        if not finished:
            raise TrainingFailedError(f"{error or f'verl ended with exit code {code}'}\nlog: {logs / 'driver.log'}")

    async def _start_proxy(self, proxy: asyncio.subprocess.Process, servers: dict[str, Any], logs: Path) -> str:
        """Point the LLM proxy at the model servers; answers its address."""
        assert proxy.stdin is not None and proxy.stdout is not None
        order = {"model": servers["model"], "backends": servers["backends"]}
        proxy.stdin.write(json.dumps(order).encode() + b"\n")
        line = await asyncio.wait_for(proxy.stdout.readline(), PROXY_START_S)
        if not line:
            raise TrainingFailedError(f"the LLM proxy ended before it served; see {logs / 'proxy.log'}")
        return json.loads(line)["url"]

    async def _heartbeat(self, store: Any) -> None:
        while True:
            await store.update_worker(TRAINER_WORKER, {"state": "running", "run_id": self.order["run_id"]})
            await asyncio.sleep(HEARTBEAT_S)


def store_address(store: Any) -> str:
    """The base address of the store: one that is kept outside, or the one this run serves."""
    address = getattr(store, "server_address_root", None) or getattr(store, "endpoint", None)
    if address is None:
        raise TrainingFailedError(f"{type(store).__name__} has no address that other processes could reach")
    return str(address)


async def _spawn(module: str, *args: str, log: Path, env: dict[str, str]) -> asyncio.subprocess.Process:
    with log.open("a") as out:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=out,
            env=env,
            limit=1 << 24,
            start_new_session=True,  # Ctrl-C reaches this process only, which ends the others in order
        )


async def _end(process: asyncio.subprocess.Process | None, *, close_stdin: bool = False) -> None:
    if process is None or process.returncode is not None:
        return
    if close_stdin and process.stdin is not None:
        process.stdin.close()
    else:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), 15.0)
    except TimeoutError:
        process.kill()
        await process.wait()
