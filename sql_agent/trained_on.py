"""Keeps beside a model what it was trained on, and refuses to measure a model on what it has learnt.

A model carries on what the models before it learnt. Tasks are known by their fingerprints
(`Taskset.fingerprint`), so a row is found again in another file and at another place. Leaves out rows that are no
tasks, such as conversations and pairs: their number is recorded, and that they are not listed.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from agentgrpo.hub import ModelError, model_folder
from agentgrpo.hub_address import shown_name
from agentgrpo.json_text import parse_json
from agentgrpo.model_kinds import ADAPTER_FILE
from agentgrpo.outputs import written
from sql_agent.environments.base import Taskset
from sql_agent.names import ENVIRONMENTS
from sql_agent.settings.groups import DataConfig, EnvironmentSettings

FILE = "trained_on.json"
GENERATED = "generated tasks"
# What to do where a training command would measure on what its model has learnt.
SAME_SPLIT = (
    "Measure on tasks that it has not learnt: the same --train-file without --val-file if it was trained on that file "
    "so, which holds the same tasks out in every command; or others, --val-file FILE"
)


class OwnEnvironmentError(ValueError):
    """A model was trained on an environment that only its user can name."""


class LearntError(ValueError):
    """Tasks to measure a model on were learnt by it, or that its record cannot be read."""


class _Written(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class TaskSource(_Written):
    """Where one command took its tasks from, in numbers."""

    command: str
    tasks: str
    """Name of the file, or what was generated."""
    learnt: int
    held_out: int
    held_out_tasks: str | None = None
    """Name of the file with the held-out tasks; None: they are a part of `tasks`, or generated."""
    listed: bool = True
    """Whether the record lists the tasks that were learnt."""

    def __str__(self) -> str:
        held_out = f"{self.held_out} held out" + (f" in {self.held_out_tasks}" if self.held_out_tasks else "")
        return f"{self.command} learnt {self.learnt} of {self.tasks}, {held_out}"


class TrainedOn(_Written):
    """Describes what a model, with all models before it, was trained on."""

    env: str | None = None
    """The environment of the last training; None: not known."""
    protocol: str | None = None
    """DB-Bench's protocol; the other environments have one."""
    schema_form: str | None = None
    """How prompts showed a database of the user's."""
    sources: tuple[TaskSource, ...] = ()
    """One of each training, the oldest first."""
    learnt: tuple[str, ...] = ()
    """Fingerprints of all tasks that were given to learn, sorted."""
    held_out: tuple[str, ...] = ()
    """Fingerprints of the tasks that the last training held out, sorted."""


# Reading and writing --------------------------------------------------------------------------------------------------


def write_trained_on(folder: Path, record: TrainedOn) -> None:
    with written(folder / FILE) as part:
        part.write_text(record.model_dump_json(exclude_none=True) + "\n")


def read_trained_on(model: Path | str) -> TrainedOn:
    """The record of a model; that of its base for an adapter without one; an empty one if there is none.

    Raises:
        LearntError: there is a record that cannot be read.
    """
    try:
        folder = model_folder(model, fetch=False)
    except ModelError:
        return TrainedOn()
    if (file := folder / FILE).is_file():
        try:
            return TrainedOn.model_validate(parse_json(file.read_text()))
        except (OSError, ValueError) as error:
            first = str(error.errors()[0]["msg"] if isinstance(error, ValidationError) else error)
            raise LearntError(
                f"{file} cannot be read ({first}), so nobody knows what the model has learnt; copy it again from where "
                "the model was made, or remove it if you know that it holds none of the tasks to measure on"
            ) from None
    base = _base_of(folder)
    return TrainedOn() if base in (None, str(model), str(folder)) else read_trained_on(str(base))


def _base_of(folder: Path) -> str | None:
    try:
        base = parse_json((folder / ADAPTER_FILE).read_text())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return base if isinstance(base, str) else None


def environment_flags(folder: Path) -> dict[str, str]:
    """The flags `env`, `protocol` and `schema_form` of the training of the model in `folder`; {} if it does not say.

    Raises:
        OwnEnvironmentError: it was trained on an environment that this project does not have.
    """
    try:
        record = read_trained_on(folder)
    except LearntError:
        return {}
    if record.env is None:
        return {}
    if record.env not in ENVIRONMENTS:
        # naming a file runs it, and whoever made the folder may be a stranger
        raise OwnEnvironmentError(
            f"{folder / FILE} says that the model was trained on {record.env}, a program that is not part of this "
            f"project; if you trust it, give --env {shlex.quote(record.env)}"
        )
    # before prompts had several forms, they had CREATE statements
    form = record.schema_form or ("ddl" if record.env == "text2sql" else None)
    played = {"protocol": record.protocol, "schema_form": form}
    return {"env": record.env} | {flag: value for flag, value in played.items() if value is not None}


# Training further -----------------------------------------------------------------------------------------------------


def source_of(command: str, data: DataConfig, learnt: Sequence[Any], held_out: Sequence[Any]) -> TaskSource:
    """Describe the tasks of a training in words; the folder of a file is left out, because models are passed on."""
    return TaskSource(
        command=command,
        tasks=shown_name(data.train_file) if data.train_file else GENERATED,
        learnt=len(learnt),
        held_out=len(held_out),
        held_out_tasks=shown_name(data.val_file) if data.val_file else None,
    )


def trained_further(
    before: TrainedOn,
    source: TaskSource,
    *,
    settings: EnvironmentSettings | None = None,
    learnt: Sequence[str] = (),
    held_out: Sequence[str] = (),
) -> TrainedOn:
    """The record of a model that was trained further.

    Args:
        before: the record of the model that it was.
        settings: the environment of the training; None: it played none, and what was known stays.
        learnt, held_out: fingerprints of the tasks.
    """
    of_env: dict[str, Any] = {}
    if settings is not None:
        protocol = settings.protocol if settings.type == "dbbench" else None
        form = settings.schema_form if settings.type == "text2sql" else None
        of_env = {"env": settings.type, "protocol": protocol, "schema_form": form}
    lists = {"learnt": tuple(sorted({*before.learnt, *learnt})), "held_out": tuple(sorted(set(held_out)))}
    return before.model_copy(update={**of_env, **lists, "sources": (*before.sources, source)})


def trained_by(
    command: str,
    model: Path | str,
    environment: Taskset,
    settings: EnvironmentSettings,
    data: DataConfig,
    train: Sequence[Any],
    held_out: Sequence[Any],
) -> TrainedOn:
    """The record of `model` after `command` has trained it on the tasks `train`.

    Raises:
        LearntError: the record of `model` cannot be read.
    """
    prints = {"learnt": train, "held_out": held_out}
    return trained_further(
        read_trained_on(model),
        source_of(command, data, train, held_out),
        settings=settings,
        **{name: [environment.fingerprint(task) for task in tasks] for name, tasks in prints.items()},
    )


# Measuring ------------------------------------------------------------------------------------------------------------


def check_not_learnt(model: Path | str, environment: Taskset, tasks: Sequence[Any], remedy: str) -> list[str]:
    """Check that a model has learnt none of the tasks that it is to be measured on.

    Args:
        model: its folder, or its id on the hub; a model without a record has learnt nothing that is known.
        remedy: what to do, for the message.
    Returns:
        Lines about rows that the model learnt and its record does not list, so that they cannot be compared.
    Raises:
        LearntError: it has learnt some, or its record cannot be read.
    """
    record = read_trained_on(model)
    known = set(record.learnt)
    learnt = [task for task in tasks if environment.fingerprint(task) in known]
    if learnt:
        raise LearntError(
            f"{model} has learnt {len(learnt)} of the {len(tasks)} tasks to measure it on, for example "
            f"{textwrap.shorten(str(learnt[0].question), 80)!r}; its {FILE} says: "
            f"{'; '.join(map(str, record.sources))}. Success on them says nothing about new tasks. {remedy}"
        )
    return [
        f"{model} has also learnt from {source.tasks} ({source.command}); its {FILE} does not list those rows, so "
        "nobody can tell whether tasks to measure it on are among them"
        for source in record.sources
        if not source.listed
    ]
