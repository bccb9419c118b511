"""Runs an agent of openai-agents: the user's own tools, instructions, guardrails, handoffs and sub-agents.

The policy replaces every model that is given as a string or not at all. A `Model` object is used as it is, and its
calls are not trained.
"""

from __future__ import annotations

from collections.abc import Coroutine
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

from sql_agent.own_agents.datatypes import AgentEnd, Policy
from sql_agent.own_agents.policy_client import ASYNC_CLIENT, asking

TRIPWIRES = (
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)


async def run_agent(agent: Agent[Any], prompt: Any, policy: Policy, context: Any = None) -> AgentEnd:
    """Run an agent on a row's prompt, a text or messages.

    Raises:
        Exception: any error of the user's code.
    """
    turns: dict[str, Any] = {} if policy.max_turns is None else {"max_turns": policy.max_turns}
    config = RunConfig(model_provider=OpenAIProvider(openai_client=ASYNC_CLIENT, use_responses=False))
    with asking(policy):
        result = await Runner.run(agent, prompt, context=context, run_config=config, **turns)
    return AgentEnd(result.final_output)


async def ended(run: Coroutine[Any, Any, AgentEnd]) -> AgentEnd:
    # openai-agents raises what the policy did.
    try:
        return await run
    except MaxTurnsExceeded as error:
        return AgentEnd(stop_reason="max_turns", error=str(error))
    except (ModelBehaviorError, ModelRefusalError) as error:  # unknown tool, or unparsable arguments or output
        return AgentEnd(stop_reason="malformed", error=f"{type(error).__name__}: {error}")
    except TRIPWIRES as error:
        return AgentEnd(error=f"{type(error).__name__}: {error}")
