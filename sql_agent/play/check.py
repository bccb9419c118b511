"""Finds what a policy could break in an environment, by playing it without a model.

It looks for exceptions, hangs, verdicts without effort, state that leaks from one episode to the next, and prompts that
contain the answer. An empty report proves nothing: random calls solve no hard task, and a verdict may be wrong in other
ways.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sql_agent.environments.base import Environment
from sql_agent.environments.rows import short
from sql_agent.environments.user_thread import RaisedError
from sql_agent.play.scripted import (
    NOTHING,
    TALK,
    SameRandom,
    ScriptedPlay,
    odd_calls,
    play_scripted,
    play_together,
    random_calls,
    split_words,
)
from sql_agent.settings.groups import AgentConfig

NO_EFFORT = ("nothing", "talk", "odd calls")
PLAYS = (*NO_EFFORT, "random calls", "reference")
# Random plays of a task.
RANDOM_PLAYS = 4
# Characters; about a thousand tokens, more than a row of the default data.max_response_tokens.
LONG_RESULT = 4_000
SLOW_S = 1.0
# Number of hanging plays after which the others are skipped.
MOST_HANGS = 3
# Errors that a tool raises by mistake rather than to tell the policy something.
FAULTS = (AttributeError, NameError, TypeError, LookupError, AssertionError, ArithmeticError, RecursionError)
# Names of columns that hold the answer.
GOLD = re.compile(r"answers?|gold|gold_\w+|solutions?|targets?|labels?|secret|expected|ground_truth|sql|query|result")


@dataclass(frozen=True)
class Remark:
    kind: Literal["problem", "note"]
    text: str


@dataclass
class CheckReport:
    played: list[ScriptedPlay] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    def add(self, kind: Literal["problem", "note"], text: str) -> None:
        self.remarks.append(Remark(kind, text))

    def of(self, *plays: str) -> list[ScriptedPlay]:
        return [each for each in self.played if each.name in plays]


def check_plays(make: Callable[[], Environment], tasks: Sequence[Any]) -> CheckReport:
    """Play every task in all ways and report what is wrong.

    Args:
        make: makes a new environment, which is entered here.
        tasks: at least one.
    """
    report = CheckReport()
    _repeat(make, tasks, report)
    raised: list[tuple[str, RaisedError]] = []
    with make() as environment:
        at = [""]
        if hasattr(environment, "on_raise"):
            environment.on_raise = lambda error: raised.append((at[0], error))  # pyright: ignore
        for task in tasks:
            for name, replies in _plays(environment, task):
                if sum((each.lost or "").endswith("_deadline") for each in report.played) == MOST_HANGS:
                    continue  # each hanging play takes the whole timeout
                at[0] = name
                report.played.append(play_scripted(environment, task, name, replies, SameRandom()))
    if not environment.judged:
        report.add(
            "note", "it gives neither a verdict nor a reward (`get_reward`): a run needs a reward from elsewhere"
        )
    _lost(report)
    _raised(raised, report)
    _effort(report)
    _long_or_slow(report)
    _answers_in_prompts(report, tasks)
    return report


def _plays(environment: Environment, task: Any) -> list[tuple[str, list[Any]]]:
    words = split_words(str(environment.messages(task)[-1]["content"]))
    odd = odd_calls(environment.tools, words, seed=0)
    size = environment.max_replies(AgentConfig())
    plays: list[tuple[str, list[Any]]] = [("nothing", NOTHING), ("talk", TALK)]
    if environment.tools:
        plays += [("odd calls", odd[start : start + size]) for start in range(0, len(odd), size)]
    plays += [("random calls", random_calls(environment.tools, words, seed)) for seed in range(RANDOM_PLAYS)]
    if reference := environment.reference_replies(task):
        plays.append(("reference", reference))
    return plays


def _repeat(make: Callable[[], Environment], tasks: Sequence[Any], report: CheckReport) -> None:
    """Play the same replies four times: first, on a new environment, after other tasks, and beside another task."""
    task, other = tasks[0], tasks[-1]

    def script(environment: Environment, of: Any) -> list[Any]:
        words = split_words(str(environment.messages(of)[-1]["content"]))
        return environment.reference_replies(of) or random_calls(environment.tools, words, seed=0)

    with make() as environment:
        first = play_scripted(environment, task, "repeat", script(environment, task), SameRandom())
    with make() as environment:
        replies, others = script(environment, task), script(environment, other)
        afresh = play_scripted(environment, task, "repeat", replies, SameRandom())
        for each in (other, *tasks[:3]):
            play_scripted(
                environment, each, "repeat", random_calls(environment.tools, ["a", "b"], seed=1), SameRandom()
            )
        used = play_scripted(environment, task, "repeat", replies, SameRandom())
        beside = play_together(environment, [task, other], [replies, others])[0]
    for again, words in (
        (afresh, "on a new object, so something outside of it (a global, a class attribute, a file) remembers the "
                 "first episode, or the file draws lots in its own way"),
        (used, "on an object that had run other episodes: `reset` does not reset everything"),
        (beside, "beside an episode of another task: the two share something, a class attribute or a file for example"),
    ):  # fmt: skip
        if difference := _difference(first, again):
            report.add(
                "problem", f"state leaks: the same replies to task {task.id!r} went otherwise {words}. {difference}"
            )
            return


def _difference(first: ScriptedPlay, again: ScriptedPlay) -> str:
    for position, (before, after) in enumerate(zip(first.answers, again.answers, strict=False)):
        if before != after:
            what = f"after {first.called[position - 1]}" if 0 < position <= len(first.called) else "in the first prompt"
            return f"{what}: {short(before)!r}, then {short(after)!r}"
    if (first.score, first.lost) != (again.score, again.lost):
        return f"verdict: {first.lost or first.score}, then {again.lost or again.score}"
    return "" if len(first.answers) == len(again.answers) else "one of them ended earlier"


def _lost(report: CheckReport) -> None:
    for reason, count in Counter(each.lost for each in report.played if each.lost).items():
        one = next(each for each in report.played if each.lost == reason)
        after = f"; the last call was {one.called[-1]}" if one.called else ""
        report.add("problem", f"{count} episodes were lost under {reason} (task {one.task.id!r}{after})\n{one.error}")


def _raised(raised: Sequence[tuple[str, RaisedError]], report: CheckReport) -> None:
    places: dict[str, list[tuple[str, RaisedError]]] = {}
    for at, error in raised:
        places.setdefault(str(error).rpartition("\n")[0] + type(error.error).__name__, []).append((at, error))
    for errors in places.values():
        odd = all(at == "odd calls" for at, _ in errors)
        error = next((error for at, error in errors if at != "odd calls"), errors[0][1])
        fault = isinstance(error.error, FAULTS) and not odd
        words = "calls that fit the schema" if not odd else "odd calls"
        report.add(
            "problem" if fault else "note",
            f"a tool raised {type(error.error).__name__} in {len(errors)} {words}; the policy reads "
            f"{short({'error': str(error.error)})}" + (f"\n{error}" if fault else ""),
        )


def _effort(report: CheckReport) -> None:
    """Look for rewards without effort, and for references that do not solve their task."""
    for name in PLAYS[:-1]:
        plays = report.of(name)
        solved = [each for each in plays if each.success == 1.0]
        if solved:
            most = name == "random calls" and len(solved) <= len(plays) / 4
            kind: Literal["problem", "note"] = "note" if most else "problem"
            report.add(kind, f"{name} solved {len(solved)} of {len(plays)}, for example task {solved[0].task.id!r}")
    best = max((each.value for each in report.of("reference", "random calls") if each.value is not None), default=None)
    idle = [each for each in report.of("nothing", "talk") if each.value is not None]
    paid = [each for each in idle if each.value and each.value > 0 and each.success != 1.0]
    if paid:
        report.add("problem", f"{paid[0].name} is worth {paid[0].value:g} on {len(paid)} of {len(idle)} episodes")
    means = {name: _mean(report.of(name)) for name in PLAYS}
    acting, resting = means["random calls"], means["nothing"]
    if acting is not None and resting is not None and resting > acting:
        report.add("note", f"doing nothing is worth more than random calls, {resting:.3g} against {acting:.3g}; a "
                           "policy that cannot solve the tasks yet learns to do nothing")  # fmt: skip
    unsolved = [each for each in report.of("reference") if each.success == 0.0]
    if unsolved:
        report.add("problem", f"the reference does not solve {len(unsolved)} of {len(report.of('reference'))} tasks, "
                              f"for example {unsolved[0].task.id!r}: {unsolved[0].score}")  # fmt: skip
    if best is not None and all(each.value == best for each in report.played if each.value is not None):
        report.add("note", f"every episode was worth {best:g}: nothing here shows that a task can be solved; a column "
                           "`reference` with the calls of a solution would")  # fmt: skip


def _mean(plays: Sequence[ScriptedPlay]) -> float | None:
    values = [each.value for each in plays if each.value is not None]
    return sum(values) / len(values) if values else None


def _long_or_slow(report: CheckReport) -> None:
    longest = max(((len(answer), each) for each in report.played for answer in each.answers[1:]), key=lambda p: p[0],
                  default=None)  # fmt: skip
    if longest and longest[0] > LONG_RESULT:
        report.add("note", f"a result has {longest[0]:,} characters ({longest[1].name}, task {longest[1].task.id!r}); "
                           "cut it in the tool, or it fills the row of data.max_response_tokens")  # fmt: skip
    slowest = max(report.played, key=lambda each: each.slowest_s)
    if slowest.slowest_s > SLOW_S:
        report.add("note", f"a call took {slowest.slowest_s:.1f} s (task {slowest.task.id!r})")


def _answers_in_prompts(report: CheckReport, tasks: Sequence[Any]) -> None:
    shown = {each.task.id: each.answers[0] for each in report.played if each.answers}
    found: dict[str, list[str]] = {}
    for task in tasks:
        for name, value in getattr(task, "row", {}).items():
            text = str(value)
            if not GOLD.fullmatch(name.lower()) or not isinstance(value, str | int | float) or not text.strip():
                continue
            if re.search(rf"(?<!\w){re.escape(text)}(?!\w)", shown.get(task.id, "")):
                found.setdefault(name, []).append(task.id)
    for name, ids in found.items():
        kind: Literal["problem", "note"] = "problem" if 2 * len(ids) > len(tasks) else "note"
        report.add(kind, f"the value of `{name}` stands in the prompt of {len(ids)} of {len(tasks)} tasks, for example "
                         f"{ids[0]!r}: {short(shown[ids[0]])!r}")  # fmt: skip
