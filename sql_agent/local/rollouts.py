"""Plays episodes side by side in this process: it samples replies in one batch, and environments answer in threads.

A rollout has the same conversation, verdict and end as in `sql_agent.play.served`, which plays against a model server.
`InProcess` plays so what a source asks for (`sql_agent.source.source.Transport`), and rewards it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from agentgrpo.chat.replies import Conversation
from dbbench_adapter.interaction import Message
from sql_agent.credit.row import Row
from sql_agent.datatypes import RolloutRecord
from sql_agent.environments.base import World
from sql_agent.local.datatypes import Sample, Sampling
from sql_agent.local.policy import LocalPolicy
from sql_agent.play.state import Call, Play
from sql_agent.settings.groups import AgentConfig
from sql_agent.source.datatypes import PendingGroup, Rollout, Task
from sql_agent.source.scoring import Rewarder

Played = tuple[RolloutRecord, Row | None]
"""What was played, and the one sequence that is trained on; None if the policy gave no reply."""


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
        environment: World,
        limits: AgentConfig,
        *,
        batch_size: int = 32,
        timeout_s: float | None = None,
    ) -> None:
        self._policy, self._environment, self._limits, self._batch_size = policy, environment, limits, batch_size
        self._timeout_s = timeout_s
        self._conversation = Conversation(policy.tokenizer, environment.tools)

    def play(self, tasks: Sequence[Any], sampling: Sequence[Sampling]) -> list[Played]:
        """Play each task once, from its first prompt to a named end, and judge the result.

        Args:
            sampling: sampling settings of the replies, one per task.
        Returns:
            One rollout per task, in order. A rollout that could not be judged has a score of None and the reason.
        """
        played: list[Played] = []
        for first in range(0, len(tasks), self._batch_size):
            batch = tasks[first : first + self._batch_size]
            with ThreadPoolExecutor(max_workers=min(len(batch), 16)) as threads:
                rollouts = [
                    LocalPlay(task, self._environment, self._conversation, self._limits, timeout_s=self._timeout_s)
                    for task in batch
                ]
                try:
                    _play_batch(
                        self._policy, rollouts, sampling[first : first + self._batch_size], self._limits, threads
                    )
                    played += threads.map(LocalPlay.finish, rollouts)
                finally:
                    list(threads.map(LocalPlay.close, rollouts))
        return played


def _play_batch(
    policy: LocalPolicy,
    rollouts: Sequence[LocalPlay],
    sampling: Sequence[Sampling],
    limits: AgentConfig,
    threads: ThreadPoolExecutor,
) -> None:
    list(threads.map(LocalPlay.start, rollouts))
    while going := [(r, s) for r, s in zip(rollouts, sampling, strict=True) if r.may_go_on(policy.max_positions)]:
        samples = policy.generate(
            [rollout.ids for rollout, _ in going], [how for _, how in going], max_new_tokens=limits.max_tokens
        )
        list(threads.map(lambda pair: pair[0][0].step_sample(pair[1]), zip(going, samples, strict=True)))


class LocalPlay(Play):
    """Plays one episode and keeps its conversation, as messages and as token ids.

    Args:
        after: an ended rollout with at least one reply; its conversation, with the same ids, continues with this
            task's question. None starts a new conversation.
        timeout_s: see `Player`.
    """

    def __init__(
        self,
        task: Any,
        environment: World,
        conversation: Conversation,
        limits: AgentConfig,
        *,
        after: LocalPlay | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(task, environment, limits)
        self._conversation, self._after, self._timeout_s = conversation, after, timeout_s
        self._first: list[Message] = []
        self.ids: list[int] = []
        self._prompt: list[int] = []
        self._mask: list[int] = []
        self._log_probs: list[float] = []
        self._turn_ends: list[int] = []

    def start(self) -> None:
        """Open the episode and write the first prompt, which ends with what the episode shows at its opening."""
        with self.lose_on_failure():
            self.open()
        self._first, question = list(self.messages), self.messages[-1]
        if self._after:
            self.messages = [*self._after.messages, question]
        self._prompt = (
            self._after._followed_by(question) if self._after else self._conversation.first_prompt(self._first)
        )
        self.ids = list(self._prompt)
        self._is_late("a database call")

    def may_go_on(self, max_positions: int) -> bool:
        if self.stop is None and len(self.ids) >= max_positions:
            self.stop = "max_tokens"
        return self.stop is None

    def step_sample(self, sample: Sample) -> None:
        if self._is_late("a model call"):
            return
        self.prompt_tokens += len(self.ids)
        self.completion_tokens += len(sample.ids)
        self._append(sample.ids, sample.log_probs)
        self._turn_ends.append(len(self.ids))
        reply = self._conversation.read_reply(sample.ids)
        replied = len(self.messages) + 1
        cut = sample.finish_reason == "length"
        self.step(reply, cut=cut)
        if cut or self.score is not None or self._is_late("a database call"):
            return
        if self.stop is None and self.environment.history(self.messages) != self.messages:
            self.stop = "max_tokens"  # the protocol would cut the conversation, which would make two sequences
        if self.stop is None:
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

    def finish(self) -> Played:
        with self.lose_on_failure():
            self.judge()
            self.compare()
        start = len(self._prompt)
        masks, log_probs = (0,) * start + tuple(self._mask), (0.0,) * start + tuple(self._log_probs)
        row = Row(tuple(self.ids), masks, log_probs, start, self.num_turns, turn_ends=tuple(self._turn_ends))
        return self.record(), row if self.num_turns else None

    def _is_late(self, call: Call) -> bool:
        """Whether the time is up; the rollout is lost then, by the call that was open."""
        if self._timeout_s is None or self.seconds <= self._timeout_s:
            return False
        self.lose_at_deadline(call, self._timeout_s)
        return True

    def _append(self, ids: Sequence[int], log_probs: Sequence[float] | None = None) -> None:
        self.ids += ids
        self._mask += [int(log_probs is not None)] * len(ids)
        self._log_probs += log_probs if log_probs is not None else [0.0] * len(ids)


# Rollouts that are rewarded side by side; the deadline of a reward begins when it is asked for.
REWARDED_TOGETHER = 16


class InProcess:
    """Plays all that is queued side by side.

    Args:
        sampling: of the rollouts that are trained on.
        task_of: makes a task of its fields (`Environment.task`).
    """

    def __init__(self, player: Player, rewarder: Rewarder, sampling: Sampling, task_of: Callable[[Task], Any]) -> None:
        self._player, self._rewarder, self._sampling, self._task_of = player, rewarder, sampling, task_of
        self._queued: list[Rollout] = []

    async def enqueue(self, slots: Sequence[PendingGroup], *, step: int, validate: bool) -> None:
        self._queued += [rollout for slot in slots for rollout in slot.groups[-1]]

    async def collect(self) -> None:
        queued, self._queued = self._queued, []
        if not queued:
            return
        sampling = [self._sampling if r.temperature is None else Sampling(r.temperature) for r in queued]
        played = self._player.play([self._task_of(rollout.task) for rollout in queued], sampling)
        free = asyncio.Semaphore(REWARDED_TOGETHER)
        with torch.random.fork_rng():  # a reward function may set a seed, which must not decide what is sampled next
            await asyncio.gather(
                *(self._settle(rollout, *each, free) for rollout, each in zip(queued, played, strict=True))
            )

    async def end(self, slots: Sequence[PendingGroup]) -> None:
        for rollout in self._queued:
            rollout.lost = "step_deadline"
        self._queued = []

    async def _settle(self, rollout: Rollout, record: RolloutRecord, row: Row | None, free: asyncio.Semaphore) -> None:
        rollout.played, rollout.row = record, row
        async with free:
            await self._rewarder(rollout)
        if row is None and not rollout.lost:
            rollout.lost = "no_turns"
        rollout.settled = True
