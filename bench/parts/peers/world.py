"""The same DB-Bench episode behind the loops of the peers: what its tools answer and what its end is worth."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from bench.parts.peers.order import REWARD
from dbbench_adapter.protocols import DatabaseEpisode
from dbbench_adapter.protocols.fc import FcEpisode
from sql_agent.environments.dbbench import DbBench
from sql_agent.rewards import REWARDS
from sql_agent.settings.groups import AgentConfig


def open_world() -> DbBench:
    return DbBench("strict", "fc", "sqlite")


def value_of(world: DbBench, episode: DatabaseEpisode) -> float:
    """The reward of `REWARD`, which is least where nothing was committed: the rollout was cut, or called no tool."""
    preset = REWARDS[REWARD]
    if not episode.done:
        return preset.out_of_limits
    return preset.correct if world.judge(episode).value == 1.0 else preset.incorrect


class SqlTools:
    """DB-Bench's episode as TRL's GRPOTrainer takes one: each public method is a tool.

    TRL's loop ends a rollout at a reply without a call. The smallest change that ends it at the commit is in this class
    and not in TRL: the commit's result is longer than a rollout may be, and TRL (grpo_trainer.py, `_tool_call_loop`)
    drops such a result and goes on without the rollout.
    """

    world: ClassVar[DbBench]
    """Open; set before TRL makes an environment."""
    too_long: ClassVar[str]
    """A text of more tokens than a rollout may have."""

    def __init__(self) -> None:
        self._episode: DatabaseEpisode | None = None

    def reset(self, task: str, **_: Any) -> None:
        if self._episode is not None:
            self._episode.close()
        self._episode = self.world.open(self.world.task(json.loads(task)), AgentConfig())

    def execute_sql(self, query: str) -> str:
        """Run one SQL statement on the MySQL database and return its raw response.

        Args:
            query: The SQL statement.
        """
        return self._call("execute_sql", {"query": query})

    def commit_final_answer(self, answers: list[str]) -> str:
        """Commit the final answer and end the task.

        Args:
            answers: The answer values.
        """
        answer = self._call("commit_final_answer", {"answers": answers})
        return self.too_long if self._episode is not None and self._episode.done else answer

    def get_reward(self) -> float:
        assert self._episode is not None
        return value_of(self.world, self._episode)

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        assert isinstance(self._episode, FcEpisode)
        return self._episode.call_tool(name, json.dumps(arguments))


def trained_pieces(ids: Sequence[int], mask: Sequence[int]) -> list[tuple[int, ...]]:
    """The runs of trained tokens of a row, each of which should be a reply.

    Args:
        mask: 1 where a token is trained.
    """
    pieces: list[list[int]] = []
    before = 0
    for token, trained in zip(ids, mask, strict=True):
        if trained and not before:
            pieces.append([])
        if trained:
            pieces[-1].append(token)
        before = trained
    return [tuple(piece) for piece in pieces]


def count_sampled(pieces: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]) -> int:
    """The number of trained tokens that the sampler returned: of each piece the longest beginning that is also the
    beginning of a reply. A reply counts once, and may have been cut.

    Args:
        pieces: what is trained of one or more rollouts.
        replies: all replies that the sampler returned for them.
    """
    whole = Counter(map(tuple, replies))
    found, left = 0, []
    for piece in map(tuple, pieces):  # nearly all pieces are a whole reply, and need no search
        if whole[piece]:
            whole[piece] -= 1
            found += len(piece)
        else:
            left.append(piece)
    rest = list(whole.elements())
    for piece in left:
        best = max(rest, key=lambda reply: _alike(piece, reply), default=())
        found += _alike(piece, best)
        if best:
            rest.remove(best)
    return found


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
