"""Defines the records of a batch's rollouts, from the report of how one ended to the group that is trained.

`RolloutOutcome` is that report, `Rollout` is all that is known of one rollout, and `GroupSlot` is one group's place in
the batch. The row is `sql_agent.credit.row`. Importing this is instant.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dbbench_adapter.datatypes import Score
from sql_agent.credit.row import Row
from sql_agent.datatypes import Reward, RolloutRecord, ScorerResult


class StopError(RuntimeError):
    """Says why a run must not go on, and what to do."""


Task = dict[str, Any]
"""A task as JSON values, from the environment's `verl_rows`."""


@dataclass(frozen=True)
class RolloutOutcome:
    """How a rollout ended and what it is worth; a runner writes it as JSON into the rollout's last span."""

    record: RolloutRecord
    reward: Reward
    scorer: ScorerResult | None = None
    """None if no reward model was asked."""
    scorer_down_s: float = 0.0
    """Seconds for which the reward model had given no score, if this rollout got none either; else 0."""
    ended_at: float = 0.0
    """Unix time."""
    one_conversation: bool = True
    """Whether the agent holds one conversation. If so, a prompt that does not continue the turn before is a break, and
    a prompt that comes twice is a retried call. False for an agent with handoffs, sub-agents or parallel calls."""

    @property
    def score_failure(self) -> str | None:
        """Return why the requested score is missing; None if it is there, and if no score was requested."""
        return self.scorer.failure if self.scorer else None

    def to_json(self) -> str:
        """Return the text for the span, without what the judge compared, because no span holds a solution."""
        return json.dumps(asdict(replace(self, record=replace(self.record, comparison=None))))

    @staticmethod
    def from_json(text: str) -> RolloutOutcome:
        fields = json.loads(text)
        record, scorer = fields["record"], fields["scorer"]
        fields["record"] = RolloutRecord(**record | {"score": Score(**record["score"])})
        fields["reward"] = Reward(**fields["reward"])
        fields["scorer"] = ScorerResult(**scorer) if scorer else None
        return RolloutOutcome(**fields)


@dataclass
class Rollout:
    """What is known of one rollout of a batch."""

    group: str
    task: Task
    temperature: float | None = None
    """Of its replies; None: the settings'. A group with its own is only measured: neither credited nor replaced."""
    drawn_for: str = ""
    """The skill or kind that its task was drawn for, where a sampler draws by skill."""
    draw: int = 0
    """Tasks that its slot of the batch had drawn before this one."""
    trajectory: Row | None = None
    turn_ends: tuple[int, ...] = ()
    """For each turn of the trajectory, the number of the row's tokens up to its end; () if its turns belong to several
    conversations."""
    outcome: RolloutOutcome | None = None
    comparison: dict[str, Any] | None = None
    """What the judge compared (`sql_agent.comparison.Comparison`), None if it does not say."""
    lost: str | None = None
    """Why it has no reward; None for a judged one."""
    unused_turns: dict[str, int] = field(default_factory=dict)
    """Model calls that are not in `trajectory`, by cause: `repeated`, `given_up`, `other_agent`."""
    unshaped: str | None = None
    """Why the rewards of its group leave out the reward model's score; None if they include it or there is none."""
    weights: tuple[int, ...] = ()
    """For each turn, the train step whose weights it was sampled with, where the model server says so."""
    asked_again: int = 0
    """Calls that new weights ended, and that were asked again."""
    settled: bool = False
    """Whether everything above is final."""
    filtered: str | None = None
    """Why its group is not trained on: a `NoSpread`, or `lost`; None if the group is trained on."""
    advantage: float | None = None
    """None if the rollout is not trained on. If rewards are credited by turn, the advantage of the first turn."""
    turn_advantages: list[float] | None = None
    """Advantages of the turns, if the group's rewards are credited by turn."""

    @property
    def record(self) -> RolloutRecord:
        """What was played; only of a rollout that has an outcome."""
        assert self.outcome is not None
        return self.outcome.record

    @property
    def task_id(self) -> str:
        return str(self.task["id"])

    @property
    def skills(self) -> list[str]:
        """Return the skills that the task names, or else its kind."""
        return list(self.task.get("skills") or [self.task.get("kind", "")])

    @property
    def reward(self) -> float | None:
        return None if self.lost or self.outcome is None else self.outcome.reward.value

    @property
    def turn_rewards(self) -> list[float] | None:
        """Return the reward of each turn of the trajectory.

        None if the rollout has one reward, or if its turns belong to several conversations, whose order in the row is
        another one. Rewards of turns that the row had no room for are added to the last turn's.
        """
        row = self.trajectory
        if self.reward is None or self.outcome is None or row is None or not self.turn_ends:
            return None
        turns = self.outcome.reward.by_turn(self.outcome.record.num_turns)
        last = row.num_turns - 1
        return None if turns is None else [*turns[:last], sum(turns[last:])]

    @property
    def rewards(self) -> list[float] | None:
        """What an estimator credits: the rewards of the turns, or the one of the rollout; None for a lost one."""
        return None if self.reward is None else self.turn_rewards or [self.reward]

    @property
    def success(self) -> float | None:
        """Return `RolloutRecord.success`; a lost rollout may have a verdict too."""
        return self.outcome.record.success if self.outcome else None


@dataclass(eq=False)
class GroupSlot:
    """One group's place in a batch, and the groups that were played for it."""

    number: int
    batch: int | None = None
    """The batch that it began with, if batches begin before the step that trains them; its rollouts' seeds are drawn by
    it. None: the step's own."""
    due: int = 0
    """The last step that may train it."""
    replacements: list[Task] = field(default_factory=list)
    """Tasks that may still be played instead, the next one first."""
    draws: list[list[Rollout]] = field(default_factory=list)
    """Groups that were played, the newest last; one of them is trained on."""

    @property
    def has_ended(self) -> bool:
        return all(rollout.settled or rollout.lost for rollout in self.draws[-1])
