"""Plays an agent that is an object of its framework, or a function of the row that makes or runs one.

Tools, instructions, guardrails, handoffs and sub-agents of openai-agents stay the user's. The policy replaces every
model that is given as a string or not at all. A `Model` object is used as it is, and its calls are not trained.

For an agent of agent-lightning (`@agl.rollout`, `@agl.llm_rollout`, a subclass of `LitAgent`) it does what upstream's
runner does (agentlightning/runner/agent.py, 0.3.0): it calls the method for the rollout's mode, passes the resources,
and reads the reward, which is the number that the agent returns, the last one in the spans that it returns, or the last
one that it emitted. A synchronous agent runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any

from agentgrpo.agl_without_litellm import agl  # first, or agent-lightning would be imported with LiteLLM
from agentgrpo.json_text import JsonObject

# isort: split
from agentlightning.tracer.base import get_active_tracer, set_active_tracer
from agentlightning.tracer.dummy import DummyTracer
from agents import (
    Agent,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    OpenAIProvider,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
    UserError,
)
from agents.result import RunResultBase

from agentgrpo.user_files import UserFileError, place
from sql_agent.environments.rows import as_messages
from sql_agent.user_agents.datatypes import AgentEnd, Policy
from sql_agent.user_agents.graphs import is_graph, run_graph
from sql_agent.user_agents.loop import AgentLoop, Held, in_thread
from sql_agent.user_agents.mcp_servers import McpServerError, McpServers
from sql_agent.user_agents.policy_client import ASYNC_CLIENT, asking, install_default_client, unaddressed_client

TRIPWIRES = (
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)


BLOCKED = (
    "code that does not await blocked the agents' event loop, and with it what this runner holds; make that tool a "
    "plain function, or let it await"
)


class ObjectAgent:
    """
    Args:
        thing: an `agents.Agent`, a compiled graph, or a function of the task's row. It returns one of the two, or one
        and its context object, to be run on the row's prompt; or it runs agents itself and returns the answer. An
        `asynccontextmanager` without arguments yields one of these, and a runner enters it once.
    Raises:
        UserFileError: the function does not take one argument.
    """

    rewards_itself = False

    def __init__(self, thing: object) -> None:
        self._loop = AgentLoop()
        self._servers: McpServers | None = None
        self._held: Held[Any] | None = None
        self._first_loop: asyncio.AbstractEventLoop | None = None
        self._thing: Any = thing
        if _is_context_manager(thing):
            self._held = Held(self._thing)
        elif not _is_agent(thing):
            _check_function(self._thing)
        install_default_client()

    def check_row(self, row: JsonObject) -> None:
        if _is_agent(self._thing) or row.get("prompt") is not None:
            _prompt(row)

    async def play(self, row: JsonObject, policy: Policy) -> AgentEnd:
        with asking(policy, unaddressed_client):
            return await self._loop.run(lambda: run_to_end(self._run(row, policy)))

    async def _run(self, row: JsonObject, policy: Policy) -> AgentEnd:
        self._check_loop()
        thing = self._thing if self._held is None else await self._held.value()
        made = thing if _is_agent(thing) else await _call(thing, row)
        if isinstance(made, RunResultBase):
            return AgentEnd(made.final_output)
        agent, context = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if is_graph(agent):
            return await run_graph(agent, _prompt(row), policy, context)
        if isinstance(agent, Agent):
            self._servers = self._servers or McpServers()
            async with self._servers.connected(agent, keep=agent is thing):
                return await run_to_end(run_agent(agent, _prompt(row), policy, context))
        return AgentEnd(made)

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        self._first_loop = self._first_loop or loop
        if self._first_loop is not loop and (self._servers or self._held):
            raise McpServerError(BLOCKED)

    def try_out(self) -> None:
        """Start what a runner holds, and end it again.

        Raises:
            UserFileError: something does not start.
        """
        try:
            asyncio.run(self._hold_once())
        except UserFileError:
            raise
        except McpServerError as error:
            raise UserFileError(str(error)) from error
        except (Exception, SystemExit) as error:
            where = place(self._thing) if callable(self._thing) else f"the agent {self._thing.name}"
            raise UserFileError(f"{where}: it raised {type(error).__name__}: {error}") from error

    async def _hold_once(self) -> None:
        async with AsyncExitStack() as held:
            thing = self._thing if self._held is None else await held.enter_async_context(self._thing())
            if isinstance(thing, Agent):
                await held.enter_async_context(McpServers().connected(thing, keep=False))
                await thing.get_mcp_tools(RunContextWrapper(None))  # openai-agents refuses two tools of one name
            elif not _is_agent(thing):
                if not callable(thing):
                    raise UserFileError(
                        f"{place(self._thing)}: it yields a {type(thing).__name__}; expected an agents.Agent, a "
                        "compiled graph, or a function of the task"
                    )
                _check_function(thing)

    def close(self) -> None:
        self._loop.close(self._leave)

    async def _leave(self) -> None:
        if self._servers is not None:
            await self._servers.close()
        if self._held is not None:
            await self._held.leave()


async def _call(function: Callable[[JsonObject], Any], row: JsonObject) -> object:
    # A plain function may block and run agents itself.
    made = function(row) if inspect.iscoroutinefunction(function) else await in_thread(lambda: function(row))
    return await made if inspect.isawaitable(made) else made


def _is_context_manager(thing: object) -> bool:
    return callable(thing) and inspect.isasyncgenfunction(inspect.unwrap(thing)) and hasattr(thing, "__wrapped__")


def _is_agent(thing: object) -> bool:
    return isinstance(thing, Agent) or is_graph(thing)


def _prompt(row: JsonObject) -> object:
    """Raises ValueError: the prompt is missing or invalid; the message continues a sentence about the task."""
    if row.get("prompt") is None:
        columns = ", ".join(name for name, value in row.items() if value is not None) or "nothing"
        raise ValueError(f"has no `prompt`, a text or messages that the agent is run on; it has {columns}")
    try:
        messages = as_messages(row["prompt"])
    except ValueError as error:
        raise ValueError(f"its `prompt` {error}") from None
    return row["prompt"] if isinstance(row["prompt"], str) else messages


def _check_function(function: Callable[..., object]) -> None:
    made_by = inspect.unwrap(function)
    if inspect.isgeneratorfunction(made_by) or inspect.isasyncgenfunction(made_by):
        raise UserFileError(
            f"{place(function)}: it yields; what a runner holds is an async function without arguments under "
            "@contextlib.asynccontextmanager"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # the function is not written in Python
        return
    try:
        signature.bind({})
    except TypeError:
        raise UserFileError(
            f"{place(function)}: {getattr(function, '__name__', function)}{signature} cannot be "
            "called with a task's row alone; write `def NAME(task):` and return an agents.Agent, a compiled graph or "
            "the answer, or decorate a function of task and llm with @agentlightning.rollout"
        ) from None


async def run_agent(agent: Agent[Any], prompt: Any, policy: Policy, context: Any = None) -> AgentEnd:
    """Run an agent on a row's prompt, a text or messages.

    Raises:
        Exception: any error of the user's code.
    """
    turns: dict[str, Any] = {} if policy.max_turns is None else {"max_turns": policy.max_turns}
    config = RunConfig(model_provider=OpenAIProvider(openai_client=ASYNC_CLIENT, use_responses=False))
    with asking(policy):
        result = await Runner.run(agent, prompt, context=context, run_config=config, **turns)
    if result.interruptions:
        raise UserError("a tool waits for a person's approval, and nobody is there; leave its approval out")
    return AgentEnd(result.final_output)


async def run_to_end(run: Coroutine[None, None, AgentEnd]) -> AgentEnd:
    # openai-agents raises what the policy did.
    try:
        return await run
    except MaxTurnsExceeded as error:
        return AgentEnd(stop_reason="max_turns", error=str(error))
    except (ModelBehaviorError, ModelRefusalError) as error:  # unknown tool, or unparsable arguments or output
        return AgentEnd(stop_reason="malformed", error=f"{type(error).__name__}: {error}")
    except TRIPWIRES as error:
        return AgentEnd(error=f"{type(error).__name__}: {error}")


RESOURCE = "main_llm"
_emitted: ContextVar[list[Any]] = ContextVar("emitted")


class KeepingTracer(DummyTracer):
    def create_span(self, *args: Any, **kwargs: Any) -> Any:
        span = super().create_span(*args, **kwargs)
        _emitted.get([]).append(span)
        return span

    def get_langchain_handler(self) -> None:
        return None  # the LLM proxy traces every call


class _Trainer:
    def __init__(self, tracer: object) -> None:
        self.tracer = tracer


class LightningAgent:
    """Raises UserFileError: the agent has no rollout method, or wants something that a run does not have."""

    rewards_itself = True

    def __init__(self, agent: object) -> None:
        _check(agent)
        self._agent: Any = agent
        self._loop = AgentLoop()
        install_default_client()  # for agents of openai-agents in its code
        tracer = get_active_tracer()
        if tracer is None:
            set_active_tracer(tracer := KeepingTracer())
        self._trainer = _Trainer(tracer)
        self._agent.set_trainer(self._trainer)
        self._agent.set_runner(self._trainer)

    def check_row(self, row: JsonObject) -> None:
        pass  # the agent gets the row as it is, and any row is valid

    def try_out(self) -> None:
        pass

    async def play(self, row: JsonObject, policy: Policy) -> AgentEnd:
        llm = agl.LLM(
            endpoint=policy.base_url,
            model=policy.model,
            api_key=policy.api_key,
            # agents of agent-lightning read the temperature here, and pass their own max_tokens beside these
            sampling_parameters={"temperature": policy.temperature},
        )
        way = "training" if policy.rollout.mode == "train" else "validation"
        emitted: list[Any] = []
        token = _emitted.set(emitted)
        try:
            with asking(policy):
                if self._agent.is_async():
                    method = getattr(self._agent, f"{way}_rollout_async")
                    result = await self._loop.run(lambda: method(row, {RESOURCE: llm}, policy.rollout))
                else:
                    method = getattr(self._agent, f"{way}_rollout")
                    result = await in_thread(lambda: method(row, {RESOURCE: llm}, policy.rollout))
        finally:
            _emitted.reset(token)
        if isinstance(result, list):
            return AgentEnd(reward=agl.find_final_reward([*emitted, *result]))
        return AgentEnd(reward=agl.find_final_reward(emitted) if result is None else result)

    def close(self) -> None:
        self._loop.close()


def _check(agent: Any) -> None:
    kind = type(agent)
    if kind.rollout is agl.LitAgent.rollout and kind.rollout_async is agl.LitAgent.rollout_async:
        raise UserFileError(
            f"{place(kind)}: {kind.__name__} has neither `rollout` nor `rollout_async`; add one of them"
        )
    if "prompt_template" in getattr(getattr(agent, "_sig", None), "parameters", ()):
        raise UserFileError(
            f"{place(agent._rollout_func)}: it wants a prompt_template, which is agent-lightning's prompt "
            "optimisation; a run trains the policy, take `task` and `llm`"
        )
