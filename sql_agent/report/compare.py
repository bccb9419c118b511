"""Compares two runs: their curves in one figure, the held-out tasks that both measured, the settings that differ."""

from __future__ import annotations

import html
from dataclasses import dataclass

from agentgrpo.run_folder import flat
from sql_agent.report.figures import Figure, series
from sql_agent.report.page import draw_figure, draw_table, filled, questions_table, shown
from sql_agent.report.questions import Answers, question, side_by_side, validations
from sql_agent.report.reading import Run, ValidationChange, solved

# Settings that differ in any two runs.
OF_THE_FOLDER = ("run_dir", "output_dir")
# What is added to a run's name, by the metric.
LOSSES = {"": "loss", ", held out": "val/loss"}


@dataclass(frozen=True)
class Pair:
    first: Run
    second: Run

    @property
    def names(self) -> tuple[str, str]:
        folders = self.first.folder.resolve(), self.second.folder.resolve()  # `.` has no name of its own
        names = folders[0].name, folders[1].name
        return names if names[0] != names[1] else (str(folders[0]), str(folders[1]))

    @property
    def named(self) -> list[tuple[str, Run]]:
        return [*zip(self.names, (self.first, self.second), strict=True)]


def same_tasks(first: Answers, second: Answers) -> tuple[Answers, Answers]:
    """Tasks that both validations played: equal in id and in question."""
    same = [task for task in first if task in second and question(first[task]) == question(second[task])]
    return {task: first[task] for task in same}, {task: second[task] for task in same}


def settings_that_differ(pair: Pair) -> list[tuple[str, str, str]]:
    """Name and both values of each; the config itself masks passwords."""
    first, second = (flat(run.settings) for run in (pair.first, pair.second))
    names = [name for name in first | second if name not in OF_THE_FOLDER and first.get(name) != second.get(name)]
    return [(name, shown(first.get(name)), shown(second.get(name))) for name in names]


def summary(pair: Pair) -> list[tuple[str, str]]:
    lines = []
    for name, run in pair.named:
        measured, points = run.measured
        said = [f"{point} {point.when}" for point in [*points[:1], *points[1:][-1:]]]
        lines.append((name, f"{measured} {', '.join(said)}" if said else "no validation was made"))
    return [*lines, ("between them", between(pair)), ("settings", _settings_line(pair))]


def between(pair: Pair) -> str:
    last = [validations(run.trajectories)[-1:] for run in (pair.first, pair.second)]
    if not all(last):
        return "at least one of the runs has saved no validation, so no task can be compared"
    first, second = (found[0] for found in last)
    same = same_tasks(first, second)
    counted = f"{len(same[0])} held-out tasks are the same in both (of {len(first)} and {len(second)})"
    found = ValidationChange.between((solved(same[0][task]), solved(same[1][task])) for task in same[0])
    if found is None:
        return f"{counted}; none of them was judged in both, so nothing can be compared"
    first_name, second_name = pair.names
    return (
        f"{counted}; of the {found.tasks} judged in both, {second_name} alone solved {found.gained} and {first_name} "
        f"alone {found.lost}: {found.clarity}"
    )


def _settings_line(pair: Pair) -> str:
    names = [name for name, _, _ in settings_that_differ(pair)]
    return f"these differ: {', '.join(names)}" if names else "none differs"


def render_comparison(pair: Pair) -> str:
    lines = summary(pair)
    differ = draw_table([("setting", *pair.names)], settings_that_differ(pair))
    return filled(
        "compared.html",
        {
            "TITLE": html.escape(" and ".join(pair.names)),
            "HEADLINE": "".join(f"<p>{html.escape(f'{name}: {text}')}</p>" for name, text in lines[:3]),
            "FIGURES": "\n".join(draw_figure(each, number) for number, each in enumerate(_figures(pair))),
            "QUESTIONS": _questions(pair),
            "SETTINGS": differ or "<p>No setting differs.</p>",
        },
    )


def _figures(pair: Pair) -> list[Figure]:
    points = {name: run.held_out for name, run in pair.named}
    success = {name: [(point.step, point.success) for point in found] for name, found in points.items() if found}
    reward = {name: line for name, run in pair.named for line in series(run.metrics, {name: "reward/mean"}).values()}
    figures = [
        Figure(
            "Held-out success, greedy",
            success,
            intervals={name: [point.interval for point in found] for name, found in points.items()},
            note="Bars are Wilson's 95 % intervals.",
            y="success",
        ),
        Figure("Reward of training tasks", reward, y="reward"),
        Figure(
            "Loss",
            {f"{name}{what}": line for name, run in pair.named for what, line in series(run.metrics, LOSSES).items()},
            y="loss, nats",
        ),
    ]
    return [figure for figure in figures if figure.lines]


def _questions(pair: Pair) -> str:
    """At the last validation of each."""
    last = [validations(run.trajectories)[-1:] for _, run in pair.named]
    if not all(last):
        return questions_table(pair.second, [], [], "There is no task to compare.")
    first, second = pair.names
    words = {
        "newly solved": f"{second} alone",
        "no longer solved": f"{first} alone",
        "still wrong": "neither",
        "right both times": "both",
    }
    rows = side_by_side(*same_tasks(*(found[0] for found in last)))
    rows = [row | {"result": words.get(row["result"], row["result"])} for row in rows]
    sentence = "The last validation of each run; the last column says which was right."
    return questions_table(pair.second, rows, pair.names, sentence)
