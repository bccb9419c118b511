"""Plays one task of an environment with openai-agents' Runner, against any OpenAI-compatible endpoint.

The environment's episodes keep the rules. If it offers tools, the Runner calls them; without tools (DB-Bench's `text`
and `lab`) the conversation is plain chat. Each reply counts as one turn. Everything about training is left out.
"""

from __future__ import annotations

import asyncio
import functools
import random
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import openai.resources  # noqa: F401  otherwise the client's first call imports it, which takes half a second
from agents import (
    Agent,
    AgentsException,
    FunctionTool,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    OpenAIChatCompletionsModel,
    OpenAIProvider,
    RunConfig,
    Runner,
    ToolExecutionConfig,
    ToolsToFinalOutputResult,
    UserError,
    set_tracing_disabled,
)
from agents.tool_context import ToolContext
from openai import APIError, APIStatusError, AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from sql_agent.datatypes import ROW_END, RolloutRecord
from sql_agent.environments.base import EnvironmentTask, World
from sql_agent.model_address.weight_sync_pause import LONGEST_HOLD_S, HeldS, deadline
from sql_agent.model_servers.ask import failure_text
from sql_agent.model_servers.chat_client import ChatClient
from sql_agent.model_servers.refusals import CONTEXT_FULL, REFUSED, TOO_LARGE, UNREAD_CALL
from sql_agent.play.state import Call, Play
from sql_agent.settings.groups import MAX_RETRIES, AgentConfig

set_tracing_disabled(True)  # otherwise openai-agents uploads every run to its vendor

T = TypeVar("T")
Json = dict[str, Any]


async def run_rollout(
    task: EnvironmentTask,
    *,
    environment: World,
    base_url: str,
    model: str,
    config: AgentConfig,
    api_key: str = "-",
    extra_body: Json | None = None,
    on_reply: Callable[[ChatCompletion], None] | None = None,
    seed: int | None = None,
    max_response_tokens: int | None = None,
    held_s: HeldS | None = None,
) -> RolloutRecord:
    """Play one task from its first prompt to a named end, and judge the result.

    Args:
        task: the task to solve; only the judge sees its gold answer.
        environment: the task's environment, which opens the episode.
        base_url: an OpenAI-compatible endpoint up to and including `/v1`.
        model: the model's name at that endpoint.
        extra_body: further fields of each request, for example `{"return_token_ids": True}` for vLLM.
        on_reply: called with each reply of the endpoint, with all fields that it has (`model_servers.turns`).
        seed: the sampler's; the same seed gives the same rollout from an endpoint that computes the same logits.
        max_response_tokens: limit of tokens after the first prompt, tool results included. verl's vLLM shortens the
            reply that would exceed it (`sql_agent.verl_side.plugin.model_server`); other servers ignore it.
        held_s: says what the deadline of the rollout does not count. The endpoint then keeps that of a call, the LLM
            proxy for example.
    Returns:
        The record. An end that the policy caused is judged. Every other end has `Score(None, reason)`: a model or a
        database cannot be reached (`model_unavailable`, `db_unavailable`); a deadline passed while a call of either
        was open, or no call (`model_deadline`, `db_deadline`, `rollout_deadline`); a table cannot be made
        (`table_error`); the rollout ended before the first reply (`no_reply`); the environment has no judge
        (`no_judge`); the environment's code raised or hung (stop reason `environment_error`, with its own reason).
    """
    rollout = _Served(task, environment, config, on_reply)
    try:
        with rollout.lose_on_failure():
            try:
                async with deadline(config.rollout_timeout_s, held_s):
                    await rollout.blocking(rollout.open)
                    turn_s = config.turn_timeout_s + (LONGEST_HOLD_S if held_s else 0.0)
                    at = _Address(base_url.rstrip("/"), model, _client(base_url, api_key), turn_s)
                    await _play(rollout, _PolicyModel(at, rollout, extra_body, seed, max_response_tokens))
            except TimeoutError:
                rollout.lose_at_deadline(rollout.waits_for, config.rollout_timeout_s)
            except (APIError, ModelBehaviorError, ModelRefusalError, UnicodeEncodeError) as failure:
                rollout.fail(failure)
            await rollout.blocking(rollout.judge)
            await rollout.blocking(rollout.compare)
    finally:
        await rollout.close_in_thread()
    return rollout.record()


def size_thread_pool(rollouts: int) -> None:
    # database calls wait in threads, one for each rollout; by default there are only four more threads than cores
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=rollouts))


class _CutReply(AgentsException):
    """A reply reached its token limit, or the context is full."""


class _Served(Play):
    """Plays one rollout against a model server. The Runner carries it as its context."""

    def __init__(
        self,
        task: EnvironmentTask,
        environment: World,
        config: AgentConfig,
        on_reply: Callable[[ChatCompletion], None] | None,
    ) -> None:
        super().__init__(task, environment, config)
        self._on_reply = on_reply
        self._running: asyncio.Future[Any] | None = None
        self.waits_for: Call = "no call"
        """The call that is open; it stays set when a deadline interrupts it."""

    def record_completion(self, completion: ChatCompletion) -> None:
        """The reply is kept unchanged, so that the next request contains it unchanged."""
        if self._on_reply is not None:
            self._on_reply(completion)
        if completion.usage is not None:
            self.prompt_tokens += completion.usage.prompt_tokens
            details = completion.usage.prompt_tokens_details
            self.cached_tokens += (details and details.cached_tokens) or 0
            self.completion_tokens += completion.usage.completion_tokens
        reply = completion.choices[0].message
        if not self.environment.tools:
            reply.tool_calls = None  # no tools were offered
        self.record_reply(_assistant_message(reply), cut=completion.choices[0].finish_reason == "length")
        # the Runner cannot handle an empty reply and raises on a refusal, or on what a provider's filter withheld; here
        # these are replies without a call
        reply.content, reply.refusal = reply.content or "", None
        if completion.choices[0].finish_reason == "content_filter":
            completion.choices[0].finish_reason = "stop"

    async def answer(self) -> None:
        """Let the episode answer the last reply, in the reply's order; the Runner's would put unknown tools last."""
        while self.unanswered:
            # recorded here and not in the thread: what a thread brings after the deadline is no part of the rollout
            self.record_answer(await self.blocking(self.next_answer))

    async def result_of(self, call_id: str) -> str:
        """The result of one call; "" if it did not run, because the episode had ended."""
        await self.answer()
        results = (m["content"] for m in reversed(self.messages) if m.get("tool_call_id") == call_id)
        return next(results, "")

    def fail(self, failure: Exception) -> None:
        """End the rollout for a failed request: by the policy's fault, or lost by the endpoint's.

        The policy's are a full context, or a request that could not fit any (our servers do not read it: its own calls
        made the results so long), malformed calls in it (a chat template may fail on arguments that are not an
        object), a call that the endpoint could not parse, and half a surrogate pair, which no UTF-8 can hold.
        """
        self.error = failure_text(failure)
        refused = isinstance(failure, APIStatusError) and failure.status_code in REFUSED
        code = failure.code if isinstance(failure, APIError) else None
        if isinstance(failure, UnicodeEncodeError):  # without a reply the task's own text holds it
            self.stop = "malformed" if self.num_turns else "environment_error"
        elif refused and code in (CONTEXT_FULL, TOO_LARGE):
            self.stop = "max_tokens"
        elif refused and (code == UNREAD_CALL or self.malformed_calls):
            self.stop = "malformed"
        else:
            self.lose("model_unavailable", "model_unavailable", self.error)

    async def blocking(self, function: Callable[[], T]) -> T:
        """Run database work in a thread, one piece at a time.

        A deadline ends the waiting but not the thread; the next piece waits for that thread, at most one statement's
        timeout.
        """
        self.waits_for = "a database call"
        await self._idle()
        self._running = asyncio.ensure_future(asyncio.to_thread(function))
        result = await asyncio.shield(self._running)
        self.waits_for = "no call"
        return result

    async def _idle(self) -> None:
        if self._running is not None and not self._running.done():
            await asyncio.wait([self._running])

    async def close_in_thread(self) -> None:
        await self._idle()
        if self._episode is not None:
            await asyncio.to_thread(self.close)


@dataclass(frozen=True)
class _Address:
    """Where and how a rollout calls its model."""

    url: str
    model: str
    client: AsyncOpenAI
    turn_s: float


class _PolicyModel(OpenAIChatCompletionsModel):
    """Replaces the chat-completions model of openai-agents and sends the rollout's own messages.

    The Runner's items do not keep why a reply ended, and they change the messages (results of unknown tools come last,
    empty arguments become `{}`, empty replies vanish). A policy is trained on its own tokens, so its turns are sent
    unchanged.
    """

    def __init__(
        self,
        address: _Address,
        rollout: _Served,
        extra_body: Json | None,
        seed: int | None,
        max_response_tokens: int | None,
    ) -> None:
        super().__init__(model=address.model, openai_client=address.client)
        self._address, self._rollout, self._config = address, rollout, rollout.limits
        self._extra_body = extra_body or {}
        self._max_response_tokens = max_response_tokens
        self._seeds = None if seed is None else random.Random(seed)

    async def _fetch_response(self, *_args: Any, **_kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._rollout.waits_for = "a model call"
        tools = self._rollout.environment.tools
        body: Json = {
            "messages": self._rollout.environment.history(self._rollout.messages),
            "model": self._address.model,
            "temperature": self._config.temperature,
            "top_p": self._config.top_p,
            "max_tokens": self._config.max_tokens,
            **({"tools": tools} if tools else {}),
            # each turn has its own seed: with one seed for all, every turn would draw the same random numbers
            **({} if self._seeds is None else {"seed": self._seeds.getrandbits(31)}),
            **self._extra_body,
        }
        # `chat.completions.create` would walk every message along its schema first, a fifth of a call's CPU (profiled)
        completion = await self._client.post(
            f"{self._address.url}/chat/completions",
            body=body,
            cast_to=ChatCompletion,
            options={"timeout": self._address.turn_s},
        )
        self._rollout.waits_for = "no call"
        self._rollout.record_completion(completion)
        if self._max_response_tokens is not None and self._rollout.num_turns == 1 and completion.usage is not None:
            end = completion.usage.prompt_tokens + self._max_response_tokens
            self._extra_body = {**self._extra_body, "vllm_xargs": {ROW_END: end}}
        if completion.choices[0].finish_reason == "length":
            raise _CutReply
        return completion


async def _play(rollout: _Served, model: _PolicyModel) -> None:
    # The Runner stops at a reply without a call. The episode may answer it; then the Runner is started again with the
    # turns that are left.
    agent = _agent(rollout.environment).clone(model=model)
    task = str(rollout.messages[-1]["content"])
    while rollout.stop is None:
        try:
            with suppress(MaxTurnsExceeded, _CutReply):
                await Runner.run(agent, task, context=rollout, max_turns=rollout.turns_left, run_config=RUN_CONFIG)
        except UserError as failure:  # the Runner wraps an exception of a tool in it
            raise failure.__cause__ or failure from None
        await rollout.answer()


def _assistant_message(reply: ChatCompletionMessage) -> Json:
    # with all fields except the empty ones
    said = {key: value for key, value in reply.model_dump(exclude_unset=True).items() if value not in (None, [])}
    if "tool_calls" not in said:
        said.setdefault("content", "")
    return {"role": "assistant", "content": None, **said}


_Clients = dict[tuple[bool, str], AsyncOpenAI]
_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients] = weakref.WeakKeyDictionary()


def _client(base_url: str, api_key: str) -> AsyncOpenAI:
    # One client for all rollouts of an event loop, which share its connections; each call names its own URL, because in
    # training each rollout has one.
    clients, plain = _clients.setdefault(asyncio.get_running_loop(), {}), base_url.startswith("http://")
    if (plain, api_key) not in clients:
        # a TLS context takes 20 ms and more (measured), and http:// needs none
        http_client = ChatClient(verify=not plain)
        options = {"base_url": base_url, "api_key": api_key, "max_retries": MAX_RETRIES}
        clients[plain, api_key] = AsyncOpenAI(http_client=http_client, **options)
    return clients[plain, api_key]


async def _call_tool(context: ToolContext[_Served], _arguments: str) -> str:
    return await context.context.result_of(context.tool_call_id)


@functools.lru_cache(maxsize=4)
def _agent(environment: World) -> Agent[_Served]:
    return Agent(
        name="sql",
        tools=[
            FunctionTool(
                name=tool["function"]["name"],
                description=tool["function"]["description"],
                params_json_schema=tool["function"]["parameters"],
                on_invoke_tool=_call_tool,
                strict_json_schema=False,  # sends the environment's schema unchanged
            )
            for tool in environment.tools
        ],
        tool_use_behavior=lambda context, _results: ToolsToFinalOutputResult(
            is_final_output=context.context.stop is not None, final_output=""
        ),
    )


RUN_CONFIG = RunConfig(
    model_provider=OpenAIProvider(api_key="-"),  # never used, since the agent has its own model
    tool_execution=ToolExecutionConfig(max_function_tool_concurrency=1),
    tool_not_found_behavior="return_error_to_model",
    tool_error_formatter=lambda unknown: unknown.run_context.context.result_of(unknown.call_id),
    tracing_disabled=True,
)
