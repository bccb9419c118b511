"""The commands as functions, found as `agentgrpo.train`, `agentgrpo.evaluate` and so on.

Keywords are the command's flags with underscores. Each call runs the command in a process of its own, since Ray, forks,
signal handlers and changed libraries would stay in a notebook's; it checks the same things and ends all that it
started. What it prints is printed here. Ctrl-C, or a notebook's stop button, ends it in order. It ends, too, when the
calling process does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from agentgrpo.commands import INTERRUPTED
from agentgrpo.flags import dashed
from agentgrpo.json_text import parse_json
from agentgrpo.processes import end_with_parent
from sql_agent.notebook import LiveCurve, code_name, is_code
from sql_agent.report.reading import Row, Run, read_run, solved
from sql_agent.settings.train import TrainConfig
from sql_agent.success_rate import Rate, rate

# How the first line begins in which a command says what was wrong.
FAULT = re.compile(r"(?:agentgrpo [\w -]+: )?error: |(?=config: )")
# Lines of a command that ended otherwise.
SHOWN_LINES = 20


def command(name: str, *words: str | Path, **flags: Any) -> None:
    """Run a command of `agentgrpo --help`, e.g. `command("tasks generate", output="tasks.json")`.

    Args:
        words: what the command takes without a flag.
        flags: True is a flag without a value; None and False leave it out. A list is joined by commas. A mapping gives
            the flag once for each entry, NAME=VALUE, as `reward={"a.py:f": 1, "b.py:g": 0.5}`. A function, class or
            agent of a module or of a notebook's cell stands for its FILE.py:NAME.
    Raises:
        ValueError: flags or settings cannot be; the message is the command's.
        RuntimeError: the command failed, likewise.
        KeyboardInterrupt: the command was interrupted, and has ended.
    """
    line = [sys.executable, "-u", "-P", "-m", "agentgrpo", *name.split(), *map(str, words), *command_words(flags)]
    said: list[str] = []
    curve = LiveCurve(flags.get("run_dir"))
    with subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # so that Ctrl-C reaches it once, from here
        preexec_fn=partial(end_with_parent, parent=os.getpid()),
    ) as process:
        try:
            _show(process, said, curve)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            _show(process, said, curve)
            raise
    if process.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if process.returncode:
        raise failure(process.returncode, said)


def _show(process: subprocess.Popen[str], said: list[str], curve: LiveCurve) -> None:
    for text in process.stdout or ():
        said.append(text)
        print(text, end="", flush=True)
        curve.update()
    curve.update()


def failure(status: int, said: Sequence[str]) -> Exception:
    """What a command failed with, from the lines that it printed."""
    first = next((number for number, text in enumerate(said) if FAULT.match(text)), max(0, len(said) - SHOWN_LINES))
    words = FAULT.sub("", "".join(said[first:]).strip(), count=1) or f"the command ended with status {status}"
    return ValueError(words) if status == 2 else RuntimeError(words)


def command_words(flags: Mapping[str, Any]) -> Iterator[str]:
    """The words that a user would type for these flags (see `command`).

    Raises:
        TypeError, ValueError: see `code_name`.
    """
    for name, value in flags.items():
        flag = f"--{dashed(name)}"
        if is_code(value):
            yield f"{flag}={_code_name(name, value)}"
        elif value is True:
            yield flag
        elif isinstance(value, Mapping):
            for key, each in value.items():
                yield f"{flag}={_code_name(name, key) if is_code(key) else key}={json.dumps(each, default=str)}"
        elif isinstance(value, list | tuple) and any(map(is_code, value)):
            yield from (f"{flag}={_code_name(name, each) if is_code(each) else each}" for each in value)
        elif value is not None and value is not False:
            yield f"{flag}={','.join(map(str, value)) if isinstance(value, list | tuple) else value}"


def _code_name(flag: str, value: object) -> str:
    try:
        return code_name(value)
    except TypeError as error:
        raise TypeError(f'{flag} is {value!r}, and {error}, {flag}="FILE.py:NAME"') from None


def train(settings: TrainConfig | Mapping[str, Any] | None = None, **flags: Any) -> Run:
    """Train by GRPO with vLLM and verl (`agentgrpo train`), write the report, and return what the run's folder holds.

    A stopped run resumes from its newest checkpoint when the same call is made again.

    Args:
        settings: what `--set` takes, `{"trainer.steps": 2}`; of a `TrainConfig` those that were given.
        flags: see `command`; `model`, `database`, `train_file` and `run_dir` are the first ones to know.
    Raises:
        ValueError, RuntimeError, KeyboardInterrupt: see `command`.
    """
    if "set" in flags:
        raise TypeError("set is the first argument: train({'trainer.steps': 2}, ...)")
    given = settings.model_dump(mode="json", exclude_unset=True) if isinstance(settings, TrainConfig) else settings
    flags["set"] = dict(single_settings(given or {}, TrainConfig))
    if flags.get("dry_run") or "apo" in (flags.get("algorithm"), flags["set"].get("algorithm")):
        raise ValueError('a dry run and APO leave no run to read; call agentgrpo.command("train", ...) for them')
    command("train", **flags)
    from sql_agent.startup.flags import parse_train_args, resolve

    return report(resolve(parse_train_args([*command_words(flags)])).run_dir)


def single_settings(tree: Mapping[str, Any], kind: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    """The settings of a tree with their groups, as `optim.learning_rate`; a whole group would replace another."""
    for name, value in tree.items():
        group = kind.model_fields[name].annotation if name in kind.model_fields else None
        if isinstance(value, Mapping) and isinstance(group, type) and issubclass(group, BaseModel):
            yield from ((f"{name}.{rest}", each) for rest, each in single_settings(value, group))
        else:
            yield name, value


def report(run_dir: str | Path) -> Run:
    """Write `report.html` and `curve.png` into the folder of a run of any command that trains, and return what it
    holds."""
    command("report", run_dir)
    return read_run(run_dir)


def sft(**flags: Any) -> Run:
    """Fine-tune on references, demonstrations or conversations (`agentgrpo sft`); flags and errors as of `command`."""
    command("sft", **flags)
    from sql_agent.commands.sft import parse_argv

    return read_run(parse_argv([*command_words(flags)])[0].run_dir)


def local(**flags: Any) -> Run:
    """Train by GRPO without servers (`agentgrpo local`); flags and errors as of `command`."""
    command("local", **flags)
    from sql_agent.commands.local import parse

    return read_run(parse([*command_words(flags)])[0].run_dir)


@dataclass(frozen=True)
class Evaluation:
    file: Path
    rows: list[Row]
    """Its lines, one per rollout: `task_id`, `kind`, `score`, `stop_reason`, `messages` and so on."""

    @property
    def success(self) -> Rate:
        """Success with its 95 % interval, which knows that rollouts of one task are alike."""
        return rate([(row["task_id"], solved(row)) for row in self.rows])

    @property
    def by_kind(self) -> dict[str, Rate]:
        kinds = dict.fromkeys(row["kind"] for row in self.rows)
        return {kind: rate([(r["task_id"], solved(r)) for r in self.rows if r["kind"] == kind]) for kind in kinds}


def evaluate(**flags: Any) -> Evaluation:
    """Measure a model that is served (`agentgrpo evaluate`); flags and errors as of `command`."""
    output = Path(flags.pop("output", None) or time.strftime("runs/evaluate/%Y%m%d-%H%M%S.jsonl"))
    command("evaluate", output=output, **flags)
    return Evaluation(output, read_rows(output))


def read_rows(file: Path) -> list[Row]:
    """Read the rows of a JSONL file, without a last line that a killed process left unfinished."""
    return [parse_json(line) for line in file.read_text("utf-8").split("\n")[:-1] if line.strip()]
