"""Plays one task of an environment with openai-agents' Runner, against any OpenAI-compatible endpoint.

The environment's episodes keep the rules. If it offers tools, the Runner calls them. Each reply counts as one turn, and
the episode answers a bad call or a reply without a call (DB-Bench's `fc` continues after both and ends with
`commit_final_answer`). Without tools (DB-Bench's `text` and `lab`) the conversation is plain chat. Leaves out rewards,
retries of whole rollouts, and everything about training.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar, cast

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
from openai import APIError, APIStatusError, AsyncOpenAI, omit
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from dbbench_adapter.datatypes import Score
from dbbench_adapter.engines import BackendUnavailable, TableError
from dbbench_adapter.protocols import Status
from sql_agent.comparison import Comparison
from sql_agent.datatypes import MAX_RETRIES, ROW_END, AgentConfig, RolloutRecord, StopReason
from sql_agent.environments.base import (
    CallingEpisode,
    EnvironmentTask,
    Episode,
    EpisodeLostError,
    Playable,
    WritingEpisode,
    with_observation,
)
from sql_agent.model_servers.ask import ChatClient
from sql_agent.model_servers.refusals import CONTEXT_FULL, REFUSED, TOO_LARGE, UNREAD_CALL

__all__ = ["AgentConfig", "RolloutRecord", "run_rollout", "size_thread_pool"]

set_tracing_disabled(True)  # otherwise openai-agents uploads every run to its vendor

T = TypeVar("T")
Json = dict[str, Any]
Call = Literal["no call", "a model call", "a database call"]
_DEADLINES: dict[Call, str] = {
    "no call": "rollout_deadline",
    "a model call": "model_deadline",
    "a database call": "db_deadline",
}
"""Reasons of rollouts that are lost at their deadline, by the call that was open then."""


async def run_rollout(
    task: EnvironmentTask,
    *,
    environment: Playable,
    base_url: str,
    model: str,
    config: AgentConfig,
    api_key: str = "-",
    extra_body: Json | None = None,
    on_reply: Callable[[ChatCompletion], None] | None = None,
    seed: int | None = None,
    max_response_tokens: int | None = None,
) -> RolloutRecord:
    """Play one task from its first prompt to a named end, and judge the result.

    Args:
        task: the task to solve; only the judge sees its gold answer.
        environment: the task's environment, which opens the episode.
        base_url: an OpenAI-compatible endpoint up to and including `/v1`.
        model: the model's name at that endpoint.
        extra_body: further fields of each request, for example `{"return_token_ids": True}` for vLLM.
        on_reply: called with each reply of the endpoint, with all fields that it has (`model_servers.replies`).
        seed: the sampler's; the same seed gives the same rollout from an endpoint that computes the same logits.
        max_response_tokens: limit of tokens after the first prompt, tool results included. verl's vLLM shortens the
            reply that would exceed it (`sql_agent.verl_side.plugin.row_end`); other servers ignore it.
    Returns:
        The record. An end that the policy caused is judged. Every other end has `Score(None, reason)`: a model or a
        database cannot be reached (`model_unavailable`, `db_unavailable`); a deadline passed while a call of either
        was open, or no call (`model_deadline`, `db_deadline`, `rollout_deadline`); a table cannot be made
        (`table_error`); the rollout ended before the first reply (`no_reply`); the environment has no judge
        (`no_judge`); the environment's code raised or hung (stop reason `environment_error`, with its own reason).
    """
    started = time.perf_counter()
    rollout = _Rollout(task, environment, config, on_reply)
    error: str | None = None
    comparison: Comparison | None = None
    stop: StopReason
    try:
        try:
            async with asyncio.timeout(config.rollout_timeout_s):
                await rollout.blocking(rollout.open)
                client = _client(base_url, api_key)
                policy = _PolicyModel(model, client, rollout, config, extra_body, seed, max_response_tokens)
                stop = await (_play if environment.tools else _converse)(rollout, policy)
        except TimeoutError:
            stop = "timeout"
            error = f"its rollout_timeout_s={config.rollout_timeout_s:g} passed with {rollout.waits_for} open"
        except (APIError, ModelBehaviorError, ModelRefusalError, UnicodeEncodeError) as failure:
            stop, error = _name_failure(failure, rollout), f"{type(failure).__name__}: {failure}"
        score = await _score(rollout, stop)
        comparison = await _compared(rollout, score)
    except BackendUnavailable as failure:
        stop, score, error = "db_unavailable", Score(None, "db_unavailable"), str(failure)
    except TableError as failure:
        stop, score, error = "table_error", Score(None, "table_error"), str(failure)
    except EpisodeLostError as failure:
        stop, score, error = "environment_error", Score(None, failure.reason), str(failure)
    finally:
        await rollout.close()
    return RolloutRecord(
        task_id=task.id,
        kind=task.kind,
        stop_reason=stop,
        score=score,
        num_turns=rollout.num_turns,
        malformed_calls=rollout.malformed_calls,
        messages=rollout.messages,
        prompt_tokens=rollout.prompt_tokens,
        completion_tokens=rollout.completion_tokens,
        seconds=time.perf_counter() - started,
        error=error,
        tools=list(environment.tools),
        comparison=comparison,
    )


def unplayed(task: EnvironmentTask, stop: StopReason, error: str) -> RolloutRecord:
    """Return the record of a rollout that could not begin."""
    return RolloutRecord(
        task_id=task.id,
        kind=task.kind,
        stop_reason=stop,
        score=Score(None, stop),
        num_turns=0,
        malformed_calls=0,
        messages=[],
        prompt_tokens=0,
        completion_tokens=0,
        seconds=0.0,
        error=error,
    )


def size_thread_pool(rollouts: int) -> None:
    """Give the running event loop a thread for each of the rollouts that it plays at once.

    Database calls wait in threads, and by default there are only four more threads than cores.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=rollouts))


class _CutReply(AgentsException):
    """Says that a reply reached its token limit, or that the context is full."""


class _Rollout:
    """Holds the state of one rollout: its episode, conversation and counts. The Runner carries it as its context."""

    def __init__(
        self,
        task: EnvironmentTask,
        environment: Playable,
        config: AgentConfig,
        on_reply: Callable[[ChatCompletion], None] | None,
    ) -> None:
        self._task, self._config = task, config
        self.environment = environment
        self.messages = environment.messages(task)
        self.episode: Episode | None = None
        self.num_turns = self.prompt_tokens = self.completion_tokens = 0
        self._on_reply = on_reply
        self._calls: list[Any] = []  # of the last reply, not yet handled, in its order
        self._results: dict[str, str] = {}
        self._running: asyncio.Future[Any] | None = None
        self.waits_for: Call = "no call"
        """The call that is open; it stays set when a deadline interrupts it."""

    def open(self) -> None:
        self.episode = episode = self.environment.open(self._task, self._config)
        self.messages = with_observation(self.messages, episode)

    @property
    def done(self) -> bool:
        return self.episode is not None and self.episode.done

    @property
    def malformed_calls(self) -> int:
        return self.episode.malformed_calls if self.episode is not None else 0

    def take_reply(self, completion: ChatCompletion) -> None:
        """Count the reply as a turn and keep it unchanged, so that the next request contains it unchanged."""
        self.num_turns += 1
        if self._on_reply is not None:
            self._on_reply(completion)
        if completion.usage is not None:
            self.prompt_tokens += completion.usage.prompt_tokens
            self.completion_tokens += completion.usage.completion_tokens
        reply = completion.choices[0].message
        if not self.environment.tools:
            reply.tool_calls = None  # no tools were offered
        self._calls = [*(reply.tool_calls or [])]
        self._results |= {call.id: "" for call in self._calls}
        self.messages.append(_assistant_message(reply))
        # the Runner cannot handle an empty reply and raises on a refusal; here both are replies without a call
        reply.content, reply.refusal = reply.content or "", None

    async def result_of(self, call_id: str) -> str:
        """Return the result of one call.

        The first request runs all calls of the reply in the reply's order, because the Runner's order would put unknown
        tools last. After a commit nothing runs.
        """
        while self._calls and not self.done:
            await self._handle(self._calls.pop(0))
        return self._results[call_id]

    async def take_step(self) -> None:
        """Pass the last reply to the episode as text, and append its answer."""
        episode = cast(WritingEpisode, self.episode)
        self.messages += await self.blocking(functools.partial(episode.step, self.messages[-1]["content"] or ""))

    async def _handle(self, call: Any) -> None:
        run = functools.partial(
            cast(CallingEpisode, self.episode).call_tool, call.function.name, call.function.arguments
        )
        self._results[call.id] = await self.blocking(run)
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": self._results[call.id]})

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

    async def close(self) -> None:
        await self._idle()
        if self.episode is not None:
            await asyncio.to_thread(self.episode.close)


class _PolicyModel(OpenAIChatCompletionsModel):
    """Replaces the chat-completions model of openai-agents and sends the rollout's own messages.

    The Runner's items do not keep why a reply ended, and they change the messages (results of unknown tools come last,
    empty arguments become `{}`, empty replies vanish). A policy is trained on its own tokens, so its turns are sent
    unchanged.
    """

    def __init__(
        self,
        model: str,
        client: AsyncOpenAI,
        rollout: _Rollout,
        config: AgentConfig,
        extra_body: Json | None,
        seed: int | None,
        max_response_tokens: int | None,
    ) -> None:
        super().__init__(model=model, openai_client=client.with_options(timeout=config.turn_timeout_s))
        self._rollout, self._config, self._extra_body = rollout, config, extra_body or {}
        self._max_response_tokens = max_response_tokens
        self._seeds = None if seed is None else random.Random(seed)

    async def _fetch_response(self, *_args: Any, **_kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._rollout.waits_for = "a model call"
        completion = await self._client.chat.completions.create(
            model=str(self.model),
            messages=self._rollout.environment.history(self._rollout.messages),  # pyright: ignore[reportArgumentType]
            tools=self._rollout.environment.tools or omit,  # pyright: ignore[reportArgumentType]
            temperature=self._config.temperature,
            top_p=self._config.top_p,
            max_tokens=self._config.max_tokens,
            # each turn has its own seed: with one seed for all, every turn would draw the same random numbers
            seed=omit if self._seeds is None else self._seeds.getrandbits(31),
            extra_body=self._extra_body or None,
        )
        self._rollout.waits_for = "no call"
        self._rollout.take_reply(completion)
        if self._max_response_tokens is not None and self._rollout.num_turns == 1 and completion.usage is not None:
            end = completion.usage.prompt_tokens + self._max_response_tokens
            self._extra_body = {**self._extra_body, "vllm_xargs": {ROW_END: end}}
        if completion.choices[0].finish_reason == "length":
            raise _CutReply
        return completion


async def _play(rollout: _Rollout, model: _PolicyModel) -> StopReason:
    """Let the Runner play until the episode has ended.

    The Runner stops at a reply without a call. The episode may answer it; then the Runner is started again with the
    turns that are left.
    """
    episode = cast(CallingEpisode, rollout.episode)
    agent = _agent(rollout.environment).clone(model=model)
    task = str(rollout.messages[-1]["content"])
    while (turns_left := episode.max_rounds - rollout.num_turns) > 0:
        try:
            await Runner.run(agent, task, context=rollout, max_turns=turns_left, run_config=RUN_CONFIG)
        except MaxTurnsExceeded:
            break
        except _CutReply:
            return "max_tokens"
        except UserError as failure:  # the Runner wraps an exception of a tool in it
            raise failure.__cause__ or failure from None
        if not rollout.done:
            rollout.messages += episode.without_call(str(rollout.messages[-1]["content"] or ""))
        if rollout.done:
            return _ENDS[episode.status]
    return "max_turns"


async def _converse(rollout: _Rollout, model: _PolicyModel) -> StopReason:
    """Ask for one reply at a time, and let the episode read it, until the episode has ended."""
    assert rollout.episode is not None
    agent: Agent[_Rollout] = Agent(name="sql", model=model)
    while not rollout.done:
        try:
            await Runner.run(agent, str(rollout.messages[-1]["content"]), context=rollout, run_config=RUN_CONFIG)
        except _CutReply:
            return "max_tokens"
        await rollout.take_step()
    return _ENDS[rollout.episode.status]


_ENDS: dict[Status, StopReason] = {
    "completed": "answered",
    "task limit reached": "max_turns",
    "task_limit_reached": "max_turns",
    "agent validation failed": "malformed",
    "agent_validation_failed": "malformed",
    "task error": "malformed",
    "task_environment_error": "malformed",
}


def _name_failure(failure: Exception, rollout: _Rollout) -> StopReason:
    """Return the stop reason of a failed request.

    A refused request is the policy's fault if the context is full or contains its malformed calls (a chat template may
    fail on arguments that are not an object), and so are a call that the endpoint could not parse and half a surrogate
    pair in one, which no UTF-8 can hold; everything else is the endpoint's fault.

    Raises:
        EpisodeLostError: what the environment's tools returned is more than our servers read.
    """
    if isinstance(failure, UnicodeEncodeError):  # without a reply the task's own text holds it
        return "malformed" if rollout.num_turns else "environment_error"
    if not isinstance(failure, APIStatusError) or failure.status_code not in REFUSED:
        return "model_unavailable"
    if failure.code == TOO_LARGE:
        raise EpisodeLostError(TOO_LARGE, str(failure))
    if failure.code == CONTEXT_FULL:
        return "max_tokens"
    return "malformed" if failure.code == UNREAD_CALL or rollout.malformed_calls else "model_unavailable"


async def _score(rollout: _Rollout, stop: StopReason) -> Score:
    """Return the verdict on the policy's result.

    A rollout that reached its deadline has none, even if its answer is right, because the speed of the machine must not
    decide what is trained on.
    """
    if stop == "timeout":
        return Score(None, _DEADLINES[rollout.waits_for])
    if stop == "model_unavailable":
        return Score(None, stop)
    episode = rollout.episode
    unread = stop == "malformed"  # the endpoint had a first reply, with a call that it could not parse
    if episode is None or (rollout.num_turns == 0 and not unread):  # the context was full before the first reply
        return Score(None, "no_reply")
    return await rollout.blocking(lambda: rollout.environment.judge(episode))


async def _compared(rollout: _Rollout, score: Score) -> Comparison | None:
    if score.value is None:
        return None
    return await rollout.blocking(lambda: rollout.environment.comparison(rollout.episode))


def _assistant_message(reply: ChatCompletionMessage) -> Json:
    """Return the reply as a message of the next request, with all its fields except the empty ones."""
    said = {key: value for key, value in reply.model_dump(exclude_unset=True).items() if value not in (None, [])}
    if "tool_calls" not in said:
        said.setdefault("content", "")
    return {"role": "assistant", "content": None, **said}


_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bool, AsyncOpenAI]] = weakref.WeakKeyDictionary()


def _client(base_url: str, api_key: str) -> AsyncOpenAI:
    """Return a client that shares the event loop's connection pool; in training each rollout has its own URL."""
    clients, plain = _clients.setdefault(asyncio.get_running_loop(), {}), base_url.startswith("http://")
    if plain not in clients:
        # a TLS context takes 20 ms and more (measured), and http:// needs none
        http_client = ChatClient(verify=not plain)
        clients[plain] = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client)
    return clients[plain].with_options(base_url=base_url, api_key=api_key, max_retries=MAX_RETRIES)


async def _call_tool(context: ToolContext[_Rollout], _arguments: str) -> str:
    return await context.context.result_of(context.tool_call_id)


@functools.lru_cache(maxsize=4)
def _agent(environment: Playable) -> Agent[_Rollout]:
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
            is_final_output=context.context.done, final_output=""
        ),
    )


RUN_CONFIG = RunConfig(
    model_provider=OpenAIProvider(api_key="-"),  # never used, since the agent has its own model
    tool_execution=ToolExecutionConfig(max_function_tool_concurrency=1),
    tool_not_found_behavior="return_error_to_model",
    tool_error_formatter=lambda unknown: unknown.run_context.context.result_of(unknown.call_id),
    tracing_disabled=True,
)
