"""Plays episodes of an environment of verifiers or OpenEnv, in the Python environment of that package.

A row comes as a JSON line on standard input, its reward leaves as one on standard output. Imports nothing of this
project, and of the two packages only the one that it is started for.
"""

import asyncio
import itertools
import json
import os
import socket
import sys
import threading
import time
import traceback
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

END_S = 10.0


class Verifiers:
    """verifiers 0.4: its own loop, tools, rewards. A row is what a task of its taskset holds (`task.data`)."""

    def __init__(self, config):
        import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

        self.vf, self.env = vf, vf.load_environment(vf.resolve_env_config(config))

    def serving(self):
        return self.env.serving()

    async def play(self, row, policy):
        kind = type(self.env.taskset).task_type()
        task = kind(kind.data_type().model_validate(row), self.env.config.taskset.task)
        client = self.vf.EvalClientConfig(base_url=policy["base_url"], api_key_var="NO_KEY_IS_NEEDED")
        episode = await self.env.run_episode(task, self.vf.ModelContext(model=policy["model"], client=client))
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            raise RuntimeError("\n".join(f"{e.type}: {e.message}\n{e.traceback or ''}" for e in errors))
        return sum(trace.reward for trace in episode.traces)


class OpenEnv:
    """OpenEnv: a server on loopback, whose observations are the user's messages; a reply is one field of an action."""

    def __init__(self, config):
        self.config, self.sessions = config, asyncio.Semaphore(config["sessions"])

    @asynccontextmanager
    async def serving(self):
        import uvicorn

        sys.path.insert(0, self.config["folder"])
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(self.config["app"], log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        yield
        server.should_exit = True
        await asyncio.to_thread(thread.join, END_S / 2)

    async def play(self, row, policy):
        from openai import AsyncOpenAI, BadRequestError
        from openenv import GenericEnvClient  # pyright: ignore[reportMissingImports]

        messages: Any = [{"role": "system", "content": row["prompt"]}]
        rewards = []
        async with (
            self.sessions,
            GenericEnvClient(base_url=self.url) as env,
            AsyncOpenAI(base_url=policy["base_url"], api_key="none-is-needed") as client,
        ):
            result = await env.reset(**row.get("reset", {}))
            while not result.done and len(rewards) < self.config["steps"]:
                messages.append({"role": "user", "content": json.dumps(result.observation)})
                try:
                    completion = await client.chat.completions.create(model=policy["model"], messages=messages)
                except BadRequestError:  # the policy filled its context, or wrote what cannot be read back
                    break
                reply = completion.choices[0].message.content or ""
                messages.append({"role": "assistant", "content": reply})
                result = await env.step({self.config["field"]: reply})
                rewards.append(result.reward or 0.0)
        return sum(rewards)


async def serve(make):
    rows, out = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    # What the environment and its processes print would be taken for an answer, and they could read a row.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    lines, playing = asyncio.Queue(), {}

    async def answer(number, play):
        try:
            said = {"reward": await play()}
        except (Exception, asyncio.CancelledError):  # whatever the environment raises is this rollout's error
            said = {"error": traceback.format_exc()}
        playing.pop(number, None)
        with suppress(BrokenPipeError):  # nobody waits for the last one
            out.write(json.dumps({"id": number, **said}) + "\n")

    async def episodes():
        environment = make()
        async with environment.serving():
            out.write(json.dumps({"id": 0}) + "\n")
            while line := await lines.get():
                message = json.loads(line)
                if "row" in message:
                    play = partial(environment.play, message["row"], message["policy"])
                    playing[message["id"]] = asyncio.create_task(answer(message["id"], play))
                elif message["id"] in playing:
                    playing[message["id"]].cancel()

    threading.Thread(target=read, args=(rows, asyncio.get_running_loop(), lines), daemon=True).start()
    await answer(0, episodes)


def read(rows, loop, lines):
    for line in itertools.chain(rows, [""]):
        loop.call_soon_threadsafe(lines.put_nowait, line)
    time.sleep(END_S)
    os._exit(1)  # the parent is gone, and an episode blocks the loop


if __name__ == "__main__":
    kind = {"verifiers": Verifiers, "openenv": OpenEnv}[sys.argv[1]]
    asyncio.run(serve(lambda: kind(json.loads(sys.argv[2]))))
