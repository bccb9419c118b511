"""Runs supervised fine-tuning: checks everything, makes tokens, trains and saves.

Leaves out the loop (`sql_agent.sft.trainer`) and validation: `sql_agent.tiny_policy.measure` and
`sql_agent.evaluate` play held-out tasks.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import disable_progress_bars as disable_dataset_bars
from transformers import AutoConfig, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from core import signed
from core.chat_tokenizer import load_tokenizer, tokenizer_sha256
from core.hub import model_folder
from core.machine import git_commit
from core.outputs import OutputError, check_output, failures_of_the_disk
from core.training_run import TrainingError, check_same_run, newest_whole, remove_torn, versions
from core.weights import weights_sha256
from dbbench_adapter.backends import open_backend
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.splits import draw_by_kind
from dbbench_adapter.tasks.load import load_tasks
from sql_agent.datatypes import DataConfig, EnvironmentSettings
from sql_agent.local.model_files import base_name, check_device, check_fit, check_model, is_adapter
from sql_agent.local.tasks import entered
from sql_agent.model_check import read_json
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
from sql_agent.sft.trainer import (
    CHECKPOINTS,
    RECORD,
    Lora,
    load_trainable,
    make_trainer,
    save_whole,
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """Holds what a run needs to start."""

    cfg: SftConfig
    model: Path
    """The folder of the model, or of the adapter."""
    base: Path
    """The folder of the model, or of the adapter's base."""
    lora: Lora | None
    """The adapter to make; None if all weights or an existing adapter are trained."""
    tokenizer: PreTrainedTokenizerBase
    encoded: list[Encoded]
    device: str
    record: dict[str, Any]
    checkpoint: Path | None
    """The checkpoint from which a resumed run continues."""

    @property
    def trains_all_weights(self) -> bool:
        return self.lora is None and self.base == self.model


def prepare(cfg: SftConfig, *, resume: bool, say: Say = print) -> Run:
    """Check everything and make the tokens. Weights are only read for their hash, and nothing is written.

    Raises:
        ValueError: something is wrong; the message says what to do.
    """
    disable_dataset_bars()
    disable_progress_bar()
    checkpoint = checkpoint_to_resume(cfg, resume, say)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if cfg.device == "auto" else cfg.device
    check_device(device, load_in_4bit=False, has_gpu=torch.cuda.is_available())
    check_model(cfg.model_path)
    model = model_folder(cfg.model_path)
    base = base_of(model)
    lora = new_adapter(cfg, is_adapter=base != model)
    tokenizer = load_tokenizer(model, cfg.chat_template_path)
    check_positions(base, cfg.max_length)
    found = demonstrations(cfg)
    encoded = encode_all(tokenizer, found.kept, max_length=cfg.max_length) if found.kept else []
    describe_data(cfg, found, encoded, say)
    stop_at_end_of_turn(tokenizer, encoded[0].ids[-1], say)
    check_fit(cfg.model_path)
    record = {
        "model": {"path": str(model), "sha256": weights_sha256(model)},
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
        "data": {"source": cfg.data_name, "sha256": digest(encoded), "conversations": len(encoded)},
        "left_out": {**found.left_out, "too_long": len(found.kept) - len(encoded)},
        "settings": {name: getattr(cfg, name) for name in SETTINGS} | {"lora": asdict(lora) if lora else None},
        "versions": versions(),
        "git_commit": git_commit(),
    }
    if checkpoint:
        check_same_run(checkpoint, _what_counts(read_json(checkpoint / RECORD)), _what_counts(record))
        say(f"going on from {checkpoint}")
    return Run(cfg, model, base, lora, tokenizer, encoded, device, record, checkpoint)


def train(run: Run, say: Say = print) -> None:
    """Train, save, and print the result and the next commands.

    Raises:
        TrainingError: a loss is not finite, or the disk fails.
    """
    cfg = run.cfg
    with failures_of_the_disk(cfg.output_dir):
        (cfg.output_dir / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    model = load_trainable(run.model, run.base, all_weights=run.trains_all_weights, device=run.device)
    trainer = make_trainer(model, run.tokenizer, run.encoded, cfg, lora=run.lora, record=run.record)
    weights = list(trainer.model.parameters())  # pyright: ignore[reportOptionalMemberAccess]
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    say(f"{trained:,} of {sum(map(torch.numel, weights)):,} weights are trained, on {run.device}")
    try:
        with failures_of_the_disk(cfg.output_dir):
            trainer.train(resume_from_checkpoint=str(run.checkpoint) if run.checkpoint else None)
            save_whole(trainer, run.tokenizer, cfg.output_dir, run.record, cfg.trained_on)
    except OutputError as error:
        raise TrainingError(f"{error}; {what_is_left(cfg.output_dir)}") from error
    say(f"trained {trainer.state.global_step} steps on {len(run.encoded)} conversations of {cfg.data_name}")
    say(f"{'model' if run.trains_all_weights else 'adapter'} and tokenizer: {cfg.output_dir}")
    for command in next_commands(cfg):
        say(f"next: {command}")


def what_is_left(output: Path) -> str:
    """Remove unfinished checkpoints, which fill the disk, and say from which one a resumed run continues."""
    newest = remove_torn(output / CHECKPOINTS, RECORD)
    return f"with --resume it goes on from {newest}" if newest else "with --resume, since no checkpoint was whole yet"


def next_commands(cfg: SftConfig) -> list[str]:
    model = f"--model_path {shlex.quote(str(cfg.output_dir))}"
    talk = f"python scripts/test_interactive.py {model}"
    if cfg.source == "gsm8k":
        return [
            f"{talk} --task gsm8k",
            f"python scripts/train_gsm8k_agent.py {model} --dataset {shlex.quote(cfg.data_name)}",
        ]
    if cfg.source == "environment":
        given = {"env": cfg.env, "database": cfg.database, "train-file": cfg.tasks}
        rows = " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None)
        return [
            f"python scripts/train_local_grpo.py {model} {rows}",
            f"python sql_agent/train_sql_agent.py --model {shlex.quote(str(cfg.output_dir))} {rows}",
        ]
    how = "" if cfg.protocol == "fc" else f" --protocol {cfg.protocol}"
    train = f"python -m scripts.run_dbbench_greedy_grpo {model}"
    return [talk + how, train + how] if cfg.source == "dbbench" else [talk]


# What is checked ------------------------------------------------------------------------------------------------------


def base_of(model: Path) -> Path:
    return model_folder(base_name(model), fetch=False) if is_adapter(model) else model


def new_adapter(cfg: SftConfig, *, is_adapter: bool) -> Lora | None:
    given = [f"--{name}" for name in ("lora_r", "lora_alpha", "lora_dropout") if name in cfg.model_fields_set]
    if is_adapter and given:
        raise TrainingError(
            f"{given[0]} is given, and {cfg.model_path} is an adapter, which is trained on as it is; leave the flag "
            "out, or give a whole model"
        )
    return None if is_adapter or cfg.lora_r == 0 else Lora(cfg.lora_r, cfg.lora_alpha, cfg.lora_dropout)


def check_positions(base: Path, max_length: int) -> None:
    positions = getattr(
        AutoConfig.from_pretrained(base, trust_remote_code=False).get_text_config(), "max_position_embeddings", None
    )
    if positions and max_length > positions:
        raise TrainingError(f"--max_length is {max_length}, expected at most {positions}, the positions of {base}")


def stop_at_end_of_turn(tokenizer: PreTrainedTokenizerBase, end: int, say: Say) -> None:
    """Make the token that ends a reply the tokenizer's eos_token, at which sampling stops; base models often differ."""
    if end != tokenizer.eos_token_id:
        token = str(tokenizer.convert_ids_to_tokens(end))
        say(f"replies end with {token}, which becomes the tokenizer's eos_token (it was {tokenizer.eos_token})")
        tokenizer.eos_token = token


def checkpoint_to_resume(cfg: SftConfig, resume: bool, say: Say) -> Path | None:
    """Return the newest whole checkpoint, or None for a new start.

    Raises:
        ValueError: the folder holds something that would be overwritten, nothing to resume, or another user's files; or
            it cannot be written.
    """
    output = cfg.output_dir
    signed.user_key()
    if output.exists() and not output.is_dir():
        raise TrainingError(f"--output_dir {output} is a file, expected a folder; name another")
    if (output / RECORD).is_file():
        raise TrainingError(f"{output} holds a finished model ({RECORD}); name another --output_dir")
    check_output(output / RECORD, "--output_dir")
    if resume and not (output / CHECKPOINTS).is_dir():
        raise TrainingError(f"{output} holds no run to go on with; start it without --resume")
    if not resume and output.is_dir() and any(output.iterdir()):
        raise TrainingError(f"{output} is not empty; go on with its run by --resume, or name another --output_dir")
    if not resume:
        return None
    newest = newest_whole(output / CHECKPOINTS, RECORD, run_dir=output, say=say)
    if newest is None:
        say(f"no whole checkpoint in {output}: starting anew")
    return newest


SETTINGS = ("num_epochs", "batch_size", "gradient_accumulation_steps", "learning_rate", "seed")
"""Settings that the weights depend on, beside model, data and adapter; a resumed run must have the same."""


def _what_counts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that the weights depend on, as JSON values."""
    facts = {
        "model": record["model"]["sha256"],
        "tokenizer or chat template": record["tokenizer_sha256"],
        "data": record["data"]["sha256"],
        **record["settings"],
    }
    return json.loads(json.dumps(facts))


# Data -----------------------------------------------------------------------------------------------------------------


FLAGS_OF = {
    "tasks": {"dbbench": "--dataset dbbench", "environment": "--env or --database"},
    "database": {"environment": "--dataset text2sql"},
    "protocol": {"dbbench": "--dataset dbbench"},
}
"""Flags that only some sources have, and how each of those is given."""


def demonstrations(cfg: SftConfig) -> Demonstrations:
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
            return reference_demonstrations(environment.load_split(data, cfg.seed).train[:limit], environment)
    if cfg.source == "environment":
        if cfg.tasks is None:
            raise TrainingError(
                f"{cfg.data_name} needs --tasks, rows that hold references: `question` and `query` with --database, a "
                "column `reference` with an environment of your own (doc/own_environment.md)"
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
    left_out = found.left_out + Counter({f"longer than --max_length {cfg.max_length}": len(found.kept) - len(encoded)})
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common()) or "none"
    for note, count in found.notes.most_common():
        say(f"{note}, {count} times" if count > 1 else note)
    if not encoded:
        raise TrainingError(f"{cfg.data_name} gave nothing to train on; left out: {reasons}; give other data")
    tokens, said = sum(len(one.ids) for one in encoded), sum(sum(one.mask) for one in encoded)
    say(f"{len(encoded)} conversations of {cfg.data_name}, {tokens:,} tokens, {said:,} of them learnt")
    say(f"left out: {reasons}")
