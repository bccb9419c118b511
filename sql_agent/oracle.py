"""Serves a scripted model at an OpenAI-compatible endpoint on loopback: for a file's ceiling, benchmarks and tests.

`replay` plays the perfect agent, which runs a task's reference statement and commits its gold answer; `recite` gives
fixed replies. Both depend only on the request, so calls may come in any order and be repeated. For requests of token
ids, as to vLLM (`return_token_ids`, `logprobs`), it returns bytes. Leaves out sampling, streaming and all routes other
than `/v1/models` and `/v1/chat/completions`.
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import asyncio
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentgrpo.chat.calls import call, calls
from agentgrpo.flags import Parser
from agentgrpo.http_protocol import GuardedHttpProtocol, LimitedHttpProtocol
from agentgrpo.machine import port_number
from dbbench_adapter.datatypes import Task
from dbbench_adapter.protocols import PROTOCOLS, ProtocolName, solution
from dbbench_adapter.tasks.load import load_tasks
from sql_agent.model_address.request_guard import RequestGuard

__all__ = ["app", "call", "calls", "recite", "replay", "serve"]

Json = dict[str, Any]
# Maps the messages of a request to the assistant message that answers it. The answer may have two further keys:
# `finish_reason`, and `status` for an HTTP error whose message is `content`.
Script = Callable[[list[Json]], Json]

MODEL = "oracle"


def recite(replies: Sequence[Json]) -> Script:
    """Answer the k-th turn with the k-th reply, and every later one with the last."""
    return lambda history: replies[min(_turn(history), len(replies) - 1)]


def replay(tasks: Sequence[Task], protocol: ProtocolName = "fc") -> Script:
    """Run the reference statement of the task in the user message, if it has one, then commit the gold answer.

    Raises:
        ValueError: two tasks have the same prompt and different gold answers; no oracle can be right on both.
    """
    scripts: dict[str, list[Json]] = {}
    for task in tasks:
        prompt, replies = PROTOCOLS[protocol].messages(task), solution(task, protocol)
        # a first prompt may contain assistant turns, which are not the oracle's
        script = [{}] * _turn(prompt) + replies
        if scripts.setdefault(prompt[-1]["content"], script) != script:
            raise ValueError(f"task {task.id!r} has the same prompt as an earlier task and another solution; drop one")
    unknown = [{"status": 404, "content": "the oracle knows no task with this user message; give it the same --tasks"}]

    def answer(history: list[Json]) -> Json:
        asked = (scripts.get(str(message["content"])) for message in history if message["role"] == "user")
        return recite(next(filter(None, asked), unknown))(history)

    return answer


def app(
    script: Script,
    *,
    model: str = MODEL,
    latency_s: float = 0.0,
    on_request: Callable[[Json], None] | None = None,
) -> Starlette:
    """The endpoint as an ASGI app.

    Args:
        script: chooses the answers.
        latency_s: delay of every answer, to imitate a large model.
        on_request: called with the body of every chat request.
    """

    async def list_models(_request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": model, "object": "model", "owned_by": "agentgrpo"}]})

    async def complete(request: Request) -> JSONResponse:
        body = await request.json()
        if on_request is not None:
            on_request(body)
        if latency_s:
            await asyncio.sleep(latency_s)
        reply = dict(script(body["messages"]))
        status = reply.pop("status", 200)
        if status != 200:
            return JSONResponse({"error": {"message": reply["content"], "code": status}}, status_code=status)
        return JSONResponse(_completion(body, reply))

    return Starlette(
        routes=[Route("/v1/models", list_models), Route("/v1/chat/completions", complete, methods=["POST"])]
    )


def _completion(body: Json, reply: Json) -> Json:
    finish_reason = reply.pop("finish_reason", "tool_calls" if reply.get("tool_calls") else "stop")
    prompt_ids, reply_ids = byte_ids(body["messages"]), byte_ids([reply])
    choice: Json = {"index": 0, "message": reply, "finish_reason": finish_reason, "logprobs": None}
    engine: Json = {}
    if body.get("return_token_ids"):
        choice["token_ids"], engine["prompt_token_ids"] = reply_ids, prompt_ids
    if body.get("logprobs"):  # every byte has probability 1
        choice["logprobs"] = {"content": [{"token": chr(i), "logprob": 0.0, "top_logprobs": []} for i in reply_ids]}
    return {
        "id": f"chatcmpl-{random.getrandbits(64):016x}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body["model"],
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(prompt_ids),
            "completion_tokens": len(reply_ids),
            "total_tokens": len(prompt_ids) + len(reply_ids),
        },
        **engine,
    }


def byte_ids(history: Sequence[Json]) -> list[int]:
    """One id per byte; the ids of a continued conversation begin with these."""
    lines = [
        [
            m["role"],
            m.get("content") or "",
            [[c["function"]["name"], c["function"]["arguments"]] for c in m.get("tool_calls") or ()],
        ]
        for m in history
    ]
    return list("".join(json.dumps(line) + "\n" for line in lines).encode())


def _turn(history: list[Json]) -> int:
    return sum(message["role"] == "assistant" for message in history)


@contextmanager
def serve(endpoint: Any, port: int = 0) -> Iterator[str]:
    """Serve on loopback in a thread of this process while the context lasts; it yields the base URL.

    Args:
        endpoint: an ASGI application.
        port: 0 picks a free one.
    Raises:
        OSError: the port is taken.
    """
    with socket.create_server(("127.0.0.1", port)) as listener:
        http = GuardedHttpProtocol if isinstance(endpoint, RequestGuard) else LimitedHttpProtocol
        server = uvicorn.Server(uvicorn.Config(endpoint, http=http, log_level="warning", timeout_keep_alive=60))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join(timeout=10)


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(prog="python -m sql_agent.oracle", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", "--val-file", type=Path, required=True, help="task file with the reference answers")
    parser.add_argument(
        "--protocol", choices=tuple(PROTOCOLS), default="fc", help="protocol of its replies (default fc)"
    )
    parser.add_argument("--port", type=port_number, default=8900, help="port on loopback (default 8900, 0: a free one)")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="delay of each answer, in milliseconds")
    args = parser.parse_args(argv)
    try:
        endpoint = app(replay(load_tasks(args.tasks), args.protocol), latency_s=args.latency_ms / 1000)
    except ValueError as failure:
        raise SystemExit(f"--tasks: {failure}") from failure
    try:
        with serve(endpoint, args.port) as base_url:
            print(f"serving the model {MODEL!r} at {base_url}; Ctrl-C ends it", flush=True)
            threading.Event().wait()
    except OSError as failure:
        raise SystemExit(
            f"--port {args.port}: {failure.strerror or failure}; choose another, 0 takes a free one"
        ) from failure
    except KeyboardInterrupt:
        print("stopped")


if __name__ == "__main__":
    execute(main)
