"""What a rollout that has ended earns, by its preset, reward functions, the LLM as judge and the reward model.

The reward model scores the conversation up to the policy's last message, in the form that
`reward_model.pairs_from_rollouts` trains on. Leaves out how verdict, numbers and score become a reward
(`sql_agent.rewards`).
"""

from __future__ import annotations

import logging
import os
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from agentgrpo.chat.conversations import RowError, normalize_tool_call_ids, read_conversation
from agentgrpo.chat.messages import FunctionCall, Message
from agentgrpo.printed_commands import agentgrpo_command
from reward_model.client import TOKEN_VARIABLE, RewardClient, ScorerRefusedError, ScorerUnavailableError
from sql_agent.datatypes import FunctionReward, Reward, RolloutRecord, ScorerResult
from sql_agent.names import RANKING
from sql_agent.reward_functions.ask import RewardFunctions
from sql_agent.reward_functions.datatypes import LoadedReward, RewardRecord, RewardUnavailable, UnscorableError
from sql_agent.reward_functions.ranking import TIE, Ranker
from sql_agent.rewards import (
    NO_JUDGE,
    REWARDS,
    RewardPreset,
    answered,
    reward,
    summed_reward,
    with_success,
    with_term,
    without_function,
)
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.settings.main_job import RolloutConfig
from sql_agent.source.datatypes import Rollout

logger = logging.getLogger(__name__)

MAX_MESSAGES, MAX_CHARS = 512, 250_000
"""Longest conversation that is sent. The service takes as many messages, and 1 MiB, in which a character may be four
bytes."""
MAX_ATTEMPTS = 1_000
"""Tries for one score; in practice `reward_model.timeout_s` ends them."""


class RolloutScorer:
    """Scores rollouts of one event loop, many at once.

    Args:
        counts_pauses: see `RewardClient`.
    """

    def __init__(self, cfg: RewardModelConfig, *, counts_pauses: bool = False) -> None:
        assert cfg.url is not None
        token = os.environ.get(TOKEN_VARIABLE)
        self._client = RewardClient(
            cfg.url, token=token, timeout_s=cfg.timeout_s, max_attempts=MAX_ATTEMPTS, counts_pauses=counts_pauses
        )

    async def score(self, record: RolloutRecord) -> ScorerResult | None:
        """Ask the reward model about a rollout; None for one that could not be judged, which is lost anyway.

        Wrong rollouts are scored too. The score does not change their reward, but the correlation of score and
        correctness needs both.
        """
        if record.score.reason == NO_JUDGE:
            if not answered(record):
                return ScorerResult(None, "no_answer")
        elif record.score.value is None:
            return None
        try:
            score = await self._client.score(scored_conversation(record.messages))
        except ScorerUnavailableError as error:
            logger.warning("task %s has no score: %s", record.task_id, error)
            return ScorerResult(None, "scorer_unavailable")
        except (ScorerRefusedError, RowError) as error:  # an agent of the user's own may send what has no score
            logger.warning("the reward model refused task %s: %s", record.task_id, error)
            return ScorerResult(None, "scorer_refused")
        return ScorerResult(score.value, truncated=score.truncated)

    @property
    def down_s(self) -> float:
        """Return the seconds since the first failure after the last score; 0 while the service answers."""
        return self._client.down_s

    async def aclose(self) -> None:
        await self._client.aclose()


def scored_conversation(messages: Sequence[dict[str, Any]]) -> list[Message]:
    """Return a rollout's messages up to the policy's last one, in the form of `reward_model.pairs_from_rollouts`.

    A service takes whatever a policy can write: a refusal would cost the group its scores, and be learnt. So a call
    has a name and an object as its arguments, only the first message is a system's, a result without its call is left
    out, and of a conversation that is longer than a service reads the oldest turns go, which it would cut itself.

    Raises:
        RowError: the reward model does not know a message's form, for example an image that an agent has sent.
    """
    said = normalize_tool_call_ids(read_conversation(list(_scorable(messages)), "messages", Counter()), "messages")
    spoken = (k for k, m in enumerate(said) if m.role == "assistant" and (m.content.strip() or m.tool_calls))
    return _newest(said[: max(spoken, default=-1) + 1])


def _scorable(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    open_calls: list[Any] = []
    for number, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            open_calls = [call.get("id") for call in calls]
            message = {**message, "tool_calls": [{**call, "function": _named(call["function"])} for call in calls]}
        elif message.get("role") == "tool":
            answered = next((each for each in open_calls if not each or message.get("tool_call_id") in (None, each)), 0)
            if answered == 0:
                continue
            open_calls.remove(answered)
        yield {**message, "role": "user"} if message.get("role") == "system" and number > 0 else message


def _named(function: dict[str, Any]) -> dict[str, Any]:
    arguments = FunctionCall(name="-", arguments=function.get("arguments") or "{}").as_object
    known = function if isinstance(arguments, dict) else {**function, "arguments": {"arguments": arguments}}
    return {**known, "name": function.get("name") or "unnamed"}


def _newest(said: list[Message]) -> list[Message]:
    """The first prompt and the newest turns that a scoring service reads, each with its results."""
    turns = [k for k, message in enumerate(said) if message.role == "assistant"]
    sizes = [len(message.model_dump_json()) for message in said]
    prompt = turns[0] if turns else len(said)
    left_chars, left = MAX_CHARS - sum(sizes[:prompt]), MAX_MESSAGES - prompt
    begin = len(said)
    for start in reversed(turns):
        if begin < len(said) and (sum(sizes[start:]) > left_chars or len(said) - start > left):
            break
        begin = start
    return [*said[:prompt], *said[begin:]]


def start_command(url: str) -> str:
    """Return the command that starts a scoring service at the port of `url`."""
    port = urlsplit(url).port or 8008
    return agentgrpo_command("reward serve", "--model", "MERGED", "--port", str(port))


async def check_scorer(cfg: RewardModelConfig) -> None:
    """Check before a run that the scoring service gives scores, if there is one.

    Raises:
        ValueError: it does not answer, or refuses to score; the message says what to do.
    """
    if cfg.url is None:
        return
    token = os.environ.get(TOKEN_VARIABLE)
    async with RewardClient(cfg.url, token=token, timeout_s=min(cfg.timeout_s, 10.0), max_attempts=2) as client:
        if not await client.ready():
            raise ValueError(
                f"no reward model is ready at {cfg.url}; start one with `{start_command(cfg.url)}`, "
                "wait until its /readyz says yes, or leave out --reward-model-url"
            )
        try:
            await client.score(
                [Message(role="user", content="Are you there?"), Message(role="assistant", content="Yes.")]
            )
        except ScorerRefusedError as error:
            raise ValueError(
                f"the reward model refuses to score: {error}; its token is read from {TOKEN_VARIABLE}"
            ) from None
        except ScorerUnavailableError as error:
            raise ValueError(
                f"the reward model at {cfg.url} is ready but gives no score: {error}; its log has the cause"
            ) from None


class Rewarder:
    """Rewards the rollouts of one event loop, many at once.

    Args:
        functions: those that `rollout.reward` names (`sql_agent.reward_functions.load`).
        threads: functions that may compute at the same time.
        preset: replaces `rollout.reward`, for values that have no name.
        counts_pauses: see `RewardClient`.
    """

    def __init__(
        self,
        rollout: RolloutConfig,
        reward_model: RewardModelConfig,
        functions: Sequence[LoadedReward] = (),
        *,
        threads: int,
        preset: RewardPreset | None = None,
        counts_pauses: bool = False,
    ) -> None:
        self._rollout, self._reward_model, self._counts_pauses = rollout, reward_model, counts_pauses
        self._functions = RewardFunctions([each for each in functions if each.label != RANKING], threads)
        self._ranked = {RANKING: FunctionReward(TIE)} if RANKING in rollout.weights else {}
        self._preset = preset or REWARDS.get(str(rollout.reward))
        self._scorer: RolloutScorer | None = None

    @property
    def rewards_alone(self) -> bool:
        """Whether a rollout gets a reward even if its environment has no judge."""
        return bool(self._functions or self._ranked) or self._reward_model.url is not None

    async def __call__(self, rollout: Rollout) -> None:
        """Fill in what a rollout that was played earned."""
        record = rollout.record
        if self._scorer is None and self._reward_model.url is not None:
            self._scorer = RolloutScorer(self._reward_model, counts_pauses=self._counts_pauses)
        rollout.scorer = await self._scorer.score(record) if self._scorer else None
        asked = record.score.value is not None or record.score.reason == NO_JUDGE
        given = await self._functions.ask(RewardRecord.of(record, rollout.task)) if asked else {}
        self.reward(rollout, given | self._ranked)

    def reward(self, rollout: Rollout, given: Mapping[str, FunctionReward]) -> None:
        """Reward a rollout whose scorer and functions have answered.

        Args:
            given: the results of the reward functions, by label.
        """
        record, scorer = rollout.record, rollout.scorer
        try:
            if self._preset is not None:
                rollout.earn(reward(record, self._preset, scorer, self._reward_model))
            else:
                rollout.earn(summed_reward(record, self._rollout.weights, given, scorer, self._reward_model))
        except Exception:  # an invalid verdict is the environment's fault and loses this rollout, not the run
            logger.exception("the reward of task %s raised", record.task_id)
            rollout.earn(Reward(None, "reward_error", error=traceback.format_exc()))
        score = with_success(record.score, rollout.reward, self._rollout.success_reward)
        rollout.played = replace(record, score=score)
        # only a rollout whose own request failed has news about the service
        if self._scorer and scorer is not None and scorer.reason == "scorer_unavailable":
            rollout.scorer_down_s = self._scorer.down_s

    async def aclose(self) -> None:
        if self._scorer is not None:
            await self._scorer.aclose()
            self._scorer = None


async def rank_group(group: Sequence[Rollout], rank: Ranker, weight: float) -> None:
    """Replace the ties in the rewards of a group that has ended by the places that an LLM gives its rollouts.

    Args:
        weight: of the ranking in `rollout.reward`.
    """
    known = [rollout for rollout in group if rollout.reward is not None]
    if len(known) < 2:
        return
    try:
        values = await rank([RewardRecord.of(rollout.record, rollout.task) for rollout in known])
    except UnscorableError as error:  # the least for all, or policies would learn to write what spoils a ranking
        logger.warning("the judge cannot rank the rollouts of task %s: %s", known[0].task_id, error)
        values = [0.0] * len(known)
    except RewardUnavailable as error:
        logger.warning("the rollouts of task %s are not ranked: %s", known[0].task_id, error)
        for rollout in known:
            without = without_function(rollout.earned, RANKING, error.reason)
            said = "\n".join(filter(None, (without.error, str(error))))
            rollout.earn(replace(without, lacking=without.lacking | {RANKING: error.reason}, error=said))
            rollout.unshaped = None if rollout.lost else error.reason
        return
    for rollout, value in zip(known, values, strict=True):
        rollout.earned = with_term(rollout.earned, RANKING, value, weight)
