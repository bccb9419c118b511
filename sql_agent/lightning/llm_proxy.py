"""agent-lightning's LLM proxy in a process of its own, set up to cost little and to record what training needs.

A rollout's calls of the policy are forwarded unchanged, with a request for token ids and log-probs added, and each
leaves one span, named and laid out as `LlmProxyTraceToTriplet` reads it. They bypass LiteLLM, which takes 9 to 14 ms of
CPU a call (measured) and has nothing to translate between two OpenAI-compatible ends; all other calls go through it.
Sequence ids are counted here, without asking the store. A call whose client disconnects is cancelled.

    python -m sql_agent.lightning.llm_proxy --store http://127.0.0.1:9999 --port 0

accepts the token in AGENTGRPO_TOKEN and sends it to the model servers. It reads one JSON line from standard input,
`{"model": NAME, "backends": [URL, ...]}`, so its imports overlap with the start of those servers; then it writes one
line, `{"url": ...}`, and ends when standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import sys
import time
from collections.abc import Coroutine
from typing import Any, ClassVar, TypeVar

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from core.machine import free_port, port_number
from core.processes import Events, end_with_parent

if __name__ == "__main__":
    end_with_parent()  # before the imports below, which take ten seconds

import agentlightning as agl
import aiohttp
from agentlightning.llm_proxy import get_active_llm_proxy
from agentlightning.types import Span, SpanCoreFields, TraceStatus
from agentlightning.utils.server_launcher import PythonServerLauncherArgs
from starlette.requests import Request
from starlette.responses import JSONResponse

from sql_agent.lightning.call_counter import CallCounter
from sql_agent.lightning.request_guard import RUN_TOKEN, RunRequestGuard, authorization
from sql_agent.lightning.store import PatientStore
from sql_agent.rollouts.stitch import TURN_SPAN, turn_attributes

logger = logging.getLogger(__name__)

T = TypeVar("T")
_ROLLOUT_PATH = re.compile(r"/rollout/([^/]+)/attempt/([^/]+)(?:/v1)?/chat/completions")


class RolloutRoute:
    """Serves `/rollout/{id}/attempt/{id}/chat/completions`; every other path goes to LiteLLM.

    It replaces agent-lightning's `RolloutAttemptMiddleware`, which asks the store for every sequence id. One proxy
    process serves a run, so counting here gives the same numbers; the store adopts the highest number it sees.
    """

    servers: ClassVar[dict[str, str]] = {}
    """Base URL up to `/v1` by the name agents ask for."""
    served_model: ClassVar[str] = ""
    """The name under which every one of these servers serves the policy."""
    timeout_s: ClassVar[float] = 120.0

    def __init__(self, app: Any) -> None:
        self.app = app
        self._calls = CallCounter()
        self._session: aiohttp.ClientSession | None = None
        self._writing: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        match = _ROLLOUT_PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if match is None:
            await self.app(scope, receive, send)
            return
        rollout_id, attempt_id = match.groups()
        sequence_id = self._calls.next(rollout_id, attempt_id)
        started = time.time()
        answered = await unless_gone(self._ask(await Request(scope, receive).body()), receive)
        if answered is None:
            return
        status, answer = answered
        if status == 200:
            span = turn_span(answer, started, rollout_id, attempt_id, sequence_id)
            writing = asyncio.create_task(_write(span))
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)
            answer = without_tokens(answer)
        await JSONResponse(answer, status)(scope, receive, send)

    async def _ask(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Status and answer of the policy's server."""
        try:
            request = json.loads(body)
            url = self.servers.get(request.get("model"))
        except (ValueError, AttributeError) as error:
            return 400, _error(f"the request is no JSON object: {error}")
        if url is None:
            return 404, _error(f"the policy is served as {', '.join(self.servers)}, not as {request.get('model')!r}")
        if request.get("stream"):
            return 400, _error("streams carry no token ids to train on; ask without stream")
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self.timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        request |= {"model": self.served_model, "return_token_ids": True, "logprobs": True}
        try:
            asked = self._session.post(f"{url}/chat/completions", json=request, headers=authorization(RUN_TOKEN))
            async with asked as response:
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return 502, _error(f"the model server at {url} did not answer: {type(error).__name__}: {error}")
        if response.status == 200 and not (isinstance(answer, dict) and answer.get("choices")):
            return 502, _error(f"the model server at {url} answered without a reply: {str(answer)[:200]}")
        return response.status, answer


async def unless_gone(work: Coroutine[Any, Any, T], receive: Any) -> T | None:
    """The result of `work`; None if the client disconnects first, and `work` is cancelled then.

    That closes the connection to the model server, and vLLM aborts a request whose connection is closed.

    Args:
        receive: the ASGI request's, after its body was read: what comes next is its end.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "llm_proxy"}}


def turn_span(response: dict[str, Any], started: float, rollout_id: str, attempt_id: str, sequence_id: int) -> Span:
    """The span of one model call that has just ended."""
    fields = SpanCoreFields(
        name=TURN_SPAN,
        attributes=turn_attributes(response),
        start_time=started,
        end_time=time.time(),
        status=TraceStatus(status_code="OK"),
    )
    return Span.from_core_fields(fields, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=sequence_id)


def without_tokens(response: dict[str, Any]) -> dict[str, Any]:
    """The answer without ids and log-probs: the agent did not ask for them, and parsing them costs milliseconds."""
    choices = [{**choice, "logprobs": None, "token_ids": None} for choice in response["choices"]]
    return {**response, "choices": choices, "prompt_token_ids": None, "prompt_logprobs": None}


async def _write(span: Span) -> None:
    store = get_active_llm_proxy().get_store()
    assert store is not None
    try:
        await store.add_span(span)
    except Exception:  # the rollout manager will miss the span and count the rollout as lost
        logger.exception("the span of rollout %s, call %d is lost", span.rollout_id, span.sequence_id)


def model_list(model: str, servers: dict[str, str], timeout_s: float) -> list[dict[str, Any]]:
    """LiteLLM's entries for the same servers, for calls that belong to no rollout."""
    return [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"hosted_vllm/{model}",
                "api_base": f"{url}/",
                "api_key": f"os.environ/{RUN_TOKEN}",  # LiteLLM looks there: its config is a file
                "timeout": timeout_s,
            },
        }
        for name, url in servers.items()
    ]


async def serve(store_url: str, port: int, timeout_s: float, events: Events) -> None:
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    line = await stdin.readline()
    if not line:
        return
    order = json.loads(line)
    # each server has its own name, so that a rollout can stay with one
    servers = {f"policy-{i}": f"{url}/v1" for i, url in enumerate(order["backends"])}
    RolloutRoute.servers, RolloutRoute.served_model, RolloutRoute.timeout_s = servers, order["model"], timeout_s
    proxy = agl.LLMProxy(
        store=PatientStore(store_url),
        model_list=model_list(order["model"], servers, timeout_s),  # type: ignore[arg-type]
        litellm_config={"litellm_settings": {"num_retries": 0, "telemetry": False}},
        launcher_args=PythonServerLauncherArgs(
            host="127.0.0.1",
            access_host="127.0.0.1",
            port=port or free_port(),
            launch_mode="thread",
            healthcheck_url="/health/liveliness",
        ),
        middlewares=[RolloutRoute, RunRequestGuard],  # type: ignore[list-item]
        callbacks=[],
    )
    await proxy.start()
    events.emit({"url": f"http://127.0.0.1:{proxy.server_launcher_args.port}"})
    await stdin.read()  # until whoever started us is gone
    await proxy.stop()


def main() -> None:
    events = Events()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", required=True, help="address of the agent-lightning store")
    parser.add_argument("--port", type=port_number, default=0, help="port on loopback; 0 picks a free one")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="longest model call")
    args = parser.parse_args()
    asyncio.run(serve(args.store, args.port, args.timeout_s, events))


if __name__ == "__main__":
    main()
