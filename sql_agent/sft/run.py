"""Runs supervised fine-tuning: checks everything, makes tokens, trains and saves.

Leaves out the loop (`sql_agent.sft.trainer`), what DPO shares (`sql_agent.sft.fine_tuning`) and validation:
`sql_agent.tiny_policy.measure` and `sql_agent.evaluate` play held-out tasks.
"""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.outputs import failures_of_the_disk
from core.training_run import TrainingError
from dbbench_adapter.backends import open_backend
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.splits import draw_by_kind
from dbbench_adapter.tasks.load import load_tasks
from sql_agent.datatypes import DataConfig, EnvironmentSettings
from sql_agent.local.tasks import entered
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
    found = demonstrations(cfg)
    encoded = encode_all(start.tokenizer, found.kept, max_length=cfg.max_length) if found.kept else []
    describe_data(cfg, found, encoded, say)
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
    trainer = make_trainer(model, start.tokenizer, run.encoded, cfg, lora=start.lora, record=run.record)
    fit(trainer, start, cfg.output_dir, RECORD, run.record, say, cfg.trained_on)
    say(f"trained {trainer.state.global_step} steps on {len(run.encoded)} conversations of {cfg.data_name}")
    say(f"{'model' if start.trains_all_weights else 'adapter'} and tokenizer: {cfg.output_dir}")
    for command in next_commands(cfg, is_adapter=not start.trains_all_weights):
        say(f"next: {command}")


def next_commands(cfg: SftConfig, *, is_adapter: bool) -> list[str]:
    """Return the commands that talk with the model and train it further; the main job takes whole models."""
    output = shlex.quote(str(cfg.output_dir))
    model = f"--model {output}"
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
    "tasks": ("--train-file", {"dbbench": "--dataset dbbench", "environment": "--env or --database"}),
    "database": ("--database", {"environment": "--dataset text2sql"}),
    "protocol": ("--protocol", {"dbbench": "--dataset dbbench"}),
}
"""Settings that only some sources have: the flag of each, and how those sources are given."""


def demonstrations(cfg: SftConfig) -> Demonstrations:
    for name, (flag, sources) in FLAGS_OF.items():
        if name in cfg.model_fields_set and cfg.source not in sources:
            known = " or ".join(sources.values())
            raise TrainingError(f"{flag} belongs to {known}, this one is {cfg.data_name}; leave it out")
    if cfg.source == "file":
        return read_messages(Path(cfg.data_name), cfg.max_samples)
    if cfg.source == "gsm8k":
        where = cfg.data_name.removeprefix("gsm8k:")
        limit = cfg.max_samples or (GENERATED if where == "generated" else None)
        data = DataConfig(train_file=None if where == "generated" else Path(where), generate=limit or GENERATED)
        with entered(EnvironmentSettings("gsm8k")) as environment:
            return reference_demonstrations(environment.load_split(data, cfg.seed).train[:limit], environment)
    if cfg.source == "environment":
        if cfg.tasks is None:
            raise TrainingError(
                f"{cfg.data_name} needs --train-file, rows that hold references: `question` and `query` with "
                "--database, a column `reference` with an environment of your own (doc/own_environment.md)"
            )
        with entered(EnvironmentSettings(cfg.data_name, database=cfg.database)) as environment:
            tasks = environment.read_tasks(cfg.tasks)
            return reference_demonstrations(draw_by_kind(tasks, cfg.max_samples, cfg.seed), environment)
    tasks = load_tasks(cfg.tasks) if cfg.tasks else generate_tasks(cfg.max_samples or GENERATED, seed=cfg.seed)
    with open_backend("sqlite") as backend:
        return dbbench_demonstrations(draw_by_kind(tasks, cfg.max_samples, cfg.seed), backend, cfg.protocol)


def describe_data(cfg: SftConfig, found: Demonstrations, encoded: list[Encoded], say: Say) -> None:
    """Print how much there is to train on, and what was left out.

    Raises:
        TrainingError: there is nothing to train on.
    """
    left_out = found.left_out + Counter({f"longer than --max-length {cfg.max_length}": len(found.kept) - len(encoded)})
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common()) or "none"
    for note, count in found.notes.most_common():
        say(f"{note}, {count} times" if count > 1 else note)
    if not encoded:
        raise TrainingError(f"{cfg.data_name} gave nothing to train on; left out: {reasons}; give other data")
    tokens, said = sum(len(one.ids) for one in encoded), sum(sum(one.mask) for one in encoded)
    say(f"{len(encoded)} conversations of {cfg.data_name}, {tokens:,} tokens, {said:,} of them learnt")
    say(f"left out: {reasons}")
