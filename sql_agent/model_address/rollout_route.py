"""The LLM proxy's route for rollouts: it forwards an agent's calls of the policy and passes on each answered turn.

A rollout's calls are forwarded unchanged, except that they ask for token ids and log-probs. A call whose client
disconnects is cancelled. A streamed call is collected first and then streamed, because vLLM's streams carry no ids. A
user's own agent calls a signed address (`signed_address`). The address says how its rollout samples. The conversations
are kept (`call_log`) until the runner asks for them at `ended` and shows the run's token; later calls are refused. A
call that could not fit the context is refused before it is parsed (`request_limits`). The store is
elsewhere (`llm_proxy`), so that `sql_agent.evaluate` can serve an agent without it.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import unquote

import aiohttp
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from agentgrpo.http_protocol import read_body, unless_gone
from agentgrpo.json_text import JsonObject, parse_json
from sql_agent.model_address import weight_sync_pause
from sql_agent.model_address.call_log import KEPT, CallCounter, CallLog, policy_request, stream_of
from sql_agent.model_address.request_guard import RUN_TOKEN, RunRequestGuard
from sql_agent.model_address.request_limits import RequestLimits, error_body
from sql_agent.model_address.signed_address import AGENT_HEADER, RolloutSampling, read_signed
from sql_agent.model_servers.ask import ChatServers
from sql_agent.model_servers.refusals import UNREAD_CALL, error_text
from sql_agent.model_servers.turns import with_turn, without_tokens

_ROLLOUT_PATH = re.compile(r"/rollout/([^/]+)/attempt/([^/]+)(?:/v1)?/(.+)")
_ENDED = "ended"
# What the holder of a signed address may ask, and by which methods.
_RESPONSES = "responses"
_OF_SIGNATURE = {"chat/completions": ("POST",), _RESPONSES: ("POST",), "models": ("GET", "HEAD")}
# What the run's own processes ask here.
_OF_TOKEN = {"chat/completions": ("POST",), _ENDED: ("POST",)}
# Calls of one rollout that may be open at a time; each holds two of the process's files, often 1,024 in all.
MAX_OPEN_CALLS = 256
# A weight sync ends every open call; vLLM's reply says so in these words, which no text inside a JSON string can spell.
ABORTED = b'"finish_reason":"abort"'
# Times that a call is asked again; a weight sync ends it once at most, and there is one a train step.
MAX_ASKED_AGAIN = 16
# Seconds that the end of a rollout waits until the spans of its calls are in the store.
WRITTEN_S = 20.0


@dataclass(frozen=True)
class RecordedCall:
    rollout_id: str
    attempt_id: str
    sequence_id: int
    answer: dict[str, Any]
    """The model server's chat completion, with token ids and log-probs."""
    started: float
    agent: str | None
    """The name of the agent that made the call, if it sent one."""
    asked_again: int = 0
    """Times that it was asked again, because new weights ended it."""


@dataclass
class _Attempt:
    log: CallLog = field(default_factory=CallLog)
    servers: ChatServers = field(default_factory=ChatServers)
    """What servers refused of this rollout's calls. Its agent may write anything into them, so others learn nothing."""
    open_calls: int = 0
    asking: set[asyncio.Future[Any]] = field(default_factory=set)
    writing: set[asyncio.Future[None]] = field(default_factory=set)
    ended: bool = False


class RolloutRoute:
    """Serves `/rollout/{id}/attempt/{id}/chat/completions`, signed or not, `responses` and `models` for agents, `ended`
    for the runner, `weight_sync_pause.PATH` for trainer and runner, and passes every other path without a signature to
    `app`, which serves none in a run.

    It replaces agent-lightning's `RolloutAttemptMiddleware`, which asks the store for every sequence id. One proxy
    process serves a run, so counting here gives the same numbers. The store adopts the highest number it sees.
    """

    servers: ClassVar[dict[str, str]] = {}
    """Base URLs up to `/v1`, by the model name that agents ask for."""
    served_model: ClassVar[str] = ""
    """The name under which every one of these servers serves the policy."""
    headers: ClassVar[dict[str, str]] = {}
    """Headers of each request to the model servers."""
    timeout_s: ClassVar[float] = 120.0
    limits: ClassVar[RequestLimits] = RequestLimits()
    write: ClassVar[Callable[[RecordedCall], Awaitable[None]] | None] = None
    """Saves a turn. None: nothing trains on the turns, and the servers are not asked for ids and log-probs."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._calls, self._chat_servers, self._holds = (
            CallCounter(),
            ChatServers(),
            weight_sync_pause.WeightSyncPauses(),
        )
        self._session: aiohttp.ClientSession | None = None
        self._writing: set[asyncio.Future[None]] = set()
        # The newest attempts; the entry of an ended one stays, so that later calls of it are refused.
        self._attempts: OrderedDict[tuple[str, str], _Attempt] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, sampling = str(scope.get("path", "")), None
        if scope["type"] == "http" and (signed := read_signed(path, os.environ[RUN_TOKEN])):
            sampling, path = signed
        match = _ROLLOUT_PATH.fullmatch(path) if scope["type"] == "http" else None
        if scope["type"] == "http" and sampling is None and path == weight_sync_pause.PATH:
            await (await self._held(Request(scope, receive)))(scope, receive, send)
            return
        methods = (_OF_TOKEN if sampling is None else _OF_SIGNATURE).get(match[3] if match else "")
        if sampling is None and methods is None:
            await self.app(scope, receive, send)
            return
        if match is None or methods is None:  # the signature is for these alone
            asked = f"/{match[3]}" if match else path
            response = JSONResponse(
                _error(f"{asked} is not served: only /chat/completions and /responses can be trained"), 404
            )
        elif scope["method"] not in methods:
            response = JSONResponse(_error(f"ask by {methods[0]}"), 405, {"Allow": ", ".join(methods)})
        else:
            response = await self._respond(match, sampling, Request(scope, receive))
        if response is not None:
            await response(scope, receive, send)

    async def _respond(self, match: re.Match[str], sampling: RolloutSampling | None, http: Request) -> Response | None:
        if match[3] == "models":
            served = [{"id": name, "object": "model", "owned_by": "agentgrpo"} for name in self.servers]
            return JSONResponse({"object": "list", "data": served})
        if match[3] == _ENDED:
            return await self._end(self._attempt(match[1], match[2]))
        if sampling is None:
            return await self._chat(match, None, None, http)
        attempt = self._attempt(match[1], match[2])
        if attempt.open_calls >= MAX_OPEN_CALLS:
            words = f"this rollout has {MAX_OPEN_CALLS} calls open; ask again when one of them is answered"
            return JSONResponse(_error(words), 429, {"Connection": "close"})
        attempt.open_calls += 1
        try:
            return await self._chat(match, sampling, attempt, http)
        finally:
            attempt.open_calls -= 1

    async def _held(self, http: Request) -> Response:
        if http.method == "POST":
            self._holds.set(bool((await http.json())["held"]))
        return JSONResponse({"seconds": self._holds.seconds(float(http.query_params.get("seconds", 0)))})

    async def _held_s(self, of_last_s: float) -> float:
        return self._holds.seconds(of_last_s)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _chat(
        self,
        match: re.Match[str],
        sampling: RolloutSampling | None,
        attempt: _Attempt | None,
        http: Request,
    ) -> Response | None:
        rollout_id, attempt_id, api = match.groups()
        if attempt is not None and attempt.ended:
            return JSONResponse(_error("this rollout has ended; nothing that it asks now would be trained"), 410)
        sequence_id = self._calls.next(rollout_id, attempt_id)
        started = time.time()
        try:
            body = await read_body(http.receive, self.limits.body_bytes, self.limits.too_long)
            if body is None:
                return None
            given = request = self.limits.parse(body)
            if api == _RESPONSES:
                from sql_agent.model_address import responses_api  # openai-agents takes a second, and few need it

                request = responses_api.chat_request(given)
            self.limits.check(request)
            asked = request if sampling is None else policy_request(request, sampling, sequence_id)
            stream = bool(asked.pop("stream", False))
            usage = bool((asked.pop("stream_options", None) or {}).get("include_usage"))
            writes_itself = bool(asked.get("return_token_ids"))
        except (ValueError, AttributeError, TypeError) as error:
            refusal = error_body(error)
            if attempt is not None:
                attempt.log.refused = refusal["error"]["message"]
            return JSONResponse(refusal, 400, {"Connection": "close"})  # the rest of the body may follow
        work = asyncio.ensure_future(self._ask(asked, self._chat_servers if attempt is None else attempt.servers))
        if attempt is not None:
            attempt.asking.add(work)
            work.add_done_callback(attempt.asking.discard)
        answered = await unless_gone(work, http.receive)
        if attempt is not None and attempt.ended:
            return JSONResponse(_error("this rollout ended while its call was open"), 410)
        if answered is None:
            return None
        status, answer, again = answered
        if status == 200 and writes_itself:
            answer = with_turn(answer, asked_again=again)
        elif status == 200:
            agent = unquote(http.headers.get(AGENT_HEADER, "")) or None
            self._keep(RecordedCall(rollout_id, attempt_id, sequence_id, answer, started, agent, again), attempt)
            answer = without_tokens(answer)
        if attempt is not None:
            _note(attempt.log, request, status, answer)
        if status == 200 and api == _RESPONSES:
            from sql_agent.model_address import responses_api

            if not stream:
                return JSONResponse(responses_api.response_of(given, answer))
            events = responses_api.events_of(given, answer)
            return StreamingResponse(events, media_type="text/event-stream")
        if status == 200 and stream:
            return StreamingResponse(stream_of(answer, usage=usage), media_type="text/event-stream")
        return JSONResponse(answer, status)

    def _keep(self, turn: RecordedCall, attempt: _Attempt | None) -> None:
        write = type(self).write
        if write is None:
            return
        writing = asyncio.ensure_future(write(turn))
        for tasks in (self._writing, *([attempt.writing] if attempt else [])):
            tasks.add(writing)
            writing.add_done_callback(tasks.discard)

    async def _end(self, attempt: _Attempt) -> JSONResponse:
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

    async def _ask(self, request: dict[str, Any], servers: ChatServers) -> tuple[int, dict[str, Any], int]:
        """Status, answer, and how often the call was asked again because new weights ended it."""
        url = self.servers.get(request.get("model", ""))
        if url is None:
            return 404, _error(f"the policy is served as {', '.join(self.servers)}, not as {request.get('model')!r}"), 0
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None)  # a call's deadline stands below
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        session = self._session
        request |= {"model": self.served_model}
        if type(self).write is not None:
            request |= {"return_token_ids": True, "logprobs": True}
        again = 0

        async def send(request: JsonObject) -> tuple[int, bytes]:
            nonlocal again
            while True:
                status, body = await self._post(session, url, request)
                if ABORTED not in body or again >= MAX_ASKED_AGAIN:
                    return status, body
                again += 1  # the server holds it until it has the new weights, so no reply mixes weights

        try:
            async with weight_sync_pause.deadline(self.timeout_s, self._held_s):
                status, answer = await servers.ask(url, request, send)
        except (aiohttp.ClientError, TimeoutError) as error:
            return 502, _error(f"the model server at {url} did not answer: {type(error).__name__}: {error}"), again
        return status, _readable(answer) if isinstance(answer, bytes) else answer, again

    async def _post(self, session: aiohttp.ClientSession, url: str, request: JsonObject) -> tuple[int, bytes]:
        async with session.post(f"{url}/chat/completions", json=request, headers=self.headers) as response:
            return response.status, await response.read()


class ProxyRequestGuard(RunRequestGuard):
    """Lets a request pass without the run's token if its address is signed with that token."""

    def _needs_no_token(self, scope: Scope) -> bool:
        return read_signed(scope["path"], os.environ[RUN_TOKEN]) is not None or super()._needs_no_token(scope)


def _note(log: CallLog, request: dict[str, Any], status: int, answer: dict[str, Any]) -> None:
    if status == 200:
        log.add(request["messages"], answer)
    elif status >= 500:
        log.fail(request["messages"], str(answer))
    else:
        log.refused = str(answer)
        error = answer.get("error")
        log.unread += isinstance(error, dict) and error.get("code") == UNREAD_CALL


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "llm_proxy"}}


def _readable(body: bytes) -> dict[str, object]:
    # Some servers write an error as a page.
    try:
        said = parse_json(body)
    except ValueError:
        said = None
    return said if isinstance(said, dict) else _error(error_text(body))
