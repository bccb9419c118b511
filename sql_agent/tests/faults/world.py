"""Everything a run has around verl, each server for real and behind a proxy that can fail, and what may go wrong."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from agentgrpo.agl_without_litellm import agl
from agentgrpo.machine import free_port
from dbbench_adapter.datatypes import Task
from dbbench_adapter.engines.mysql.server import PrivateServer
from sql_agent import oracle
from sql_agent.tests.conftest import serve_scores, start_store
from sql_agent.tests.faults.proxy import Fault, FaultProxy

ROOT = Path(__file__).parents[3]
LATENCY_S = 0.15
SETTINGS = [
    "llm_proxy=true",
    "rollout.n_runners=2",
    "rollout.runner_concurrency=6",
    "rollout.max_resamples=0",
    "rollout.max_lost_fraction=1.0",
    "rollout.step_timeout_s=120",
    "rollout.max_attempts=3",
    "agent.statement_timeout_s=3",
    "agent.turn_timeout_s=3",
    "agent.rollout_timeout_s=60",
    "reward_model.timeout_s=6",
    "reward_model.give_up_s=60",
    "data.max_response_tokens=100000",  # the scripted model's tokens are bytes
]
Result = dict[str, Any]


@dataclass(frozen=True)
class Planned:
    """One fault: where, what, and how many seconds after the rollouts have been asked for."""

    where: str
    fault: Fault | None
    at_s: float

    @property
    def name(self) -> str:
        return f"{self.where} {self.fault.kind}" if self.fault else f"{self.where} killed"


class World:
    def __init__(self, stack: ExitStack, folder: Path, tasks: Sequence[Task], settings: Sequence[str] = ()) -> None:
        self.folder, self.tasks, self._steps = folder, list(tasks), 0
        self._killed: list[Planned] = []
        enter = stack.enter_context
        port = free_port()
        self.store = start_store(port)
        stack.callback(_end, self.store)
        model = enter(oracle.serve(oracle.app(erring(tasks), latency_s=LATENCY_S)))
        self.store_url = f"http://127.0.0.1:{port}"
        self.proxies = {
            "store": enter(FaultProxy(self.store_url).serving()),
            "model": enter(FaultProxy(model.removesuffix("/v1")).serving()),
            "scorer": enter(FaultProxy(enter(serve_scores(score))).serving()),
        }
        self.database = enter(PrivateServer())
        where = [
            f"store.address={self.proxies['store'].url}",
            f"reward_model.url={self.proxies['scorer'].url}",
            f"rollout.backend={self.database.url}",
            f"run_dir={folder}",
        ]
        command = [sys.executable, "-m", "sql_agent.tests.faults.player", self.proxies["model"].url]
        self.player = subprocess.Popen(
            [*command, *SETTINGS, *where, *settings],
            cwd=ROOT,
            env={**os.environ, "AGL_MANAGED_STORE": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "player.log").open("w"),
            text=True,
        )
        stack.callback(_end, self.player)
        proxy = enter(FaultProxy(self._answer()["proxy"]).serving())
        self.proxies["proxy"] = proxy
        self._say({"proxy": proxy.url})
        assert self._answer() == {"up": True}

    def play(self, plan: Sequence[Planned] = (), *, group_size: int = 2, deadline_s: float = 150.0) -> dict[str, Any]:
        """Have every task played `group_size` times while the plan happens.

        Returns:
            The player's answer, the `seconds` it took, and what of the plan was `injected`: faults that hit a request.
        Raises:
            TimeoutError: past the deadline; the player is killed.
        """
        self._steps += 1
        rows = [task for task in self.tasks for _ in range(group_size)]
        started, done = time.monotonic(), threading.Event()
        watchdog = threading.Timer(deadline_s, self.player.kill)
        injector = threading.Thread(target=self._inject, args=(plan, done))
        watchdog.start()
        self._say(
            {
                "step": self._steps,
                "tasks": [json.dumps(task.to_dict()) for task in rows],
                "groups": [task.id for task in rows],
            }
        )
        injector.start()
        try:
            answer = self._answer()
        finally:
            watchdog.cancel()
            done.set()
            injector.join()
            for proxy in self.proxies.values():
                proxy.calm()
        hit = [p.name for p in plan if p in self._killed or (p.fault is not None and p.fault.hits)]
        return answer | {"seconds": time.monotonic() - started, "injected": hit}

    def runners(self) -> list[psutil.Process]:
        """The processes that play; each is the child of one that keeps it going."""
        found = [runner for keeper in psutil.Process(self.player.pid).children() for runner in keeper.children()]
        return [runner for runner in found if runner.status() != psutil.STATUS_ZOMBIE]

    def rollouts(self) -> list[tuple[Any, list[Any]]]:
        """Of the last step, as the store has them, with their attempts."""

        async def read() -> list[tuple[Any, list[Any]]]:
            store = agl.LightningStoreClient(self.store_url)
            try:
                found = [r for r in await store.query_rollouts() if r.metadata["train_step"] == self._steps]
                return [(rollout, list(await store.query_attempts(rollout.rollout_id))) for rollout in found]
            finally:
                await store.close()

        return asyncio.run(read())

    def _inject(self, plan: Sequence[Planned], done: threading.Event) -> None:
        started = time.monotonic()
        for planned in sorted(plan, key=lambda planned: planned.at_s):
            if done.wait(max(0.0, started + planned.at_s - time.monotonic())):
                return
            if planned.fault is not None:
                self.proxies[planned.where].inject(planned.fault)
            elif planned.where == "database":
                self.database._process.kill()
                self._killed.append(planned)
            elif runners := self.runners():
                random.Random(planned.at_s).choice(runners).kill()
                self._killed.append(planned)

    def _say(self, line: dict[str, Any]) -> None:
        assert self.player.stdin is not None
        self.player.stdin.write(json.dumps(line) + "\n")
        self.player.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self.player.stdout is not None
        line = self.player.stdout.readline()
        if not line:
            log = (self.folder / "player.log").read_text()[-3000:]
            raise TimeoutError(f"the player ended with {self.player.wait()}; the end of its log:\n{log}")
        return json.loads(line)


@contextmanager
def world(folder: Path, tasks: Sequence[Task], settings: Sequence[str] = ()) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack, folder, tasks, settings)


def fooling(tasks: Sequence[Task]) -> list[Task]:
    """Every second of the questions; what changes a table is judged by the table."""
    return [task for task in tasks if not task.changes_state][::2]


def erring(tasks: Sequence[Task]) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    """The perfect agent, but for the fooling tasks, where its answer is none of the table's."""
    right = oracle.replay(tasks)
    fooled = {oracle.PROTOCOLS["fc"].messages(task)[-1]["content"] for task in fooling(tasks)}

    def reply(history: list[dict[str, Any]]) -> dict[str, Any]:
        message = right(history)
        asked = {str(message["content"]) for message in history if message["role"] == "user"}
        ends = any(call["function"]["name"] == "commit_final_answer" for call in message.get("tool_calls", ()))
        if asked & fooled and ends:
            return oracle.calls(oracle.call("commit_final_answer", {"answers": ["no such thing"]}, "call_commit"))
        return message

    return reply


def score(messages: list[dict[str, Any]]) -> float:
    """The same conversation, the same score."""
    return len(json.dumps(messages)) % 7 / 10


def _end(process: subprocess.Popen[Any]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    else:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
