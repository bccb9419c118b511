"""Sets each held-out question's answers at two validations side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sql_agent.report.reading import Row, solved

# Trajectories of one validation by task id.
Answers = Mapping[str, Row]
# What became of a question, in the order of the table: first what a person looks for. The last three are those of a
# single validation.
RESULTS = (
    *("newly solved", "no longer solved", "still wrong", "higher reward", "lower reward", "same reward", "not judged"),
    *("right both times", "wrong", "right", "rewarded"),
)
_WORDS = {  # of a pair of results
    (False, True): "newly solved",
    (True, False): "no longer solved",
    (False, False): "still wrong",
    (True, True): "right both times",
}


def validations(trajectories: Sequence[Row]) -> list[Answers]:
    """The first and the last; one if there is one, [] if there is none."""
    by_step: dict[int, dict[str, Row]] = {}
    for row in trajectories:
        if row.get("validate"):
            by_step.setdefault(row["train_step"], {})[row["task_id"]] = row
    steps = sorted(by_step)
    return [by_step[step] for step in dict.fromkeys([*steps[:1], *steps[-1:]])]


def side_by_side(before: Answers, after: Answers | None) -> list[Row]:
    """A row for each question of either validation, those that changed first.

    Args:
        after: None if there is one validation only.
    """
    ids = dict.fromkeys([*before, *(after or ())])
    rows = [_row(task, before.get(task), None if after is None else after.get(task), after is None) for task in ids]
    return sorted(rows, key=lambda row: RESULTS.index(row["result"]))


def _row(task: str, before: Row | None, after: Row | None, single: bool) -> Row:
    known = after or before or {}
    return {
        "task_id": task,
        "kind": known.get("kind"),
        "question": question(known),
        "result": _result(before, after, single),
        "before": before and describe_answer(before),
        "after": after and describe_answer(after),
    }


def _result(before: Row | None, after: Row | None, single: bool) -> str:
    rows = (before,) if single else (before, after)
    results = [None if row is None else solved(row) for row in rows]
    if None in results:
        return _by_reward([None if row is None else reward_of(row) for row in rows])
    if single:
        return "right" if results[0] else "wrong"
    return _WORDS[bool(results[0]), bool(results[1])]


def _by_reward(rewards: Sequence[float | None]) -> str:
    known = [reward for reward in rewards if reward is not None]
    if len(known) < len(rewards):
        return "not judged"
    if len(known) == 1:
        return "rewarded"
    return "higher reward" if known[1] > known[0] else "lower reward" if known[1] < known[0] else "same reward"


def reward_of(row: Row) -> float | None:
    """The reward of a rollout that nobody judged; None for others."""
    return row.get("reward") if solved(row) is None and not row.get("lost") else None


def describe_answer(row: Row) -> Row:
    """What a trajectory answered and what was made of it; `sql` is the last call where nobody recorded one."""
    compared = row.get("comparison") or None
    return {
        "sql": (compared or {}).get("submitted") or last_words(row),
        "right": solved(row),
        "reward": reward_of(row),
        "verdict": row.get("lost") or (row.get("score") or {}).get("reason"),
        "error": row.get("error"),
        "comparison": compared,
    }


def question(row: Row) -> str:
    """The question of a trajectory: the end of the last user message before the first reply.

    A prompt may hold replies too, as examples; the agent's own are the last `num_turns`.
    """
    said, turns = messages(row), row.get("num_turns")
    replies = [place for place, message in enumerate(said) if message.get("role") == "assistant"]
    own = replies[-turns:] if isinstance(turns, int) and turns > 0 else replies
    prompt = said[: own[0]] if own else said
    asked = next((str(m.get("content") or "") for m in reversed(prompt) if m.get("role") == "user"), "")
    return asked.rpartition("Question: ")[2] or str(row.get("task_id"))


def last_words(row: Row) -> str:
    """The last call of the agent, its one argument where it has one, or else its last text."""
    said = [message for message in messages(row) if message.get("role") == "assistant"]
    if not said:
        return ""
    calls = said[-1].get("tool_calls")
    if isinstance(calls, list) and calls and isinstance(calls[-1], dict):
        return _argument(str((calls[-1].get("function") or {}).get("arguments")))
    return str(said[-1].get("content") or "")


def messages(row: Row) -> list[dict[str, object]]:
    return [message for message in row.get("messages") or [] if isinstance(message, dict)]


def _argument(text: str) -> str:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return text
    only = list(values.values()) if isinstance(values, dict) else []
    return only[0] if len(only) == 1 and isinstance(only[0], str) else text
