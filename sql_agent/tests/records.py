"""Records of rollouts for tests: the real ones, with little to write."""

from dataclasses import replace
from types import SimpleNamespace

from dbbench_adapter.datatypes import Score
from sql_agent.credit.row import Row
from sql_agent.datatypes import Reward, RolloutRecord
from sql_agent.lightning.spans import OUTCOME, outcome_text, read_outcome
from sql_agent.source.datatypes import Rollout


def make_row(prompt, response, mask, log_probs, num_turns=1, *, starts=(), **fields):
    """The row of a first prompt and what follows it; `starts` count from there."""
    before = len(prompt)
    starts = tuple(before + start for start in starts)
    masks, numbers = (0,) * before + tuple(mask), (0.0,) * before + tuple(log_probs)
    return Row((*prompt, *response), masks, numbers, before, num_turns, starts=starts, **fields)


def advantage_of(row):
    """The one advantage of all sampled tokens of a row; the other tokens have 0."""
    (advantage,) = {credit for credit, sampled in zip(row.credit, row.sampled, strict=True) if sampled}
    assert not any(credit for credit, sampled in zip(row.credit, row.sampled, strict=True) if not sampled)
    return advantage


ROW = make_row((1,), (2,), (1,), (0.0,))


def make_record(verdict, **fields):
    given = dict(
        task_id="t-0", kind="other", stop_reason="answered", score=verdict, num_turns=1, malformed_calls=0,
        messages=[{"role": "assistant", "content": "It is 4."}], prompt_tokens=10, completion_tokens=5, seconds=1.0,
    )  # fmt: skip
    return RolloutRecord(**given | fields)


def make_outcome(value, *, verdict=None, reason="", parts=None, scorer=None, down_s=0.0, **record):
    """Args: `verdict` is the judge's number, None where nobody judged; `value` is the reward's."""
    played = make_record(Score(verdict, reason), **record)
    return rewarded(played, Reward(value, reason, parts or {}), scorer, scorer_down_s=down_s)


def rewarded(record, reward, scorer=None, **fields):
    rollout = Rollout("", {"id": record.task_id}, played=record, scorer=scorer, **fields)
    rollout.earn(reward)
    return rollout


def reported(spans):
    """The rollout as the trainer reads it from its spans; None if its runner has not reported."""
    rollout = Rollout("", {"id": "t-0"})
    return rollout if read_outcome(spans, rollout) else None


def travelled(rollout):
    """The rollout after its way from a runner to the trainer."""
    return reported([SimpleNamespace(attributes={OUTCOME: outcome_text(rollout)})])


def make_result(group, outcome, lost=None, *, task_id="", skills=(), **fields):
    """A rollout of a batch that ended; one without a reward is lost under its reason."""
    rollout = outcome or Rollout("", {})
    lost = lost or rollout.lost
    task = {"id": task_id or group, "skills": list(skills), "kind": "other"}
    given = dict(lost=lost, settled=True, row=None if lost else ROW)
    return replace(rollout, group=group, task=task, **given | fields)
