"""Defines the records of a train step's rollouts, from one model call to the group that is trained.

`Turn` and `Trajectory` hold the engine's token ids, `RolloutOutcome` is the runner's report, `RolloutResult` is what
the manager knows of one rollout, and `GroupSlot` is one group's place in the batch. Leaves out all decisions. Importing
this is instant.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from dbbench_adapter.datatypes import Score
from sql_agent.datatypes import Reward, RolloutRecord, ScorerResult

BreakCause = Literal["template", "tool_call_rendering", "tokenisation"]
NoSpread = Literal["all_right", "all_wrong", "all_equal"]
Task = dict[str, Any]
"""A task as JSON values, from the environment's `verl_rows`."""


@dataclass(frozen=True)
class Turn:
    """Holds one model call in the engine's own token ids."""

    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """The engine's log-probs of the sampled ids, in nats; as long as `sampled_ids`, or empty if it gave none."""
    finish_reason: str
    has_tool_calls: bool = False
    agent: str | None = None
    """Name of the agent that made the call, where it is known."""


@dataclass(frozen=True)
class Trajectory:
    """Holds one rollout as one row: its chains of turns, one after another.

    A chain is a conversation in which each prompt continues the token ids of the turn before. A rollout of one
    conversation has one chain. The three response fields have the same length T.
    """

    prompt_ids: tuple[int, ...]
    """The first prompt of the first chain."""
    response_ids: tuple[int, ...]
    """Everything after that prompt, the first prompts of further chains included."""
    response_mask: tuple[int, ...]
    """1 where the policy sampled, 0 on tool results, template text and prompts."""
    log_probs: tuple[float, ...]
    """The engine's log-probs of the sampled ids; 0.0 where the mask is 0."""
    num_turns: int
    """Turns that are in the row."""
    prefix_break: BreakCause | None = None
    """Why a prompt did not continue the ids of the turn before, at the first break; None if every prompt did."""
    dropped_turns: int = 0
    """Turns that are not in the row because it is full."""
    chain_starts: tuple[int, ...] = ()
    """Where the prompts of further chains begin in `response_ids`. No chain attends to an earlier one."""

    @property
    def num_chains(self) -> int:
        return len(self.chain_starts) + bool(self.response_ids)


@dataclass(frozen=True)
class RolloutOutcome:
    """Holds what the runner reports at the end of a rollout, as JSON in its last span."""

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
class RolloutResult:
    """Holds what became of one rollout."""

    group: str
    task: Task
    draw: int = 0
    """Tasks that its slot of the batch had drawn before this one."""
    trajectory: Trajectory | None = None
    turn_ends: tuple[int, ...] = ()
    """For each turn of the trajectory, the number of response tokens up to its end; () if its turns belong to several
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
    settled: bool = False
    """Whether everything above is final."""
    filtered: str | None = None
    """Why its group is not trained on: a `NoSpread`, or `lost`; None if the group is trained on."""
    advantage: float | None = None
    """None if the rollout is not trained on. If rewards are credited by turn, the advantage of the first turn."""
    turn_advantages: list[float] | None = None
    """Advantages of the turns, if the group's rewards are credited by turn."""

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
    def success(self) -> float | None:
        """Return `RolloutRecord.success`; a lost rollout may have a verdict too."""
        return self.outcome.record.success if self.outcome else None


@dataclass
class GroupSlot:
    """Holds the rows of one group in the batch, and the groups that were played for them."""

    number: int
    rows: list[int]
    replacements: list[Task] = field(default_factory=list)
    """Tasks that may still be played instead, the next one first."""
    draws: list[list[RolloutResult]] = field(default_factory=list)
    """Groups that were played, the newest last; one of them is trained on."""
