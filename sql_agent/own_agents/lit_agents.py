"""Plays an agent of agent-lightning: `@agl.rollout`, `@agl.llm_rollout`, or a subclass of `LitAgent`.

It does what upstream's runner does (agentlightning/runner/agent.py, 0.3.0): it calls the method for the rollout's mode,
passes the resources, and reads the reward, which is the number that the agent returns, the last one in the spans that
it returns, or the last one that it emitted. A synchronous agent runs in a thread of its own.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from agentlightning.tracer.base import get_active_tracer, set_active_tracer
from agentlightning.tracer.dummy import DummyTracer

from agentgrpo.agl_without_litellm import agl
from agentgrpo.own_files import OwnFileError, place
from sql_agent.own_agents.datatypes import AgentEnd, Policy
from sql_agent.own_agents.loop import AgentLoop, in_thread
from sql_agent.own_agents.policy_client import asking, install_default_client

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
    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer


class LightningAgent:
    """Raises OwnFileError: the agent has no rollout method, or wants something that a run does not have."""

    rewards_itself = True

    def __init__(self, agent: Any) -> None:
        _check(agent)
        self._agent = agent
        self._loop = AgentLoop()
        install_default_client()  # for agents of openai-agents in its code
        tracer = get_active_tracer()
        if tracer is None:
            set_active_tracer(tracer := KeepingTracer())
        self._trainer = _Trainer(tracer)
        agent.set_trainer(self._trainer)
        agent.set_runner(self._trainer)

    def check_row(self, row: dict[str, Any]) -> None:
        pass  # the agent gets the row as it is, and any row is valid

    async def play(self, row: dict[str, Any], policy: Policy) -> AgentEnd:
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
        raise OwnFileError(f"{place(kind)}: {kind.__name__} has neither `rollout` nor `rollout_async`; add one of them")
    if "prompt_template" in getattr(getattr(agent, "_sig", None), "parameters", ()):
        raise OwnFileError(
            f"{place(agent._rollout_func)}: it wants a prompt_template, which is agent-lightning's prompt "
            "optimisation; a run trains the policy, take `task` and `llm`"
        )
