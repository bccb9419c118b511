"""Plays episodes side by side in this process: it samples replies in one batch, and environments answer in threads.

A rollout has the same conversation, verdict and end as in `sql_agent.agent`, which plays against a model server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from agentgrpo.chat.replies import Conversation
from dbbench_adapter.datatypes import Score
from dbbench_adapter.engines import BackendUnavailable, TableError
from dbbench_adapter.protocols import Message
from sql_agent.credit.row import Row
from sql_agent.datatypes import AgentConfig, RolloutRecord, StopReason
from sql_agent.environments.base import EpisodeLostError, with_observation
from sql_agent.local.datatypes import LocalRollout, Playable, Sample, Sampling
from sql_agent.local.policy import LocalPolicy


class Player:
    """Plays tasks of one environment with one policy.

    Args:
        environment: an environment that has been entered, if it is a context manager.
        limits: turns, tokens per reply and the statement timeout; its sampling settings belong to the main job's agent
            and are not read here.
        batch_size: episodes that are played, and replies that are sampled, side by side.
        timeout_s: wall clock of one rollout, in seconds; it is looked at when a reply or an answer has ended. None: no
            limit.
    Raises:
        ChatTemplateError: the model's template cannot be used.
    """

    def __init__(
        self,
        policy: LocalPolicy,
        environment: Playable,
        limits: AgentConfig,
        *,
        batch_size: int = 32,
        timeout_s: float | None = None,
    ) -> None:
        self._policy, self._environment, self._limits, self._batch_size = policy, environment, limits, batch_size
        self._timeout_s = timeout_s
        self._conversation = Conversation(policy.tokenizer, environment.tools)

    def play(self, tasks: Sequence[Any], sampling: Sequence[Sampling]) -> list[LocalRollout]:
        """Play each task once, from its first prompt to a named end, and judge the result.

        Args:
            sampling: sampling settings of the replies, one per task.
        Returns:
            One rollout per task, in order. A rollout that could not be judged has a score of None and the reason.
        """
        played: list[LocalRollout] = []
        for first in range(0, len(tasks), self._batch_size):
            batch = tasks[first : first + self._batch_size]
            with ThreadPoolExecutor(max_workers=min(len(batch), 16)) as threads:
                rollouts = [
                    Rollout(task, self._environment, self._conversation, self._limits, timeout_s=self._timeout_s)
                    for task in batch
                ]
                try:
                    _play_batch(
                        self._policy, rollouts, sampling[first : first + self._batch_size], self._limits, threads
                    )
                    played += threads.map(Rollout.finish, rollouts)
                finally:
                    list(threads.map(Rollout.close, rollouts))
        return played


def _play_batch(
    policy: LocalPolicy,
    rollouts: Sequence[Rollout],
    sampling: Sequence[Sampling],
    limits: AgentConfig,
    threads: ThreadPoolExecutor,
) -> None:
    list(threads.map(Rollout.start, rollouts))
    while going := [(r, s) for r, s in zip(rollouts, sampling, strict=True) if r.may_go_on(policy.max_positions)]:
        samples = policy.generate(
            [rollout.ids for rollout, _ in going], [how for _, how in going], max_new_tokens=limits.max_tokens
        )
        list(threads.map(lambda pair: pair[0][0].take(pair[1]), zip(going, samples, strict=True)))


class Rollout:
    """Plays one episode and keeps its conversation, as messages and as token ids.

    Args:
        after: an ended rollout with at least one reply; its conversation, with the same ids, continues with this
            task's question. None starts a new conversation.
        timeout_s: see `Player`.
    """

    def __init__(
        self,
        task: Any,
        environment: Playable,
        conversation: Conversation,
        limits: AgentConfig,
        *,
        after: Rollout | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._task, self._environment, self._conversation, self._limits = task, environment, conversation, limits
        self._after, self._first = after, environment.messages(task)
        self.messages: list[Message] = []
        self.ids: list[int] = []
        self._prompt: list[int] = []
        self._mask: list[int] = []
        self._log_probs: list[float] = []
        self._replies = self._prompt_tokens = 0
        self._max_replies = environment.max_replies(limits)
        self._episode: Any = None
        self._stop: StopReason | None = None
        self._score: Score | None = None
        self._error: str | None = None
        self._started, self._timeout_s = time.perf_counter(), timeout_s

    def start(self) -> None:
        """Open the episode and write the first prompt, which ends with what the episode shows at its opening."""
        with self._losing():
            self._episode = self._environment.open(self._task, self._limits)
            self._first = with_observation(self._first, self._episode)
        question = self._first[-1]
        self.messages = [*self._after.messages, question] if self._after else list(self._first)
        self._prompt = (
            self._after._followed_by(question) if self._after else self._conversation.first_prompt(self._first)
        )
        self.ids = list(self._prompt)
        self._check_time("a database call", "db_deadline")

    def may_go_on(self, max_positions: int) -> bool:
        if self._stop is None and len(self.ids) >= max_positions:
            self._stop = "max_tokens"
        return self._stop is None

    def take(self, sample: Sample) -> None:
        """Record a reply, give it to the episode, and append the episode's answer."""
        if self._check_time("a model call", "model_deadline"):
            return
        self._replies += 1
        self._prompt_tokens += len(self.ids)
        self._append(sample.ids, sample.log_probs)
        reply = self._conversation.read_reply(sample.ids)
        self.messages.append(reply)
        if sample.finish_reason == "length":
            self._stop = "max_tokens"
            return
        replied = len(self.messages)
        with self._losing():
            for answer in self._answers(reply):
                self.messages.append(answer)
        if self._score is not None or self._check_time("a database call", "db_deadline"):
            return
        if self._episode.done:
            self._stop = _ENDS.get(self._episode.status, "malformed")
        elif self._replies >= self._max_replies:
            self._stop = "max_turns"
        elif self._environment.history(self.messages) != self.messages:
            self._stop = "max_tokens"  # the protocol would cut the conversation, which would make two sequences
        else:
            if self.ids[-1] != self._conversation.eos_id:
                self._append([self._conversation.eos_id])
            self._append(self._conversation.after_reply(self._first, reply, self.messages[replied:]))

    def _followed_by(self, question: Message) -> list[int]:
        place = max(k for k, message in enumerate(self.messages) if message["role"] == "assistant")
        between = self._conversation.after_reply(
            self._first, self.messages[place], [*self.messages[place + 1 :], question]
        )
        closed = [] if self.ids[-1] == self._conversation.eos_id else [self._conversation.eos_id]
        return [*self.ids, *closed, *between]

    def finish(self) -> LocalRollout:
        if self._score is None:
            with self._losing():
                # the context was full before the first reply, or the environment judges what the policy left behind
                self._score = self._environment.judge(self._episode) if self._replies else Score(None, "no_reply")
        assert self._stop is not None and self._score is not None
        judged = self._score.value is not None
        start = len(self._prompt)
        masks, log_probs = (0,) * start + tuple(self._mask), (0.0,) * start + tuple(self._log_probs)
        row = Row(tuple(self.ids), masks, log_probs, prompt_tokens=start, num_turns=self._replies)
        record = RolloutRecord(
            task_id=self._task.id,
            kind=self._task.kind,
            stop_reason=self._stop,
            score=self._score,
            num_turns=self._replies,
            malformed_calls=self._episode.malformed_calls if self._episode is not None else 0,
            messages=self.messages,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=sum(self._mask),
            seconds=time.perf_counter() - self._started,
            error=self._error,
            tools=list(self._environment.tools),
            comparison=self._environment.comparison(self._episode) if judged else None,
        )
        return LocalRollout(record, row if self._replies else None)

    def close(self) -> None:
        if self._episode is not None:
            self._episode.close()

    def _append(self, ids: Sequence[int], log_probs: Sequence[float] | None = None) -> None:
        self.ids += ids
        self._mask += [int(log_probs is not None)] * len(ids)
        self._log_probs += log_probs if log_probs is not None else [0.0] * len(ids)

    def _answers(self, reply: Message) -> Iterator[Message]:
        """Give the reply to the episode and yield its answers one by one, so that those before a failure are kept."""
        if not self._environment.tools:
            yield from self._episode.step(reply["content"])
            return
        calls = reply.get("tool_calls")
        if not calls:
            yield from self._episode.without_call(reply["content"])
            return
        for call in calls:
            content = self._episode.call_tool(call["function"]["name"], call["function"]["arguments"])
            yield {"role": "tool", "tool_call_id": call["id"], "content": content}
            if self._episode.done:
                return

    def _check_time(self, call: str, reason: str) -> bool:
        """Return whether the time is up; the rollout is lost then, by the call that was open (`sql_agent.agent`)."""
        if self._timeout_s is None or time.perf_counter() - self._started <= self._timeout_s:
            return False
        self._stop, self._score = "timeout", Score(None, reason)
        self._error = f"its rollout_timeout_s={self._timeout_s:g} passed with {call} open"
        return True

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """End this rollout, with the failure's name as reason and without a verdict, if the environment fails."""
        try:
            yield
        except BackendUnavailable as failure:
            self._stop, self._score, self._error = "db_unavailable", Score(None, "db_unavailable"), str(failure)
        except TableError as failure:
            self._stop, self._score, self._error = "table_error", Score(None, "table_error"), str(failure)
        except EpisodeLostError as failure:
            self._stop, self._score, self._error = "environment_error", Score(None, failure.reason), str(failure)


_ENDS: dict[str, StopReason] = {
    "completed": "answered",
    "task limit reached": "max_turns",
    "task_limit_reached": "max_turns",
}
"""Stop reasons of rollouts by the episode's status; every other status is the policy's fault: `malformed`."""
