"""Plays an agent of openai-agents: the user's own tools, instructions, guardrails, handoffs and sub-agents.

The policy replaces every model that is given as a string or not at all. A `Model` object is used as it is, and its
calls are not trained.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from agents import (
    Agent,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    OpenAIProvider,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)
from agents.result import RunResultBase

from core.own_files import OwnFileError, place
from sql_agent.environments.rows import as_messages
from sql_agent.own_agents.datatypes import AgentEnd, Policy
from sql_agent.own_agents.default_client import asking, install_default_client
from sql_agent.own_agents.loop import AgentLoop, in_thread

TRIPWIRES = (
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)


class OpenAIAgent:
    """Plays an agent of openai-agents, or a function that makes or runs agents.

    Args:
        thing: an `agents.Agent`, or a function of the task's row. It returns an agent, or an agent and its context
            object, to be run on the row's prompt; or it runs agents itself and returns the answer.
    Raises:
        OwnFileError: the function does not take one argument.
    """

    rewards_itself = False

    def __init__(self, thing: Agent[Any] | Callable[[dict[str, Any]], Any]) -> None:
        if not isinstance(thing, Agent):
            _check_function(thing)
        self._thing = thing
        self._loop = AgentLoop()
        provider = OpenAIProvider(openai_client=install_default_client(), use_responses=False)
        self._run_config = RunConfig(model_provider=provider)

    def check_row(self, row: dict[str, Any]) -> None:
        if isinstance(self._thing, Agent) or row.get("prompt") is not None:
            _prompt(row)

    async def play(self, row: dict[str, Any], policy: Policy) -> AgentEnd:
        with asking(policy):
            return await self._loop.run(lambda: self._end(row, policy.max_turns))

    async def _end(self, row: dict[str, Any], max_turns: int | None) -> AgentEnd:
        try:
            return AgentEnd(await self._run(row, max_turns))
        except MaxTurnsExceeded as error:
            return AgentEnd(stop_reason="max_turns", error=str(error))
        except (ModelBehaviorError, ModelRefusalError) as error:  # unknown tool, or unparsable arguments or output
            return AgentEnd(stop_reason="malformed", error=f"{type(error).__name__}: {error}")
        except TRIPWIRES as error:
            return AgentEnd(error=f"{type(error).__name__}: {error}")

    async def _run(self, row: dict[str, Any], max_turns: int | None) -> Any:
        made = await self._made(row)
        if isinstance(made, RunResultBase):
            return made.final_output
        agent, context = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(agent, Agent):
            return made
        turns: dict[str, Any] = {} if max_turns is None else {"max_turns": max_turns}
        result = await Runner.run(agent, _prompt(row), context=context, run_config=self._run_config, **turns)
        return result.final_output

    async def _made(self, row: dict[str, Any]) -> Any:
        """Return the agent, or the function's result for the row; a plain function may block and run agents itself."""
        thing = self._thing
        if isinstance(thing, Agent):
            return thing
        made = thing(row) if inspect.iscoroutinefunction(thing) else await in_thread(lambda: thing(row))
        return await made if inspect.isawaitable(made) else made

    def close(self) -> None:
        self._loop.close()


def _prompt(row: dict[str, Any]) -> Any:
    """Return the row's prompt, on which an agent is run.

    Raises:
        ValueError: the prompt is missing or invalid; the message continues a sentence about the task.
    """
    if row.get("prompt") is None:
        columns = ", ".join(name for name, value in row.items() if value is not None) or "nothing"
        raise ValueError(f"has no `prompt`, a text or messages that the agent is run on; it has {columns}")
    try:
        messages = as_messages(row["prompt"])
    except ValueError as error:
        raise ValueError(f"its `prompt` {error}") from None
    return row["prompt"] if isinstance(row["prompt"], str) else messages


def _check_function(function: Any) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # the function is not written in Python
        return
    try:
        signature.bind({})
    except TypeError:
        raise OwnFileError(
            f"{place(function)}: {getattr(function, '__name__', function)}{signature} cannot be "
            "called with a task's row alone; write `def NAME(task):` and return an agents.Agent, or decorate a "
            "function of task and llm with @agentlightning.rollout"
        ) from None
