"""Renders the report as one HTML page that needs no network. A policy's text enters it as data, never as markup."""

from __future__ import annotations

import html
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agentgrpo.passwords import masked
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.run_folder import flat
from sql_agent.report.drawing import svg
from sql_agent.report.figures import Figure, all_figures, skills
from sql_agent.report.questions import Answers, messages, question, side_by_side, validations
from sql_agent.report.reading import (
    ZERO_VARIANCE_PAGE,
    Loss,
    Row,
    Run,
    had_zero_variance,
    nothing_learnt_in,
    solved,
    when,
)
from sql_agent.serve_commands import evaluate_command, serve_command

T = TypeVar("T")
FOLDER = Path(__file__).parent
MOST_TRAJECTORIES = 1000
# Seconds after which the page of a running run reloads itself.
RELOAD_S = 10


def render_page(run: Run) -> str:
    kept = spread(list(enumerate(run.trajectories)), MOST_TRAJECTORIES)
    figures = all_figures(run.metrics)
    drawn = [each for each in figures if len(steps_of(each)) > 1]
    once = [each for each in figures if len(steps_of(each)) == 1]
    empty = [each for each in figures if not each.lines and each.empty]
    parts = {
        "TITLE": html.escape(f"Run {run.folder.resolve().name}"),
        "RELOAD_S": str(RELOAD_S if run.state == "running" else 0),
        "HEADLINE": _paragraphs(headline(run)),
        "NEXT": _next(run),
        "CURVE": draw_figure(drawn[0], 0) if drawn else "",
        "FACTS": draw_table([("", "")], facts(run)),
        "DASHBOARD": dashboard(run),
        "SETTINGS": draw_table([("setting", "value")], settings_table(run)),
        "QUESTIONS": questions_part(run),
        "SKILLS": skills_part(run),
        "FIGURES": "\n".join(draw_figure(figure, number) for number, figure in enumerate(drawn[1:], 1)),
        "ONCE": draw_table(
            [("measured at one step", "", "value", "step")], [row for each in once for row in single(each)]
        ),
        "EMPTY": "".join(f"<li>{html.escape(f'{each.title}: {each.empty}')}</li>" for each in empty),
        "FIGURES_HEAD": "<h2>Figures</h2>" if len(drawn) > 1 or once or empty else "",
        "NO_TRAJECTORIES": "" if plays(run) else "hidden",
        "COUNT": html.escape(counted(run, len(kept))),
        "TRAJECTORIES": as_data([{"place": place, **browser_row(row)} for place, row in kept]),
    }
    return filled("page.html", parts)


def filled(template: str, parts: Mapping[str, str]) -> str:
    """Fill the placeholders of a template in this folder; files of this folder fill those of style and script."""
    texts = {**parts, "STYLE": _read("style.css"), "QUESTIONS_SCRIPT": _read("questions.js")}
    head, *pieces = _read(template).split("{{")  # one pass: a placeholder inside an inserted text is not replaced
    for piece in pieces:
        name, rest = piece.split("}}", 1)
        head += texts[name] + rest
    return head


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def plays(run: Run) -> bool:
    return bool(run.trajectories) or run.kind == "train"


def skills_part(run: Run) -> str:
    table = draw_table([("skill", "held-out success, first validation", "last")], skills(run.metrics))
    if not table and run.kind != "train":
        return ""
    table = table or "<p>No validation has logged success by skill.</p>"
    return f'<h2>Held-out success by skill</h2><div class="scroll">{table}</div>'


def questions_part(run: Run) -> str:
    """The table of held-out questions, or a sentence that says why there is none.

    A run of a command that saves no validation has neither.
    """
    found = validations(run.trajectories)
    title = "<h2>Held-out questions</h2>" if found or run.kind == "train" else ""
    return title + _questions(run, found)


def _questions(run: Run, found: Sequence[Answers]) -> str:
    if not found and run.kind != "train":
        return questions_table(run, [], [], "")
    if not found:
        why = "The validations saved no trajectories" if run.measured[1] else "No validation was made"
        return questions_table(run, [], [], f"{why}: there is no question to show.")
    titles = [when(row["train_step"]) for row in (next(iter(each.values())) for each in found)]
    single = len(found) == 1
    rows = side_by_side(found[0], None if single else found[1])
    more = "There was one validation; a second one will stand beside it." if single else ""
    return questions_table(run, rows, titles, more)


def questions_table(run: Run, rows: Sequence[Row], titles: Sequence[str], sentence: str) -> str:
    """The table's place and its data, which `questions.js` draws.

    Args:
        run: the one whose environment says what its answers are.
        titles: of the columns of answers.
    """
    answer = "SQL or answer" if environment_of(run) in ("dbbench", "text2sql") else "last reply"
    return (
        f'<p>{html.escape(sentence)} <span id="questions-matching"></span></p><div id="questions-filters" '
        f'class="filters"></div><div id="questions"></div><script id="questions-data" type="application/json">'
        f'{as_data(list(rows))}</script><script id="questions-titles" type="application/json">'
        f"{as_data({'answer': answer, 'titles': list(titles)})}</script>"
    )


def environment_of(run: Run) -> str:
    """The commands that name none play DB-Bench, or ask a database."""
    given = flat(run.settings)
    env = given.get("env.type") or given.get("env") or ("text2sql" if given.get("database") else "dbbench")
    return "gsm8k" if run.kind == "gsm8k" else str(env)


def next_commands(run: Run) -> dict[str, str]:
    """Commands for the newest checkpoint of `train`, by what they do."""
    saved = run.checkpoints
    if not saved or run.kind != "train":
        return {}
    name, database = run.folder.resolve().name, flat(run.settings).get("env.database")
    cpu, dtype = run.facts.get("device") == "cpu", run.facts.get("precision")
    commands = {"serve it": serve_command(saved[-1], name, cpu=cpu, dtype=dtype)}
    if (flags := run.facts.get("evaluate")) is not None:
        commands["measure it"] = evaluate_command(name, flags)
    if environment_of(run) == "text2sql" and database:
        model = ("interactive", "--model", saved[-1], "--database", masked(str(database), whole=True))
        commands["ask it"] = agentgrpo_command(*model)
    return commands


def _next(run: Run) -> str:
    commands = next_commands(run).items()
    rows = "".join(f"<dt>{name}</dt><dd><pre>{html.escape(text)}</pre></dd>" for name, text in commands)
    return f'<dl id="next">{rows}</dl>' if rows else ""


def headline(run: Run) -> list[str]:
    """Whether anything was learnt comes first, then what was measured, then how far the run is."""
    of = "" if run.steps is None else f" of {run.steps}"
    last = _clock(run.metrics[-1].get("at", 0))
    return [*_learnt(run), f"{run.state.capitalize()}, step {run.step}{of}; last news {last}."]


def _learnt(run: Run) -> list[str]:
    trained = [row for row in run.metrics if row["train_step"] > 0]
    unlearnt = sum(map(had_zero_variance, trained))
    if unlearnt and unlearnt == len(trained):
        steps = "its one train step" if unlearnt == 1 else f"all {unlearnt} train steps"
        first = f"Nothing was learnt: in {steps} no group had rewards that differ."
        return [first, *_measured(run), f"{ZERO_VARIANCE_PAGE}."]
    return _measured(run) + ([f"{nothing_learnt_in(unlearnt, len(trained)).capitalize()}."] if unlearnt else [])


def _measured(run: Run) -> list[str]:
    measured, points = run.measured
    if not points and run.kind != "train":
        return []
    if not points:
        return ["No validation was made: there is no held-out success to show."]
    name = measured.capitalize()
    if len(points) == 1:
        what = "measurement" if isinstance(points[0], Loss) else "validation"
        return [f"{name} at step {points[0].step}: {points[0]}. A second {what} will show what changed."]
    said = [f"{name}: {points[0]} {points[0].when}, {points[-1]} {points[-1].when}."]
    if not run.held_out or (not validations(run.trajectories) and run.kind != "train"):
        return said
    found = run.change
    text = f"{found}." if found else "no trajectories tell which tasks changed."
    return [*said, text[0].upper() + text[1:]]


def facts(run: Run) -> list[tuple[str, str]]:
    earlier = run.facts.get("earlier_starts", [])
    saved = run.checkpoints
    rows = [
        ("command", typed_command(run)),
        *([("run id", str(run.facts["run_id"]))] if "run_id" in run.facts else []),
        ("commit", str(run.facts.get("commit", "unknown"))),
        ("started", _clock(run.facts.get("started_at", 0))),
        *(("started before", f"{_clock(each['started_at'])}, commit {each['commit']}") for each in earlier),
        ("device", str(run.facts.get("device", "unknown"))),
        ("model", str(model_name(run))),
        ("seed", str(run.settings.get("seed", "unknown"))),
        *([("trained model", str(run.model))] if run.model else []),
        ("checkpoints", ", ".join(str(each.relative_to(run.folder)) for each in saved) or "none"),
    ]
    if run.kind == "train":
        store = store_of(run) or "the run's own; it ended, or will end, with the run"
        rows.append(("agl store", store))
    if plays(run):
        rows.append(("unreadable lines", f"{run.unreadable} of the trajectories, left out; a killed run leaves one"))
    return rows


def settings_table(run: Run) -> list[tuple[str, str]]:
    return [(name, shown(value)) for name, value in flat(run.settings).items()]


# The setting that names the model, which has a place of its own in each command.
MODELS = ("model", "model.model_path", "model_path", "language_model.model_path", "base.path")


def model_name(run: Run) -> object:
    given = flat(run.settings)
    return next((given[name] for name in MODELS if given.get(name) is not None), None)


def shown(value: object) -> str:
    return masked(value, whole=True) if isinstance(value, str) else json.dumps(value)


def typed_command(run: Run) -> str:
    """As it was typed; its first word may be two, as in `agentgrpo local`."""
    program, *words = [masked(str(word), whole=True) for word in run.facts.get("argv") or [""]]
    return shlex.join([*(program.split() if program.startswith("agentgrpo ") else [program]), *words])


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def store_of(run: Run) -> str:
    return flat(run.settings).get("store.address") or ""


def dashboard(run: Run) -> str:
    """A link, if the store is external and may still be up."""
    address = store_of(run)
    if not address.startswith(("http://", "https://")):
        return ""
    link = html.escape(address)
    anchor = f'<a href="{link}" rel="noreferrer">{link}</a>'
    return f"<p>{anchor}: agent-lightning's dashboard, with every span of every rollout, while the store is up.</p>"


def counted(run: Run, kept: int) -> str:
    if not run.trajectories:
        return "This run has saved no trajectories yet."
    return f"{kept} of {len(run.trajectories)} saved rollouts, spread over the steps."


def spread(rows: Sequence[T], most: int) -> list[T]:
    """At most `most` rows, spread evenly over their order."""
    if len(rows) <= most:
        return list(rows)
    return [rows[i * len(rows) // most] for i in range(most)]


def outcome(row: Row) -> str:
    """`lost`, `set aside` (filtered), `right` or `wrong`; without a judge `rewarded`, or `unjudged` if nobody says."""
    if row.get("lost"):
        return "lost"
    if row.get("set_aside"):
        return "set aside"
    right = solved(row)
    if right is None:
        return "unjudged" if row.get("reward") is None else "rewarded"
    return "right" if right else "wrong"


def browser_row(row: Row) -> Row:
    score = row.get("score") or {}
    names = ("task_id", "kind", "skills", "lost", "unshaped", "set_aside", "reward", "advantage", "stop_reason")
    names += ("num_turns", "chains", "first_prompt_tokens", "sampled_tokens", "response_tokens")
    names += ("prefix_break", "dropped_turns")
    return {
        "step": row.get("train_step"),
        "split": "held-out" if row.get("validate") else "train",
        "outcome": outcome(row),
        "right": solved(row),
        "verdict": score.get("reason"),
        **{name: row.get(name) for name in (*names, "error", "reward_parts", "reward_error", "comparison")},
        "question": question(row),
        "messages": [_message(message) for message in messages(row)],
    }


def _message(message: dict[str, Any]) -> dict[str, object]:
    calls = [call.get("function") or {} for call in message.get("tool_calls") or []]
    return {
        "role": message.get("role"),
        "content": message.get("content"),
        "calls": [{"name": call.get("name"), "arguments": call.get("arguments")} for call in calls],
    }


def as_data(value: object) -> str:
    """JSON that is safe in a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(value)  # ASCII: U+2028 is escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def steps_of(figure: Figure) -> set[int]:
    return {step for line in figure.lines.values() for step, _ in line}


def single(figure: Figure) -> list[tuple[str, str, str, str]]:
    """The rows of a figure whose points are all of one step, where a curve would be a dot."""
    rows = []
    for label, ((step, value),) in figure.lines.items():
        text = _number(value)
        for low, high in figure.intervals.get(label, ()):
            text += f" ({_number(low)} to {_number(high)})"
        rows.append(("" if rows else figure.title, label, text, str(step)))
    return rows


def draw_figure(figure: Figure, number: int) -> str:
    title, note = html.escape(figure.title), html.escape(figure.note)
    steps = sorted(steps_of(figure))
    values = [dict(line) for line in figure.lines.values()]
    rows = [(str(step), *(_number(line.get(step)) for line in values)) for step in steps]
    table = draw_table([("step", *figure.lines)], rows)
    return (
        f"<figure><figcaption>{title}</figcaption>{svg(figure, number)}<p>{note}</p>"
        f"<details><summary>numbers</summary>{table}</details></figure>"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _paragraphs(texts: Sequence[str]) -> str:
    return "".join(f"<p>{html.escape(text)}</p>" for text in texts)


def draw_table(head: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    first = "".join(f"<th>{html.escape(cell)}</th>" for cell in head[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"
