"""The record of a rollout, which its player, its rewarder and the trainer fill in, and its place in a batch.

Importing this is instant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sql_agent.credit.row import Row
from sql_agent.datatypes import Reward, RolloutRecord, ScorerResult


class StopError(RuntimeError):
    """A run must not go on; the message says why and what to do."""


# A task as JSON values, from the environment's `verl_rows`.
Task = dict[str, Any]
_NOT_YET = Reward(None, "not_rewarded")


@dataclass
class Rollout:
    """One rollout: what was asked and played, what it earned, and what is trained.

    `played` to `one_conversation` travel from a runner to the trainer, as JSON in the rollout's last span
    (`sql_agent.lightning.spans`).
    """

    group: str
    task: Task
    temperature: float | None = None
    """Of its replies; None: the settings'. A group with its own is only measured: neither credited nor replaced."""
    drawn_for: str = ""
    """The skill or kind that its task was drawn for, where a sampler draws by skill."""
    draw: int = 0
    """Tasks that its slot of the batch had drawn before this one."""
    played: RolloutRecord | None = None
    """None until its player has reported."""
    earned: Reward = _NOT_YET
    scorer: ScorerResult | None = None
    """None if no reward model was asked."""
    scorer_down_s: float = 0.0
    """Seconds for which the reward model had given no score, if this rollout got none either; else 0."""
    one_conversation: bool = True
    """Whether the agent holds one conversation. If so, a prompt that does not continue the turn before is a break, and
    a prompt that comes twice is a retried call. False for an agent with handoffs, sub-agents or parallel calls."""
    row: Row | None = None
    lost: str | None = None
    """Why it has no reward; None for one that has."""
    unused_turns: dict[str, int] = field(default_factory=dict)
    """Model calls that are not in `row`, by cause: `repeated`, `given_up`, `other_agent`."""
    unshaped: str | None = None
    """Why the rewards of its group leave out the reward model's score or a function's number; None if they have all."""
    weights: tuple[int, ...] = ()
    """For each turn, the train step whose weights it was sampled with, where the model server says so."""
    asked_again: int = 0
    """Calls that new weights ended, and that were asked again."""
    end_seen_at: float = 0.0
    """When the trainer saw that it had ended, or gave it up, on the trainer's monotonic clock; 0 before, and where
    the trainer's own process plays it."""
    settled: bool = False
    """Whether everything above is final."""
    filtered: str | None = None
    """Why its group is not trained on: a `ZeroVariance`, or `lost`; None if the group is trained on."""
    advantage: float | None = None
    """None if the rollout is not trained on. If rewards are credited by turn, the advantage of the first turn."""
    turn_advantages: list[float] | None = None
    """Advantages of the turns, if the group's rewards are credited by turn."""

    @property
    def record(self) -> RolloutRecord:
        """What was played; only of a rollout whose player has reported."""
        assert self.played is not None
        return self.played

    @property
    def task_id(self) -> str:
        return str(self.task["id"])

    @property
    def skills(self) -> list[str]:
        """The skills that the task names, or else its kind."""
        return list(self.task.get("skills") or [self.task.get("kind", "")])

    def earn(self, reward: Reward) -> None:
        """Take the reward; without a value the rollout is lost under the reward's reason."""
        self.earned = reward
        if reward.value is None:
            self.lost = reward.reason

    @property
    def reward(self) -> float | None:
        return None if self.lost else self.earned.value

    @property
    def turn_rewards(self) -> list[float] | None:
        """The reward of each turn of the row.

        None if the rollout has one reward, or if its turns belong to several conversations, whose order in the row is
        another one. Rewards of turns that the row had no room for are added to the last turn's.
        """
        if self.reward is None or self.row is None or not self.row.turn_ends:
            return None
        turns = self.earned.by_turn(self.record.num_turns)
        last = self.row.num_turns - 1
        return None if turns is None else [*turns[:last], sum(turns[last:])]

    @property
    def rewards(self) -> list[float] | None:
        """What an estimator credits: the rewards of the turns, or the one of the rollout; None for a lost one."""
        return None if self.reward is None else self.turn_rewards or [self.reward]

    @property
    def success(self) -> float | None:
        """`RolloutRecord.success`, which a lost rollout may have too."""
        return self.played.success if self.played else None

    @property
    def score_failure(self) -> str | None:
        """Why the requested score is missing; None if it is there, and if no score was requested."""
        return self.scorer.failure if self.scorer else None


@dataclass(eq=False)
class PendingGroup:
    """One group's place in a batch, and the groups that were played for it."""

    number: int
    replacements: list[Task] = field(default_factory=list)
    """Tasks that may still be played instead, the next one first."""
    groups: list[list[Rollout]] = field(default_factory=list)
    """Groups that were played, the newest last; one of them is trained on."""
    batch: int | None = None
    """The batch that it began with, if batches begin before the step that trains them; its rollouts' seeds are drawn by
    it. None: the step's own."""
    due: int = 0
    """The last step that may train it."""
    ranked: int | None = None
    """How many of `groups` an LLM has ranked; None: it ranks none."""

    @property
    def trained(self) -> list[Rollout]:
        """The group that is trained on, once the others are marked (`dynamic_sampling.filter_groups`)."""
        return next(group for group in self.groups if group[0].filtered is None)

    @property
    def has_ended(self) -> bool:
        return self.is_played and self.ranked in (None, len(self.groups))

    @property
    def is_played(self) -> bool:
        return all(rollout.settled for rollout in self.groups[-1])
