"""Agents whose episodes a worker process plays, in another Python environment than this one.

A runner starts its worker at its first rollout, and another one after a worker has ended. All its rollouts share it.
"""

import asyncio
import itertools
import json
import os
from asyncio.subprocess import PIPE
from pathlib import Path

import agentlightning as agl

from agentgrpo.user_files import UserFileError

WORKER = Path(__file__).with_name("worker.py")
START_S, CANCEL_S, LINE_BYTES = 120.0, 5.0, 2**20


class WorkerError(RuntimeError):
    """The worker ended, or the environment raised; a traceback in the message is the worker's."""


class Worker:
    def __init__(self, process):
        self.process, self.numbers, self.waiting = process, itertools.count(1), {}
        self.ready = self.waiting[0] = asyncio.get_running_loop().create_future()
        self.reading = asyncio.create_task(self.read())

    @classmethod
    async def start(cls, command):
        # its own programs come first; standard error stays that of the run, so what the environment logs is in its log
        path = f"{Path(command[0]).absolute().parent}{os.pathsep}{os.environ['PATH']}"
        options = {"stdin": PIPE, "stdout": PIPE, "limit": LINE_BYTES, "env": {**os.environ, "PATH": path}}
        worker = cls(await asyncio.create_subprocess_exec(*command, **options))
        try:
            async with asyncio.timeout(START_S):
                await worker.ready
        except TimeoutError:
            worker.end()
            raise WorkerError(f"the worker {command} was not ready after {START_S:g} s") from None
        return worker

    async def play(self, row, llm):
        if self.reading.done():
            raise WorkerError("the worker has ended")
        number, answer = next(self.numbers), asyncio.get_running_loop().create_future()
        self.waiting[number] = answer
        self.tell({"id": number, "row": row, "policy": {"base_url": llm.endpoint, "model": llm.model}})
        try:
            return (await answer)["reward"]
        except asyncio.CancelledError:  # agent.rollout_timeout_s passed; a worker that is alive answers at once
            self.tell({"id": number})
            asyncio.get_running_loop().call_later(CANCEL_S, lambda: number in self.waiting and self.end())
            raise

    def tell(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def end(self):
        if self.process.returncode is None:
            self.process.kill()

    async def read(self):
        line, why = b"", "its messages are in the run's log"
        try:
            while line := await self.process.stdout.readline():
                self.take(json.loads(line))
        except (ValueError, KeyError, TypeError):
            why = f"it wrote {line[:200]!r}, which is no answer; print to standard error"
            self.end()
        except asyncio.CancelledError:  # the loop ends
            self.end()
            raise
        finally:
            self.process.stdin.close()
            status = await self.process.wait()
        for answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(WorkerError(f"the worker ended with status {status}: {why}"))

    def take(self, message):
        answer = self.waiting.pop(message["id"])
        if not answer.done() and "error" in message:
            answer.set_exception(WorkerError(message["error"]))
        elif not answer.done():
            answer.set_result(message)


def agent_of(python, *arguments, worker=WORKER):
    """Return an agent of agent-lightning whose rollouts `python worker arguments` plays.

    Raises:
        UserFileError: there is no such Python.
    """
    if not Path(python).is_file():
        raise UserFileError(f"there is no {Path(python).absolute()}; make that environment as the example's page says")
    starting = None

    @agl.rollout
    async def play(task, llm: agl.LLM) -> float:
        nonlocal starting
        if starting is None or (starting.done() and (starting.exception() or starting.result().reading.done())):
            # -P: the worker's folder must not hide a package of the environment that has the name of a file there
            starting = asyncio.create_task(Worker.start([str(python), "-P", str(worker), *arguments]))
        return await (await asyncio.shield(starting)).play(task, llm)

    return play
