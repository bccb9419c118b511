"""Plays one task with an agent of the user's own, and tells how it ended.

Whatever the user's code does ends this rollout at most, under a name. What the calls of the policy said comes from the
LLM proxy, which answers none after that. Leaves out the frameworks (`openai_agents`, `lit_agents`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import time
import traceback
from collections.abc import Iterator
from typing import Any

import aiohttp
from openai import APIConnectionError, APIError, APIStatusError
from pydantic import BaseModel

from dbbench_adapter.datatypes import Score
from sql_agent.datatypes import OWN_REWARD, AgentConfig, RolloutRecord, StopReason
from sql_agent.environments.rows import RowTask, short
from sql_agent.own_agents.datatypes import AgentEnd, OwnAgent, Policy
from sql_agent.rewards import NO_JUDGE

ENDED_S = 30.0
"""How long the LLM proxy may take to say what the calls of a rollout were."""
OUTPUT_CHARS = 20_000
"""Of an output that is not JSON, as a text."""


async def play(
    agent: OwnAgent, task: RowTask, policy: Policy, limits: AgentConfig, *, others_reward: bool
) -> RolloutRecord:
    """
    Args:
        others_reward: whether anybody else says what the rollout is worth: a reward function, a reward model.
    Returns:
        The record; its score is the agent's own reward under `OWN_REWARD`, or None under `NO_JUDGE` where it gives none
        and others are asked. None with another reason where the rollout is lost: `rollout_deadline`,
        `model_unavailable` (the last call of the policy failed), `agent_error` (the agent raised; the traceback is the
        record's error), `no_call` (it never asked the policy), `reward_error` (its reward is no finite number),
        `no_reward` (nobody says what it is worth).
    """
    started = time.perf_counter()
    deadline = asyncio.timeout(limits.rollout_timeout_s)
    lost: tuple[StopReason, str] | None = None
    end = AgentEnd()
    try:
        async with deadline:
            end = await agent.play(task.row, policy)
    except TimeoutError as late:
        if deadline.expired():
            lost = "timeout", "rollout_deadline"
            end = AgentEnd(error=f"its rollout_timeout_s={limits.rollout_timeout_s:g} passed")
        else:
            end, lost = _raised(late)
    except (Exception, SystemExit) as error:
        end, lost = _raised(error)
    calls = await _calls(policy)
    stop, score, error = _verdict(end, lost, calls, others_reward=others_reward)
    return RolloutRecord(
        task_id=task.id,
        kind=task.kind,
        stop_reason=stop,
        score=score,
        num_turns=calls.get("calls", 0),
        malformed_calls=int(stop == "malformed"),
        messages=calls.get("messages", []),
        prompt_tokens=calls.get("prompt_tokens", 0),
        completion_tokens=calls.get("completion_tokens", 0),
        seconds=time.perf_counter() - started,
        error=error,
        output=plain(end.output),
    )


def _verdict(
    end: AgentEnd, lost: tuple[StopReason, str] | None, calls: dict[str, Any], *, others_reward: bool
) -> tuple[StopReason, Score, str | None]:
    if calls.get("failure") is not None and (lost is None or lost[1] == "agent_error"):
        # an agent that goes on without an answer must not be judged for what the machine did
        return (
            "model_unavailable",
            Score(None, "model_unavailable"),
            "\n".join(filter(None, [calls["failure"], end.error])),
        )
    if lost is not None:
        return lost[0], Score(None, lost[1]), end.error
    if not calls.get("calls"):
        error = (
            "the agent never asked the policy: its client needs the address it is given (llm.endpoint, or the default)"
        )
        return "environment_error", Score(None, "no_call"), error
    if end.reward is None:
        return end.stop_reason, Score(None, NO_JUDGE if others_reward else "no_reward"), end.error
    try:
        value = float(end.reward)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        error = f"the agent returned {short(end.reward, 80)}, expected a finite number as its reward, or None"
        return "environment_error", Score(None, "reward_error"), error
    return end.stop_reason, Score(value, OWN_REWARD), end.error


def _raised(error: BaseException) -> tuple[AgentEnd, tuple[StopReason, str] | None]:
    """What an exception of the agent means; frameworks wrap those of their clients."""
    for cause in _causes(error):
        if isinstance(cause, APIStatusError) and "maximum context length" in str(cause):
            return AgentEnd(stop_reason="max_tokens", error=str(cause)), None  # the policy filled its context
        if isinstance(cause, APIConnectionError) or (
            isinstance(cause, APIError) and getattr(cause, "status_code", 0) >= 500
        ):
            return AgentEnd(error=f"{type(cause).__name__}: {cause}"), ("model_unavailable", "model_unavailable")
    return AgentEnd(error=_traceback(error)), ("environment_error", "agent_error")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _traceback(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error)).strip()
    return text if len(text) <= 4_000 else f"...{text[-4_000:]}"


async def _calls(policy: Policy) -> dict[str, Any]:
    """What the LLM proxy knows of the rollout's calls; says so as a failure where it does not answer."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ENDED_S)) as session,
            session.get(f"{policy.base_url}/ended") as response,
        ):
            response.raise_for_status()
            return await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return {"failure": f"the LLM proxy did not say what was asked: {type(error).__name__}: {error}"}


def plain(output: Any) -> Any:
    """An agent's output as JSON values; as a text where it has no such form."""
    if isinstance(output, BaseModel):
        output = output.model_dump(mode="json")
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        output = dataclasses.asdict(output)
    try:
        return json.loads(json.dumps(output))
    except (TypeError, ValueError, RecursionError):
        return str(output)[:OUTPUT_CHARS]
