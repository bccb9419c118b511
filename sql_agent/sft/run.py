"""Runs supervised fine-tuning: checks everything, makes tokens, trains and saves.

Leaves out the loop (`sql_agent.sft.trainer`), what DPO shares (`sql_agent.sft.fine_tuning`) and validation:
`sql_agent.tiny_policy.measure` and `sql_agent.evaluate` play held-out tasks.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentgrpo.chat.replies import EncodedReplies
from agentgrpo.chat.template import ChatTemplate
from agentgrpo.checkpoints import CHECKPOINTS, MANIFEST
from agentgrpo.checks import UsageError
from agentgrpo.flags import dashed
from agentgrpo.hub_address import shown_name
from agentgrpo.micro_batches import ON_CPU_SHARED, pass_for_rows, short_pass
from agentgrpo.model_kinds import count_weights
from agentgrpo.outputs import failures_of_the_disk
from agentgrpo.printed_commands import agentgrpo_command
from dbbench_adapter.splits import draw_by_kind
from sql_agent.environments.base import Environment, Split
from sql_agent.learning_rates import learning_rate_hint
from sql_agent.local.memory import training_holds
from sql_agent.local.model_files import base_folder
from sql_agent.local.run_folder import STATE
from sql_agent.local.tasks import entered
from sql_agent.model_check import read_json
from sql_agent.model_shape import shape_of
from sql_agent.prompts.fit import choose_limit, fit_tasks
from sql_agent.settings.groups import DataConfig
from sql_agent.settings.load import config_flag
from sql_agent.settings.tuning import GENERATED, SftConfig
from sql_agent.sft.data import (
    Demonstration,
    Demonstrations,
    dbbench_demonstrations,
    encode_all,
    read_messages,
    reference_demonstrations,
)
from sql_agent.sft.fine_tuning import (
    Say,
    Start,
    check_resumed,
    check_start,
    encoded_sha256,
    fine_tune,
    load_trainable,
    record_of,
    stop_at_end_of_turn,
)
from sql_agent.sft.trainer import RECORD, train_epochs, trained_policy
from sql_agent.startup.data import few_held_out, kinds_apart
from sql_agent.trained_on import TaskSource, TrainedOn, read_trained_on, trained_by, trained_further

COMMAND = "agentgrpo sft"


@dataclass(frozen=True)
class SftRun:
    cfg: SftConfig
    start: Start
    encoded: list[EncodedReplies]
    record: dict[str, Any]
    trained_on: TrainedOn


def prepare_sft(cfg: SftConfig, *, resume: bool, say: Say = print) -> SftRun:
    """Check everything and make the tokens. Weights are only read for their hash, and nothing is written.

    Raises:
        ValueError: something is wrong; the message says what to do.
    """
    start = check_start(cfg, MANIFEST, dropout=cfg.lora_dropout, resume=resume, say=say)
    if "learning_rate" not in cfg.model_fields_set:
        lora, weights = not start.trains_all_weights, count_weights(start.base)
        if hint := learning_rate_hint(cfg.learning_rate, weights, method="sft", lora=lora):
            say(hint)
    found = demonstrations(cfg, partial(fit_sft_tasks, cfg, start, say))
    encoded = encode_all(start.tokenizer, found.kept, max_length=start.max_length) if found.kept else []
    describe_data(cfg, found, encoded, start.max_length, say)
    stop_at_end_of_turn(start.tokenizer, encoded[0].ids[-1], say)
    tasks = found.trained_on.sources[-1].model_dump()
    data = {
        "source": cfg.data_name,
        "sha256": encoded_sha256([one.ids, one.mask] for one in encoded),
        "conversations": len(encoded),
        "tasks": tasks,
    }
    record = record_of(cfg, start, data, {**found.left_out, "too_long": len(found.kept) - len(encoded)})
    if start.checkpoint:
        check_resumed(start.checkpoint, read_json(start.checkpoint / STATE)["record"], record, say)
    return SftRun(cfg, start, encoded, record, found.trained_on)


def train_sft(run: SftRun, say: Say = print) -> None:
    """Train, save, and print the result and the next commands.

    Raises:
        UsageError: a loss is not finite, or the disk fails.
    """
    cfg, start = run.cfg, run.start
    model = load_trainable(start.model, start.base, all_weights=start.trains_all_weights, device=start.device)
    tokens = choose_pass_tokens(cfg, start, max(len(one.ids) for one in run.encoded), say)
    policy = trained_policy(model, start, cfg, tokens)
    with failures_of_the_disk(cfg.run_dir):
        (cfg.run_dir / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    epochs = partial(train_epochs, policy, run.encoded, cfg, run.record, start.checkpoint)
    steps = fine_tune(policy.model, epochs, start, cfg.run_dir, RECORD, run.record, say, run.trained_on)
    say(f"trained {steps} steps on {len(run.encoded)} conversations of {cfg.data_name}")
    say(f"{'model' if start.trains_all_weights else 'adapter'} and tokenizer: {cfg.run_dir}")
    for command in commands_after_sft(cfg, count_weights(start.base), is_adapter=not start.trains_all_weights):
        say(f"next: {command}")


def choose_pass_tokens(cfg: SftConfig, start: Start, longest: int, say: Say) -> int:
    """The tokens of a pass, as asked or as long as the longest conversation; a line says what a short one costs."""
    try:
        shape = shape_of(read_json(base_folder(start.base) / "config.json"))
    except ValueError as fault:
        say(str(fault))
        shape = None
    rank = None if start.trains_all_weights else start.lora.r if start.lora else cfg.lora_rank

    def holds(tokens: int) -> bool:
        return shape is not None and training_holds(shape, rank, start.device, cfg.precision, longest, tokens)

    asked = cfg.micro_batch_tokens
    tokens = asked or pass_for_rows(longest, start.device, holds, ON_CPU_SHARED)
    if start.device == "cpu" and (line := short_pass(tokens, longest, asked is not None)):  # a GPU always recomputes
        say(f"warning: {line}")
    return tokens


def commands_after_sft(cfg: SftConfig, weights: int | None, *, is_adapter: bool) -> list[str]:
    """The commands that talk with the model and train it further; the main job takes whole models.

    Args:
        weights: of the whole model; None: not known.
    """
    output = cfg.run_dir
    model = ("--model", output)
    talk = agentgrpo_command("interactive", *model)
    if cfg.source == "gsm8k":
        return [talk, agentgrpo_command("gsm8k", *model, "--dataset", cfg.data_name)]
    rows, same = rows_again(cfg), settings_again(cfg)
    flags = [word for name, value in same.items() for word in (f"--{dashed(name)}", str(value))]
    if cfg.source == "environment":
        settings = ["--set", *(f"data.{name}={value}" for name, value in same.items())] if same else []
        whole = f"{output}-merged" if is_adapter else output
        merge = agentgrpo_command("merge", "--adapter", output, "--output", whole)
        return [
            agentgrpo_command("local", *model, *rows, *flags),
            *([merge] if is_adapter else []),
            agentgrpo_command("train", "--model", whole, *rows, *config_flag(weights), *settings),
        ]
    how = () if cfg.protocol == "fc" else ("--protocol", cfg.protocol)
    train = agentgrpo_command("greedy-grpo", *model, *how, *rows, *flags)
    return [talk, train] if cfg.source == "dbbench" else [talk]


def rows_again(cfg: SftConfig) -> list[str]:
    """The flags that give the next command the same rows; where every row was learnt, others to measure on."""
    learnt_all = cfg.train_file is not None and cfg.val_file is None and not cfg.held_out_fraction
    val_file = "HELD_OUT_TASKS" if learnt_all else cfg.val_file
    given = {
        "env": cfg.env,
        "database": cfg.database,
        "columns": cfg.columns,
        "schema-form": cfg.schema_form if "schema_form" in cfg.model_fields_set else None,
        "train-file": cfg.train_file,
        "val-file": val_file,
    }
    return [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]


def settings_again(cfg: SftConfig) -> dict[str, float]:
    """What was given of split and prompts, with which the next command holds out and plays the same."""
    names = ["max_prompt_tokens"] if cfg.source == "environment" else []
    names += ["held_out_fraction"] if cfg.train_file is not None and cfg.val_file is None else []
    return {name: getattr(cfg, name) for name in names if name in cfg.model_fields_set and getattr(cfg, name)}


# Data -----------------------------------------------------------------------------------------------------------------


_OF_ROWS = {"dbbench": "--dataset dbbench", "environment": "--env or --database"}
FLAGS_OF = {
    **dict.fromkeys(("train_file", "val_file", "held_out_fraction"), _OF_ROWS),
    "database": {"environment": "--dataset text2sql"},
    "columns": {"environment": "--dataset text2sql", "file": "--dataset FILE"},
    "schema_form": {"environment": "--dataset text2sql"},
    "renamed_copies": {"environment": "--dataset text2sql"},
    "protocol": {"dbbench": "--dataset dbbench"},
    "max_prompt_tokens": {"gsm8k": "--dataset gsm8k", **_OF_ROWS},
}
"""Settings that only some sources have, and how those sources are given."""


Fit = Callable[[Sequence[Any], Environment], list[Any]]
"""Returns the tasks as the model is to see them; whether a whole conversation is too long is decided later."""


def fit_sft_tasks(cfg: SftConfig, start: Start, say: Say, tasks: Sequence[Any], environment: Environment) -> list[Any]:
    """Fit the tasks to the model's context and print what that cuts."""

    template = ChatTemplate.of(start.tokenizer, list(environment.tools) or None)

    def prompt_tokens(task: Any) -> int:
        return len(template.first_prompt(environment.messages(task)))

    limit = choose_limit(base_folder(start.base), cfg.max_prompt_tokens, "--max-prompt-tokens")
    found = fit_tasks(tasks, environment, prompt_tokens, limit)
    for line in found.describe():
        say(line)
    return found.tasks


def demonstrations(cfg: SftConfig, fit: Fit) -> Demonstrations:
    for name, sources in FLAGS_OF.items():
        if name in cfg.model_fields_set and cfg.source not in sources:
            known = " or ".join(sources.values())
            raise UsageError(f"--{dashed(name)} belongs to {known}, this one is {cfg.data_name}; leave it out")
    if cfg.source == "file":
        found = read_messages(Path(cfg.data_name), cfg.num_tasks, cfg.columns)
        rows = TaskSource(
            command=COMMAND, tasks=shown_name(Path(cfg.data_name)), learnt=len(found.kept), held_out=0, listed=False
        )
        found.trained_on = trained_further(read_trained_on(cfg.model_path), rows)
        return found
    if cfg.source == "environment" and cfg.train_file is None and cfg.env in ("dbbench", "gsm8k"):
        raise UsageError(f"--env {cfg.env} without rows of your own is --dataset {cfg.env}; give that, or --train-file")
    if cfg.source == "environment" and cfg.train_file is None:
        raise UsageError(
            f"{cfg.data_name} needs --train-file, rows that hold references: `question` and `query` with --database, a "
            "column `reference` with an environment of your own (doc/guides/environment.md)"
        )
    settings, data = cfg.environment, data_of(cfg)
    with entered(settings) as environment:
        split = environment.load_split(data, cfg.seed)
        in_order = cfg.source == "gsm8k"  # its problems come in the seed's order
        tasks = split.train[: cfg.num_tasks] if in_order else draw_by_kind(split.train, cfg.num_tasks, cfg.seed)
        tasks = fit(tasks, environment)
        if cfg.source == "dbbench":
            found = dbbench_demonstrations(tasks, environment)
        else:
            found = reference_demonstrations(tasks, environment)
        if cfg.renamed_copies:
            add_renamed_copies(found, tasks, environment, cfg)
        found.left_out.update(split.left_out)
        found.trained_on = trained_by(COMMAND, cfg.model_path, environment, settings, data, tasks, split.val)
        if data.train_file:
            problems = [*kinds_apart(split.train, split.val), *few_held_out(len(split.val))] if split.val else []
            said = [describe_split(cfg, data, len(tasks), split), *(f"warning: {problem}" for problem in problems)]
            found.split = "\n".join(said)
    return found


def add_renamed_copies(found: Demonstrations, tasks: Sequence[Any], environment: Environment, cfg: SftConfig) -> None:
    """
    Raises:
        UsageError: the tasks are not questions about databases.
    """
    from sql_agent.text_to_sql.environment import TextToSql

    if not isinstance(environment, TextToSql):
        raise UsageError("--renamed-copies belongs to questions about databases (--database); leave it out")
    of = {f"task {task.id!r}": task.db_id for task in tasks}
    given = [(of[each.where], each.messages) for each in found.kept if isinstance(each, Demonstration)]
    draw = random.Random(cfg.seed)
    for number in range(1, cfg.renamed_copies + 1):
        copies = environment.renamed_copies(given, together=cfg.batch_size, draw=draw)
        where = f"copy {number} under other names"
        found.kept += [Demonstration(messages, environment.tools, where) for messages in copies]
        if missing := len(given) - len(copies):
            found.notes[f"{where}: none (part of a schema, a name in the question, *, WITH, changes)"] = missing


def data_of(cfg: SftConfig) -> DataConfig:
    """Where the tasks come from, and which of them are held out."""
    file = cfg.train_file
    if cfg.source == "gsm8k":
        where = cfg.data_name.removeprefix("gsm8k:")
        file = None if where == "generated" else Path(where)
    return DataConfig(**{**cfg.files, "train_file": file}, generate=cfg.num_tasks or GENERATED, val_limit=1)


def describe_split(cfg: SftConfig, data: DataConfig, learnt: int, split: Split) -> str:
    """How many rows of the file are learnt and how many are held out, and what follows from that."""
    drawn = f"{learnt} of {len(split.train)}" if learnt < len(split.train) else str(learnt)
    if data.val_file is not None:
        held_out = f"{len(split.val)} held out in {data.val_file}"
    elif not split.val:
        held_out = "none held out, so that no command will measure the model on this file"
    elif "held_out_fraction" in cfg.model_fields_set:
        held_out = f"{len(split.val)} held out (--held-out-fraction {cfg.held_out_fraction:g})"
    else:
        held_out = (
            f"{len(split.val)} held out (the same ones that training and evaluate hold out; --val-file names others)"
        )
    return f"{data.train_file}: {drawn} to learn, {held_out}"


def describe_data(
    cfg: SftConfig, found: Demonstrations, encoded: list[EncodedReplies], max_length: int | None, say: Say
) -> None:
    """Print how much there is to train on, and what was left out.

    Raises:
        UsageError: there is nothing to train on.
    """
    left_out = found.left_out + Counter({f"longer than --max-length {max_length}": len(found.kept) - len(encoded)})
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common()) or "none"
    for note, count in found.notes.most_common():
        say(f"{note}, {count} times" if count > 1 else note)
    if found.split:
        say(found.split)
    if not encoded:
        raise UsageError(f"{cfg.data_name} gave nothing to train on; left out: {reasons}; give other data")
    tokens, said = sum(len(one.ids) for one in encoded), sum(sum(one.mask) for one in encoded)
    say(f"{len(encoded)} conversations of {cfg.data_name}, {tokens:,} tokens, {said:,} of them learnt")
    say(f"left out: {reasons}")
    lengths = [len(one.ids) for one in encoded]
    say(f"conversations: {min(lengths):,} to {max(lengths):,} tokens, median {statistics.median(lengths):,.0f}")
