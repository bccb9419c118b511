"""Runs supervised fine-tuning: checks everything, makes tokens, trains and saves.

Leaves out the loop (`sql_agent.sft.trainer`), what DPO shares (`sql_agent.sft.fine_tuning`) and validation:
`sql_agent.tiny_policy.measure` and `sql_agent.evaluate` play held-out tasks.
"""

from __future__ import annotations

import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from core.micro_batches import ON_CPU_SHARED, pass_for_rows, short_pass
from core.outputs import failures_of_the_disk
from core.training_run import TrainingError
from dbbench_adapter.backends import open_backend
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.splits import draw_by_kind
from dbbench_adapter.tasks.load import load_tasks
from sql_agent.datatypes import DataConfig, EnvironmentSettings
from sql_agent.environments.base import Environment
from sql_agent.environments.dbbench import DbBench
from sql_agent.local.conversation import first_prompt
from sql_agent.local.memory import shape_of, training_holds
from sql_agent.local.model_files import base_folder
from sql_agent.local.tasks import entered
from sql_agent.model_check import read_json
from sql_agent.prompts.fit import fit_tasks
from sql_agent.prompts.limit import choose_limit
from sql_agent.sft.config import GENERATED, SftConfig
from sql_agent.sft.data import (
    Demonstrations,
    dbbench_demonstrations,
    digest,
    encode_all,
    read_messages,
    reference_demonstrations,
)
from sql_agent.sft.encoding import Encoded
from sql_agent.sft.fine_tuning import (
    CHECKPOINTS,
    Say,
    Start,
    check_resumed,
    check_start,
    fit,
    load_trainable,
    record_of,
    stop_at_end_of_turn,
)
from sql_agent.sft.trainer import RECORD, make_trainer


@dataclass(frozen=True)
class Run:
    """Holds what a run needs to start."""

    cfg: SftConfig
    start: Start
    encoded: list[Encoded]
    record: dict[str, Any]


def prepare(cfg: SftConfig, *, resume: bool, say: Say = print) -> Run:
    """Check everything and make the tokens. Weights are only read for their hash, and nothing is written.

    Raises:
        ValueError: something is wrong; the message says what to do.
    """
    start = check_start(cfg, RECORD, dropout=cfg.lora_dropout, resume=resume, say=say)
    found = demonstrations(cfg, partial(fitted, cfg, start, say))
    encoded = encode_all(start.tokenizer, found.kept, max_length=start.max_length) if found.kept else []
    describe_data(cfg, found, encoded, start.max_length, say)
    stop_at_end_of_turn(start.tokenizer, encoded[0].ids[-1], say)
    data = {"source": cfg.data_name, "sha256": digest(encoded), "conversations": len(encoded)}
    record = record_of(cfg, start, data, {**found.left_out, "too_long": len(found.kept) - len(encoded)})
    check_resumed(start, RECORD, record, say)
    return Run(cfg, start, encoded, record)


def train(run: Run, say: Say = print) -> None:
    """Train, save, and print the result and the next commands.

    Raises:
        TrainingError: a loss is not finite, or the disk fails.
    """
    cfg, start = run.cfg, run.start
    with failures_of_the_disk(cfg.output_dir):
        (cfg.output_dir / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    model = load_trainable(start.model, start.base, all_weights=start.trains_all_weights, device=start.device)
    tokens = choose_pass(cfg, start, max(len(one.ids) for one in run.encoded), say)
    trainer = make_trainer(
        model, start.tokenizer, run.encoded, cfg, lora=start.lora, record=run.record, pass_tokens=tokens
    )
    fit(trainer, start, cfg.output_dir, RECORD, run.record, say, cfg.trained_on)
    say(f"trained {trainer.state.global_step} steps on {len(run.encoded)} conversations of {cfg.data_name}")
    say(f"{'model' if start.trains_all_weights else 'adapter'} and tokenizer: {cfg.output_dir}")
    for command in next_commands(cfg, is_adapter=not start.trains_all_weights):
        say(f"next: {command}")


def choose_pass(cfg: SftConfig, start: Start, longest: int, say: Say) -> int:
    """Return the tokens of a pass, as asked or as long as the longest conversation, and say what a short one costs."""
    try:
        shape = shape_of(read_json(base_folder(start.base) / "config.json"))
    except ValueError:  # the memory of models of this kind is not estimated
        shape = None
    rank = None if start.trains_all_weights else start.lora.r if start.lora else cfg.lora_r

    def holds(tokens: int) -> bool:
        return shape is not None and training_holds(shape, rank, start.device, cfg.precision, longest, tokens)

    asked = cfg.micro_batch_tokens
    tokens = asked or pass_for_rows(longest, start.device, holds, ON_CPU_SHARED)
    if start.device == "cpu" and (line := short_pass(tokens, longest, asked is not None)):  # a GPU always recomputes
        say(f"warning: {line}")
    return tokens


def next_commands(cfg: SftConfig, *, is_adapter: bool) -> list[str]:
    """Return the commands that talk with the model and train it further; the main job takes whole models."""
    output = shlex.quote(str(cfg.output_dir))
    model = f"--model_path {output}"
    talk = f"python scripts/test_interactive.py {model}"
    if cfg.source == "gsm8k":
        return [
            talk,
            f"python scripts/train_gsm8k_agent.py {model} --dataset {shlex.quote(cfg.data_name)}",
        ]
    if cfg.source == "environment":
        given = {"env": cfg.env, "database": cfg.database, "train-file": cfg.tasks}
        rows = " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None)
        whole = shlex.quote(f"{cfg.output_dir}-merged") if is_adapter else output
        return [
            f"python scripts/train_local_grpo.py {model} {rows}",
            *([f"python -m scripts.merge_policy --adapter {output} --output {whole}"] if is_adapter else []),
            f"python sql_agent/train_sql_agent.py --model {whole} {rows}",
        ]
    how = "" if cfg.protocol == "fc" else f" --protocol {cfg.protocol}"
    train = f"python -m scripts.run_dbbench_greedy_grpo {model}"
    return [talk, train + how] if cfg.source == "dbbench" else [talk]


# Data -----------------------------------------------------------------------------------------------------------------


FLAGS_OF = {
    "tasks": {"dbbench": "--dataset dbbench", "environment": "--env or --database"},
    "database": {"environment": "--dataset text2sql"},
    "protocol": {"dbbench": "--dataset dbbench"},
}
"""Flags that only some sources have, and how each of those is given."""


Fit = Callable[[Sequence[Any], Environment], list[Any]]
"""Returns the tasks as the model is to see them; whether a whole conversation is too long is decided later."""


def fitted(cfg: SftConfig, start: Start, say: Say, tasks: Sequence[Any], environment: Environment) -> list[Any]:
    """Fit the tasks to the model's context and print what that cuts."""

    def prompt_tokens(task: Any) -> int:
        return len(first_prompt(start.tokenizer, environment.messages(task), environment.tools))

    limit = choose_limit(base_folder(start.base), cfg.max_prompt_tokens, "--max_prompt_tokens")
    found = fit_tasks(tasks, environment, prompt_tokens, limit)
    for line in found.describe():
        say(line)
    return found.tasks


def demonstrations(cfg: SftConfig, fit: Fit) -> Demonstrations:
    for name, sources in FLAGS_OF.items():
        if name in cfg.model_fields_set and cfg.source not in sources:
            known = " or ".join(sources.values())
            raise TrainingError(f"--{name} belongs to {known}, this one is {cfg.data_name}; leave it out")
    if cfg.source == "file":
        return read_messages(Path(cfg.data_name), cfg.max_samples)
    if cfg.source == "gsm8k":
        where = cfg.data_name.removeprefix("gsm8k:")
        limit = cfg.max_samples or (GENERATED if where == "generated" else None)
        data = DataConfig(train_file=None if where == "generated" else Path(where), generate=limit or GENERATED)
        with entered(EnvironmentSettings("gsm8k")) as environment:
            tasks = environment.load_split(data, cfg.seed).train[:limit]
            return reference_demonstrations(fit(tasks, environment), environment)
    if cfg.source == "environment":
        if cfg.tasks is None:
            raise TrainingError(
                f"{cfg.data_name} needs --tasks, rows that hold references: `question` and `query` with --database, a "
                "column `reference` with an environment of your own (doc/own_environment.md)"
            )
        with entered(EnvironmentSettings(cfg.data_name, database=cfg.database)) as environment:
            tasks = environment.read_tasks(cfg.tasks)
            tasks = draw_by_kind(tasks, cfg.max_samples, cfg.seed)
            return reference_demonstrations(fit(tasks, environment), environment)
    tasks = load_tasks(cfg.tasks) if cfg.tasks else generate_tasks(cfg.max_samples or GENERATED, seed=cfg.seed)
    with open_backend("sqlite") as backend:
        tasks = fit(draw_by_kind(tasks, cfg.max_samples, cfg.seed), DbBench("strict", cfg.protocol, backend))
        return dbbench_demonstrations(tasks, backend, cfg.protocol)


def describe_data(
    cfg: SftConfig, found: Demonstrations, encoded: list[Encoded], max_length: int | None, say: Say
) -> None:
    """Print how much there is to train on, and what was left out.

    Raises:
        TrainingError: there is nothing to train on.
    """
    left_out = found.left_out + Counter({f"longer than --max_length {max_length}": len(found.kept) - len(encoded)})
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common()) or "none"
    for note, count in found.notes.most_common():
        say(f"{note}, {count} times" if count > 1 else note)
    if not encoded:
        raise TrainingError(f"{cfg.data_name} gave nothing to train on; left out: {reasons}; give other data")
    tokens, said = sum(len(one.ids) for one in encoded), sum(sum(one.mask) for one in encoded)
    say(f"{len(encoded)} conversations of {cfg.data_name}, {tokens:,} tokens, {said:,} of them learnt")
    say(f"left out: {reasons}")
    lengths = [len(one.ids) for one in encoded]
    say(f"conversations: {min(lengths):,} to {max(lengths):,} tokens, median {statistics.median(lengths):,.0f}")
