"""The one loop of a rollout, from its first prompt to a named end and a verdict: replies, answers, limits, losses.

Three players write the replies: a model server (`served`), a policy in this process (`sql_agent.local.rollouts`), and a
script (`scripted`). What a verdict earns, and a second try of a lost rollout, are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from dbbench_adapter.datatypes import Score
from dbbench_adapter.engines import BackendUnavailable, TableError
from dbbench_adapter.interaction import Episode, Message, Stop
from sql_agent.datatypes import RolloutRecord
from sql_agent.environments.base import EpisodeLostError, World, with_observation
from sql_agent.settings.groups import AgentConfig

Call = Literal["no call", "a model call", "a database call"]
# Reasons of rollouts that are lost at their deadline, by the call that was open then.
_DEADLINES: dict[Call, str] = {
    "no call": "rollout_deadline",
    "a model call": "model_deadline",
    "a database call": "db_deadline",
}


class Play:
    """
    Args:
        limits: turns and the statement timeout; who writes the replies keeps the limit of their tokens.
    """

    def __init__(self, task: Any, environment: World, limits: AgentConfig) -> None:
        self._started = time.perf_counter()
        self.task, self.environment, self.limits = task, environment, limits
        self.messages = environment.messages(task)
        self.num_turns = self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self.stop: Stop | None = None
        self.score: Score | None = None
        self.error: str | None = None
        self._episode: Episode | None = None
        self._answers: Iterator[Message] | None = None
        self._max_turns = environment.max_replies(limits)
        self._comparison: dict[str, Any] | None = None

    def open(self) -> None:
        """The episode's observation ends the first prompt. It may block, as `step`, `judge` and `close` may."""
        self._episode = episode = self.environment.open(self.task, self.limits)
        self.messages = with_observation(self.messages, episode)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    @property
    def turns_left(self) -> int:
        return self._max_turns - self.num_turns

    @property
    def malformed_calls(self) -> int:
        return self._episode.malformed_calls if self._episode is not None else 0

    def record_reply(self, reply: Message, *, cut: bool) -> None:
        """A reply that was cut at its token limit is not answered, and ends the rollout."""
        assert self._episode is not None
        self.num_turns += 1
        self.messages.append(reply)
        if cut:
            self.stop = "max_tokens"
        else:
            self._answers = self._episode.answer(reply)

    @property
    def unanswered(self) -> bool:
        """Whether the world may have more to say about the last reply."""
        return self._answers is not None

    def next_answer(self) -> Message | None:
        """The world's next answer to the last reply, not yet recorded; None after the last one. It may block."""
        assert self._answers is not None
        return next(self._answers, None)

    def record_answer(self, answer: Message | None) -> None:
        """After the last one the rollout goes on, if neither the episode nor its turns have ended."""
        if answer is not None:
            self.messages.append(answer)
            return
        assert self._episode is not None
        self._answers = None
        self.stop = self._episode.stop or (None if self.turns_left > 0 else "max_turns")

    def step(self, reply: Message, *, cut: bool = False) -> None:
        with self.lose_on_failure():
            self.record_reply(reply, cut=cut)
            while self.unanswered:
                self.record_answer(self.next_answer())

    def lose(self, stop: Stop, reason: str, error: str) -> None:
        """End the rollout without a verdict, because of something that the policy did not cause."""
        self.stop, self.score, self.error = stop, Score(None, reason), error

    def lose_at_deadline(self, call: Call, timeout_s: float) -> None:
        # not judged as it stands: the machine's speed must not decide what is trained on
        self.lose("timeout", _DEADLINES[call], f"its rollout_timeout_s={timeout_s:g} passed with {call} open")

    @contextmanager
    def lose_on_failure(self) -> Iterator[None]:
        """The failures are those of the environment and its database; everything else is raised."""
        try:
            yield
        except BackendUnavailable as failure:
            self.lose("db_unavailable", "db_unavailable", str(failure))
        except TableError as failure:
            self.lose("table_error", "table_error", str(failure))
        except EpisodeLostError as failure:
            self.lose("environment_error", failure.reason, str(failure))

    def judge(self) -> None:
        """A lost rollout is not judged."""
        if self.score is not None:
            return
        # a model server may name the first reply malformed; otherwise the context was full before the first reply
        replied = self.num_turns > 0 or self.stop == "malformed"
        self.score = self.environment.judge(self._episode) if replied else Score(None, "no_reply")

    def compare(self) -> None:
        # apart from `judge`: it may read tables once more, which scripted plays need not wait for
        if self.score is None or self.score.value is None:
            return
        if compared := self.environment.comparison(self._episode):
            self._comparison = compared.to_dict()

    def close(self) -> None:
        if self._episode is not None:
            self._episode.close()

    def record(self) -> RolloutRecord:
        assert self.stop is not None and self.score is not None
        return RolloutRecord(
            task_id=self.task.id,
            kind=self.task.kind,
            stop_reason=self.stop,
            score=self.score,
            num_turns=self.num_turns,
            malformed_calls=self.malformed_calls,
            refused_statements=self._episode.refused_statements if self._episode is not None else 0,
            messages=self.messages,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            seconds=self.seconds,
            error=self.error,
            tools=list(self.environment.tools),
            comparison=self._comparison,
        )
