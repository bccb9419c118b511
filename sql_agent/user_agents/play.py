"""Plays one task with a user's own agent and records how it ended.

A failure of the user's code ends at most this rollout, with a named reason. The conversations come from the LLM proxy,
which answers no further call after that.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
import time
import traceback
from typing import TYPE_CHECKING, Any

import aiohttp
from agents import UserError
from openai import APIConnectionError, APIError, APIStatusError
from pydantic import BaseModel

from dbbench_adapter.datatypes import Score
from dbbench_adapter.interaction import Stop
from sql_agent.datatypes import OWN_REWARD, RolloutRecord
from sql_agent.environments.rows import RowTask, short
from sql_agent.model_address.call_log import LoggedCalls
from sql_agent.model_address.request_guard import RUN_TOKEN, authorization
from sql_agent.model_address.signed_address import RolloutSampling, signed_prefix, without_signature
from sql_agent.model_address.weight_sync_pause import LONGEST_HOLD_S, HeldS, deadline
from sql_agent.model_servers.ask import failure_text
from sql_agent.model_servers.refusals import CONTEXT_FULL, REFUSED, TOO_LARGE
from sql_agent.rewards import NO_JUDGE
from sql_agent.settings.groups import AgentConfig
from sql_agent.user_agents.datatypes import AgentEnd, Policy, UserAgent
from sql_agent.user_agents.mcp_servers import McpServerError

if TYPE_CHECKING:
    from agentlightning import AttemptedRollout

# Seconds that the LLM proxy may take to return the calls of a rollout.
ENDED_S = 30.0
# A longer output is saved as a text that is cut to this length.
OUTPUT_CHARS = 20_000


def policy_of(
    address: str, model: str, agent: AgentConfig, rollout: AttemptedRollout, *, seed: int | None, holds: int = 0
) -> Policy:
    """The address is signed with the token of this process.

    Args:
        address: address of the LLM proxy.
        model: name of the model server at the proxy.
        rollout: agent-lightning's `AttemptedRollout`.
        holds: times that new weights may hold a call, `trainer.max_off_policy_steps`.
    """
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    sampling = RolloutSampling(*ids, model, agent.temperature, agent.max_tokens, seed)
    return Policy(
        f"{address}{signed_prefix(sampling, os.environ[RUN_TOKEN])}/rollout/{ids[0]}/attempt/{ids[1]}/v1",
        model,
        agent.temperature,
        agent.max_tokens,
        agent.turn_timeout_s + holds * LONGEST_HOLD_S,
        agent.max_turns,
        rollout,
    )


async def play_agent(
    agent: UserAgent,
    task: RowTask,
    policy: Policy,
    limits: AgentConfig,
    *,
    others_reward: bool,
    held_s: HeldS | None = None,
) -> RolloutRecord:
    """Play one task and return its record.

    Args:
        others_reward: whether a reward function or a reward model rewards the rollout too.
        held_s: says what the deadline of the rollout does not count.
    Returns:
        The record. Its score is the agent's own reward under `OWN_REWARD`, or None under `NO_JUDGE` if the agent gives
        none and others do. For a lost rollout it is None with another reason: `rollout_deadline`, `model_unavailable`
        (a call of the policy failed, and no retry succeeded), `mcp_unavailable` (an MCP server did not start, or died),
        `agent_error` (the agent raised; the traceback is the record's error), `no_call` (it never called the policy),
        `no_reply` (its first call was refused), `reward_error` (its reward is not a finite number), `no_reward`
        (nothing gives a reward).
    """
    started = time.perf_counter()
    passed, ended = asyncio.Timeout(None), False
    try:
        try:
            async with deadline(limits.rollout_timeout_s, held_s) as passed:
                end, lost = await agent.play(task.row, policy), None
        except TimeoutError as late:
            end, lost = _late(limits) if passed.expired() else _raised(late, policy)
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is None or current.cancelling():  # the rollout was cancelled, not a task of the user's code
                raise
            end, lost = _raised(error, policy)
        except (Exception, SystemExit) as error:
            end, lost = _raised(error, policy)
        calls = await _calls(policy)
        ended = True
    finally:
        if not ended:
            _end_behind(policy)
    output, end = _plain_output(end)
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
        cached_tokens=calls.get("cached_tokens", 0),
        completion_tokens=calls.get("completion_tokens", 0),
        seconds=time.perf_counter() - started,
        error=error,
        output=output,
        replies=calls.get("replies", []),
    )


# The stop reason of a lost rollout, and the reason under which it is lost.
Lost = tuple[Stop, str]


def _verdict(
    end: AgentEnd, lost: Lost | None, calls: LoggedCalls, *, others_reward: bool
) -> tuple[Stop, Score, str | None]:
    if (failure := calls.get("failure")) is not None and (lost is None or lost[1] == "agent_error"):
        # an agent that continues without an answer must not be judged for an infrastructure failure
        error = "\n".join(filter(None, [failure, end.error]))
        return "model_unavailable", Score(None, "model_unavailable"), error
    if not calls.get("calls") and not calls.get("unread") and (lost is None or lost[1] == "agent_error"):
        return _without_calls(end, lost, calls.get("refused"))
    if lost is not None:
        return lost[0], Score(None, lost[1]), end.error
    if end.reward is None:
        return end.stop_reason, Score(None, NO_JUDGE if others_reward else "no_reward"), end.error
    try:
        value = float(end.reward)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        error = f"the agent returned {short(end.reward, 80)}, expected a finite number as its reward, or None"
        return "environment_error", Score(None, "reward_error"), error
    return end.stop_reason, Score(value, OWN_REWARD), end.error


def _without_calls(end: AgentEnd, lost: Lost | None, refused: str | None) -> tuple[Stop, Score, str | None]:
    if refused is not None:
        return "environment_error", Score(None, "no_reply"), f"its first call was refused: {refused}"
    if lost is not None:
        return lost[0], Score(None, lost[1]), end.error
    error = "the agent never asked the policy: its client needs the address that it gets (llm.endpoint, or the default)"
    return "environment_error", Score(None, "no_call"), error


def _late(limits: AgentConfig) -> tuple[AgentEnd, Lost]:
    error = f"its rollout_timeout_s={limits.rollout_timeout_s:g} passed"
    return AgentEnd(error=error), ("timeout", "rollout_deadline")


def _raised(error: BaseException, policy: Policy) -> tuple[AgentEnd, Lost | None]:
    """How a rollout ended whose agent raised; frameworks wrap the errors of their clients.

    Refusals of other services than the policy's server count as errors of the user's code.
    """
    for cause in _causes(error):
        if isinstance(cause, McpServerError):
            return AgentEnd(error=str(cause)), ("mcp_unavailable", "mcp_unavailable")
        if isinstance(cause, UserError):  # openai-agents' error for a mistake in the code, even if a client wraps it
            break
        if isinstance(cause, UnicodeEncodeError) and cause.reason == "surrogates not allowed":
            # the policy wrote a lone surrogate, which cannot be sent back
            return AgentEnd(stop_reason="malformed", error=_traceback(cause)), None
        if not isinstance(cause, APIError) or not str(cause.request.url).startswith(policy.base_url):
            continue
        if cause.code in (CONTEXT_FULL, TOO_LARGE):  # the policy filled its context, or could not have been read
            return AgentEnd(stop_reason="max_tokens", error=str(cause)), None
        if isinstance(cause, APIStatusError) and cause.status_code in REFUSED:
            # the policy's own text is refused when it is sent back
            return AgentEnd(stop_reason="malformed", error=_traceback(cause)), None
        if isinstance(cause, APIConnectionError) or (isinstance(cause, APIStatusError) and cause.status_code >= 500):
            lost: Lost = ("model_unavailable", "model_unavailable")
            return AgentEnd(error=failure_text(cause)), lost
    return AgentEnd(error=_traceback(error)), ("environment_error", "agent_error")


def _causes(error: BaseException) -> list[BaseException]:
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return sorted(seen, key=lambda each: not isinstance(each, UserError))


def _traceback(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error)).strip()
    refusals = [cause for cause in _causes(error) if isinstance(cause, APIStatusError)]
    text = "\n".join([text, *map(failure_text, refusals[:1])])  # openai leaves out what the server said
    return text if len(text) <= 4_000 else f"...{text[-4_000:]}"


async def _calls(policy: Policy) -> LoggedCalls:
    # The proxy then answers no more; a `failure` stands for a proxy that does not respond.
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ENDED_S)) as session,
            session.post(f"{without_signature(policy.base_url)}/ended", headers=authorization(RUN_TOKEN)) as response,
        ):
            response.raise_for_status()
            return await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return {"failure": f"the LLM proxy did not return the rollout's calls: {type(error).__name__}: {error}"}


def _end_behind(policy: Policy) -> None:
    # In the background, so that the cancellation is not delayed.
    ending = asyncio.get_running_loop().create_task(_calls(policy))
    _endings.add(ending)
    ending.add_done_callback(_endings.discard)


_endings: set[asyncio.Task[Any]] = set()


def _plain_output(end: AgentEnd) -> tuple[object, AgentEnd]:
    try:
        return to_json_value(end.output), end
    except Exception as error:  # the user's own types may raise anything
        words = f"its output could not be written down: {type(error).__name__}: {error}"
        return None, dataclasses.replace(end, error="\n".join(filter(None, [end.error, words])))


def to_json_value(output: object) -> object:
    # What is not JSON, or is too long, becomes a text.
    if isinstance(output, BaseModel):
        output = output.model_dump(mode="json")
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        output = dataclasses.asdict(output)
    try:
        text = json.dumps(output, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        output = text = str(output)
    if len(text) > OUTPUT_CHARS:
        said = output if isinstance(output, str) else text
        return f"{said[:OUTPUT_CHARS]}… ({len(said):,} characters)"
    return json.loads(text) if output is not text else output
