"""agent-lightning's LLM proxy in a process of its own, set up to cost little and to record what training needs.

A rollout's calls of the policy are forwarded unchanged, with a request for token ids and log-probs added, and each
leaves one span, named and laid out as `LlmProxyTraceToTriplet` reads it. They bypass LiteLLM, which takes 9 to 14 ms of
CPU a call (measured) and has nothing to translate between two OpenAI-compatible ends; all other calls go through it.
Sequence ids are counted here, without asking the store. A call whose client disconnects is cancelled. A stream is
collected first and then written, since a streamed reply of vLLM has no ids.

An agent of the user's own asks under an address that is signed (`signed_address`). Its rollout samples as the address
says; what its calls said is kept (`call_log`) until the runner asks for it at `ended`, after which none is answered.

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
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar
from urllib.parse import unquote

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
from starlette.responses import JSONResponse, StreamingResponse

from sql_agent.lightning.call_counter import KEPT, CallCounter
from sql_agent.lightning.call_log import CallLog
from sql_agent.lightning.policy_request import policy_request, stream_of
from sql_agent.lightning.request_guard import RUN_TOKEN, RunRequestGuard, authorization
from sql_agent.lightning.signed_address import AGENT_HEADER, RolloutSampling, read_signed
from sql_agent.lightning.store import PatientStore
from sql_agent.rollouts.stitch import AGENT, TURN_SPAN, turn_attributes

logger = logging.getLogger(__name__)

T = TypeVar("T")
_ROLLOUT_PATH = re.compile(r"/rollout/([^/]+)/attempt/([^/]+)(?:/v1)?/(.+)")
WRITTEN_S = 20.0
"""How long the end of a rollout waits for the spans of its calls to be in the store."""


@dataclass
class _Attempt:
    """A rollout of an agent of the user's own."""

    log: CallLog = field(default_factory=CallLog)
    asking: set[asyncio.Future[Any]] = field(default_factory=set)
    writing: set[asyncio.Task[None]] = field(default_factory=set)
    ended: bool = False


class RolloutRoute:
    """Serves `/rollout/{id}/attempt/{id}/chat/completions`, with and without a signature before it; every other path
    goes to LiteLLM.

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
        self._attempts: OrderedDict[tuple[str, str], _Attempt] = OrderedDict()
        """Those that were played last; the entry of one that has ended says that it has."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        path, sampling = str(scope.get("path", "")), None
        if scope["type"] == "http" and (signed := read_signed(path, os.environ[RUN_TOKEN])):
            sampling, path = signed
        match = _ROLLOUT_PATH.fullmatch(path) if scope["type"] == "http" else None
        if match is None and sampling is not None:  # the signature is for its rollout alone
            await JSONResponse(_error("a rollout has no such address"), 404)(scope, receive, send)
            return
        if match is None or (sampling is None and match[3] != "chat/completions"):
            await self.app(scope, receive, send)
            return
        http = Request(scope, receive)
        body = await http.body()
        if match[3] == "chat/completions":
            agent = unquote(http.headers.get(AGENT_HEADER, "")) or None
            response = await self._chat(match[1], match[2], sampling, body, receive, agent)
        else:
            response = await self._other(match[3], self._attempt(match[1], match[2]))
        if response is not None:
            await response(scope, receive, send)

    async def _chat(
        self,
        rollout_id: str,
        attempt_id: str,
        sampling: RolloutSampling | None,
        body: bytes,
        receive: Any,
        agent: str | None,
    ) -> JSONResponse | StreamingResponse | None:
        """The answer to a call; None if its client is gone."""
        attempt = None if sampling is None else self._attempt(rollout_id, attempt_id)
        if attempt is not None and attempt.ended:
            return JSONResponse(_error("this rollout has ended; nothing that it asks now would be trained"), 410)
        sequence_id = self._calls.next(rollout_id, attempt_id)
        started = time.time()
        try:
            request = json.loads(body)
            asked = request if sampling is None else policy_request(request, sampling, sequence_id)
            stream = bool(asked.pop("stream", False))
            usage = bool((asked.pop("stream_options", None) or {}).get("include_usage"))
        except (ValueError, AttributeError, TypeError) as error:
            return JSONResponse(_error(f"the request does not fit: {error}"), 400)
        work = asyncio.ensure_future(self._ask(asked))
        if attempt is not None:
            attempt.asking.add(work)
            work.add_done_callback(attempt.asking.discard)
        answered = await unless_gone(work, receive)
        if attempt is not None and attempt.ended:
            return JSONResponse(_error("this rollout ended while its call was open"), 410)
        if answered is None:
            return None
        status, answer = answered
        if attempt is not None and status == 200 and answer["choices"][0].get("finish_reason") == "abort":
            status, answer = 502, _error("the model server broke its reply off (finish_reason abort); look at its log")
        if status == 200:
            self._trace(turn_span(answer, started, rollout_id, attempt_id, sequence_id), agent, attempt)
            answer = without_tokens(answer)
        if attempt is not None:
            _note(attempt.log, request, status, answer)
        if status == 200 and stream:
            return StreamingResponse(stream_of(answer, usage=usage), media_type="text/event-stream")
        return JSONResponse(answer, status)

    def _trace(self, span: Span, agent: str | None, attempt: _Attempt | None) -> None:
        if agent is not None:
            span.attributes[AGENT] = agent
        writing = asyncio.create_task(_write(span))
        for tasks in (self._writing, *([attempt.writing] if attempt else [])):
            tasks.add(writing)
            writing.add_done_callback(tasks.discard)

    async def _other(self, path: str, attempt: _Attempt) -> JSONResponse:
        if path == "models":
            served = [{"id": name, "object": "model", "owned_by": "agentgrpo"} for name in self.servers]
            return JSONResponse({"object": "list", "data": served})
        if path != "ended":
            return JSONResponse(_error(f"/{path} is not served: only calls of /chat/completions can be trained"), 404)
        attempt.ended = True
        for asking in list(attempt.asking):
            asking.cancel()
        if attempt.writing:
            await asyncio.wait(attempt.writing, timeout=WRITTEN_S)
        log, attempt.log = attempt.log, CallLog()
        return JSONResponse(log.to_dict())

    def _attempt(self, rollout_id: str, attempt_id: str) -> _Attempt:
        attempt = self._attempts.setdefault((rollout_id, attempt_id), _Attempt())
        self._attempts.move_to_end((rollout_id, attempt_id))
        if len(self._attempts) > KEPT:
            self._attempts.popitem(last=False)
        return attempt

    async def _ask(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and answer of the policy's server."""
        url = self.servers.get(request.get("model", ""))
        if url is None:
            return 404, _error(f"the policy is served as {', '.join(self.servers)}, not as {request.get('model')!r}")
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


class ProxyRequestGuard(RunRequestGuard):
    """Lets a request pass without the run's token where its address is signed with it."""

    def _needs_no_token(self, scope: dict[str, Any]) -> bool:
        return read_signed(scope["path"], os.environ[RUN_TOKEN]) is not None or super()._needs_no_token(scope)


def _note(log: CallLog, request: dict[str, Any], status: int, answer: dict[str, Any]) -> None:
    if status == 200:
        log.add(request["messages"], answer)
    elif status >= 500:
        log.fail(request["messages"], str(answer))
    else:
        log.refused = str(answer)


async def unless_gone(work: Coroutine[Any, Any, T] | asyncio.Future[T], receive: Any) -> T | None:
    """The result of `work`; None if it was cancelled, or if the client disconnects first, and it is cancelled then.

    That closes the connection to the model server, and vLLM aborts a request whose connection is closed.

    Args:
        receive: the ASGI request's, after its body was read: what comes next is its end.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() and not task.cancelled() else None
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
        middlewares=[RolloutRoute, ProxyRequestGuard],  # type: ignore[list-item]
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
