"""Asks the reward model to score a finished rollout: the link between `sql_agent.rewards` and `reward_model.client`.

The conversation is scored up to the policy's last message, in the form that `reward_model.pairs_from_rollouts` trains
on. Leaves out how a score becomes a reward (`sql_agent.rewards`).
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from agentgrpo.chat.conversations import RowError, legal, read_conversation
from agentgrpo.chat.messages import Message
from agentgrpo.printed_commands import agentgrpo_command
from reward_model.client import TOKEN_VARIABLE, RewardClient, ScorerRefusedError, ScorerUnavailableError
from sql_agent.datatypes import RolloutRecord, ScorerResult
from sql_agent.rewards import NO_JUDGE, answered
from sql_agent.settings.groups import RewardModelConfig

logger = logging.getLogger(__name__)

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
            score = await self._client.score(conversation(record.messages))
        except ScorerUnavailableError as error:
            logger.warning("task %s has no score: %s", record.task_id, error)
            return ScorerResult(None, "scorer_unavailable")
        except (ScorerRefusedError, RowError) as error:
            logger.warning("the reward model refused task %s: %s", record.task_id, error)
            return ScorerResult(None, "scorer_refused")
        return ScorerResult(score.value, truncated=score.truncated)

    @property
    def down_s(self) -> float:
        """Return the seconds since the first failure after the last score; 0 while the service answers."""
        return self._client.down_s

    async def aclose(self) -> None:
        await self._client.aclose()


def conversation(messages: Sequence[dict[str, Any]]) -> list[Message]:
    """Return a rollout's messages up to the policy's last one, in the form of `reward_model.pairs_from_rollouts`.

    Raises:
        RowError: the reward model does not know a message's form, for example a call without a name.
    """
    said = legal(read_conversation(list(messages), "messages", Counter()), "messages")
    spoken = (k for k, m in enumerate(said) if m.role == "assistant" and (m.content.strip() or m.tool_calls))
    return said[: max(spoken, default=-1) + 1]


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
