from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentgrpo.checks import Finding, Problem, UsageError
from agentgrpo.hub import model_folder
from dbbench_adapter.engines import BackendUnavailable
from dbbench_adapter.protocols import ProtocolName
from sql_agent.architectures import Trainer, check_architecture
from sql_agent.environments.base import make_taskset
from sql_agent.local.model_files import base_folder
from sql_agent.model_check import check_model_dir, check_tensor_parallel, read_json, template_of_run
from sql_agent.names import check_name
from sql_agent.prompts.fit import choose_limit, describe_lengths, fit_tasks
from sql_agent.prompts.tokenizer import PromptTokenizer
from sql_agent.settings.groups import DataConfig, EnvironmentSettings, SchemaForm
from sql_agent.startup.data import few_held_out, kinds_apart
from sql_agent.text_to_sql.datatypes import Question
from sql_agent.text_to_sql.environment import TextToSql
from sql_agent.text_to_sql.load import split_questions


def check_model(model: Path, protocol: ProtocolName) -> Finding:
    path = model_folder(model, fetch=False)
    problems = tuple(check_model_dir(path, protocol))
    sound = f"{path}: complete, conversations of protocol {protocol} continue from sampled ids"
    return Finding(f"{path}" if problems else sound, problems)


def check_sharding(model: Path, tensor_parallel: int) -> Finding:
    return Finding(f"{tensor_parallel}", tuple(check_tensor_parallel(model, tensor_parallel)))


def check_model_type(model: Path | str, trainer: Trainer, row_tokens: int) -> Finding | None:
    """None: there is no config.json to read, which another check says."""
    try:
        config = read_json(base_folder(model_folder(model, fetch=False)) / "config.json")
    except (ValueError, KeyError):
        return None
    problem = check_architecture(config, trainer, row_tokens)
    return Finding(str(config.get("model_type")), (problem,) if problem else ())


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except BackendUnavailable as error:
        raise UsageError(str(error)) from error


def check_database(
    database: Path | str, tasks: Path | None, splits: bool = False, columns: str | None = None
) -> Finding:
    """Check what a run with `--database` would find: databases, tables, and whether the references run.

    Args:
        splits: whether a part of the questions is to be held out.
    """
    with _answering(), TextToSql(database, columns=columns) as environment:
        databases = environment.databases
        found = databases.summary()
        if tasks is None:
            return Finding(found)
        questions = environment.read_tasks(tasks)
        problems = list[Problem]()
        if splits:
            train, val = split_questions(questions, DataConfig().held_out_fraction)
            problems += [*kinds_apart(train, val), *few_held_out(len(val))]
        faults = [(q.shown, fault) for q in questions if (fault := environment.reference_fault(q))]
        problems += _without_result(environment, tasks, questions)
    found += f"; {len(questions)} questions"
    if not faults:
        return Finding(found, tuple(problems))
    first = "; ".join(f"{name}: {fault}" for name, fault in faults[:3])
    what = f"{len(faults)} references fail and their questions will be left out: {first}"
    what_it_is = "one SELECT or what changes data" if databases.changeable else "one SELECT"
    remedy = f"correct them in {tasks}; a reference is {databases.engine.name}'s SQL, {what_it_is}"
    if all(databases.is_to_blame(fault) for _, fault in faults):
        remedy = "leave the questions out, or do what is said behind them; the references themselves may be right"
    return Finding(found, (Problem(what, remedy, blocks=len(faults) == len(questions)), *problems))


def _without_result(environment: TextToSql, tasks: Path, questions: Sequence[Question]) -> list[Problem]:
    # Such references give no row or change nothing.
    empty = [question.shown for question in questions if environment.finds_nothing(question)]
    if not empty:
        return []
    what = (
        f"{len(empty)} references give no row or change nothing, the first of {empty[0]}: such a question is left out "
        "of training, and where it is held out every query that finds nothing is right"
    )
    return [Problem(what, f"correct them in {tasks}, or leave them out", blocks=False)]


def check_prompts(
    tasks: Path,
    model: Path,
    database: Path | str,
    max_prompt_tokens: int | None,
    columns: str | None,
    schema_form: SchemaForm,
) -> Finding:
    """Say how long the first prompts are, as every command plays them, what is cut, and what fine-tuning learns."""
    folder = model_folder(model, fetch=False)
    with _answering(), TextToSql(database, columns=columns, form=schema_form) as environment:
        tokenizer = PromptTokenizer(folder, environment, template_of_run(folder, "fc")[0])
        limit = choose_limit(folder, max_prompt_tokens, "--max-prompt-tokens")
        found = fit_tasks(environment.read_tasks(tasks), environment, tokenizer.prompt_tokens, limit)
        played = zip(found.tasks, found.lengths, strict=True)
        learnt = max(tokens + sum(tokenizer.reply_tokens(task)) for task, tokens in played)
        problems = (*found.cuts(), *found.missed())
        lengths = describe_lengths(found.lengths, limit)
    if not found.fitting:
        problems = (Problem("no first prompt is within the limit", f"raise {limit.flag}, or take another model"),)
    return Finding(f"{lengths}; fine-tuning learns conversations of up to {learnt:,} tokens", problems)


def check_tasks(env: str, rest: Mapping[str, Any], train_file: Path | None, val_file: Path | None) -> Finding:
    """Check what a run would find in an environment or with a user's agent: its class, and the tasks.

    Args:
        rest: settings of the environment.
    """
    check_name(env)
    shown = rest["agent"] or env
    with _answering(), make_taskset(EnvironmentSettings(env, **rest)) as environment:
        if train_file is None:
            return Finding(f"{shown} can be loaded; give its tasks with --train-file")
        split = environment.load_split(DataConfig(train_file=train_file, val_file=val_file), seed=0)
    left_out = "".join(f", {count} left out: {why}" for why, count in split.left_out.items())
    return Finding(f"{shown}: {len(split.train)} to train on, {len(split.val)} held out{left_out}")
