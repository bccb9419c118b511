"""What supervised fine-tuning and DPO share: checks before weights are read, the adapter, resuming, the result.

Leaves out the data and the losses.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import disable_progress_bars as disable_dataset_bars
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from agentgrpo.chat.tokenizer import load_tokenizer, tokenizer_sha256
from agentgrpo.checkpoints import CHECKPOINTS, how_to_go_on, newest_whole
from agentgrpo.checks import UsageError, require
from agentgrpo.hub import model_folder
from agentgrpo.machine import git_commit, uses_bfloat16
from agentgrpo.model_kinds import count_adapter_weights, count_weights
from agentgrpo.outputs import DiskNeed, OutputError, failures_of_the_disk
from agentgrpo.training_run import (
    check_same_run,
    library_versions,
    publish,
    remove_torn,
    write_record,
)
from agentgrpo.weights import weights_sha256
from sql_agent.local.model_files import base_folder, base_name, check_model_weights, is_adapter
from sql_agent.local.run_folder import KEPT
from sql_agent.model_check import read_json
from sql_agent.prompts.fit import context_of
from sql_agent.settings.tuning import FineTuningConfig
from sql_agent.trained_on import TrainedOn, write_trained_on

Say = Callable[[str], None]


@dataclass(frozen=True)
class Lora:
    """Describes a new adapter on all linear layers."""

    r: int
    alpha: int
    dropout: float

    def peft_config(self) -> LoraConfig:
        return LoraConfig(
            task_type="CAUSAL_LM", r=self.r, lora_alpha=self.alpha, lora_dropout=self.dropout,
            target_modules="all-linear",
        )  # fmt: skip


@dataclass(frozen=True)
class Start:
    """The model and the place of a run, checked."""

    model: Path
    """The folder of the model, or of the adapter."""
    base: Path
    """The folder of the model, or of the adapter's base."""
    lora: Lora | None
    """The adapter to make; None if all weights or an existing adapter are trained."""
    tokenizer: PreTrainedTokenizerBase
    device: str
    checkpoint: Path | None
    """The checkpoint from which a resumed run continues."""
    sealed: str
    """The name of the signed record of its checkpoints."""
    max_length: int | None
    """Largest number of tokens of a conversation; None: the model's config names no context."""

    @property
    def trains_all_weights(self) -> bool:
        return self.lora is None and self.base == self.model


# What is checked ------------------------------------------------------------------------------------------------------


def check_start(cfg: FineTuningConfig, sealed: str, *, dropout: float, resume: bool, say: Say) -> Start:
    """Check device, model and tokenizer. No weights are read, and nothing is written.

    Args:
        sealed: the name of the signed record of its checkpoints.
        dropout: dropout on a new adapter's input.
    Raises:
        ValueError: something is wrong; the message says what to do.
    """
    disable_dataset_bars()
    disable_progress_bar()
    checkpoint = newest_sealed_checkpoint(cfg.run_dir, sealed, say) if resume else None
    device = ("cuda" if torch.cuda.is_available() else "cpu") if cfg.device == "auto" else cfg.device
    require(device=device, load_in_4bit=False, has_gpu=torch.cuda.is_available())
    model = model_folder(cfg.model_path)
    base = model_folder(base_name(model), fetch=False) if is_adapter(model) else model
    lora = new_adapter(cfg, dropout, is_adapter=base != model)
    tokenizer = load_tokenizer(model, cfg.chat_template_path)
    remedy = "train an adapter (--lora-rank 16)"
    require(say, folder=cfg.run_dir, disk_need=fine_tuning_disk_need(base, model, lora), disk_remedy=remedy)
    longest = longest_conversation(base_folder(base), cfg.max_length)
    return Start(model, base, lora, tokenizer, device, checkpoint, sealed, longest)


def fine_tuning_disk_need(base: Path, model: Path, lora: Lora | None) -> DiskNeed:
    """Checkpoints of trained weights and two moments, then the result."""
    # without a new adapter `model` is the whole model, or the adapter that is trained on
    trained = (count_weights(model) if lora is None else count_adapter_weights(base, lora.r)) or 0
    return DiskNeed(checkpoint=12 * trained, at_once=KEPT + 1, rest=4 * trained)


def new_adapter(cfg: FineTuningConfig, dropout: float, *, is_adapter: bool) -> Lora | None:
    flags = {"lora_rank": "--lora-rank", "lora_alpha": "--lora-alpha", "lora_dropout": "--lora-dropout"}
    given = [flag for name, flag in flags.items() if name in cfg.model_fields_set]
    if is_adapter and given:
        raise UsageError(
            f"{given[0]} is given, and {cfg.model_path} is an adapter, which is trained on as it is; leave the flag "
            "out, or give a whole model"
        )
    return None if is_adapter or cfg.lora_rank == 0 else Lora(cfg.lora_rank, cfg.lora_alpha, dropout)


def longest_conversation(base: Path, max_length: int | None) -> int | None:
    """The limit of a conversation: `max_length`, or the context of the model in `base`.

    Raises:
        UsageError: `max_length` is longer than the context.
    """
    context = context_of(read_json(base / "config.json"))
    if context and max_length and max_length > context:
        raise UsageError(f"--max-length is {max_length}, expected at most {context}, the positions of {base}")
    return max_length or context


def stop_at_end_of_turn(tokenizer: PreTrainedTokenizerBase, end: int, say: Say) -> None:
    """Make the token that ends a reply the tokenizer's eos_token, at which sampling stops; base models often differ."""
    if end != tokenizer.eos_token_id:
        token = str(tokenizer.convert_ids_to_tokens(end))
        say(f"replies end with {token}, which becomes the tokenizer's eos_token (it was {tokenizer.eos_token})")
        tokenizer.eos_token = token


def newest_sealed_checkpoint(output: Path, sealed: str, say: Say) -> Path | None:
    """The newest whole checkpoint; None to begin anew.

    Raises:
        NotOursError: another user wrote the checkpoint.
    """
    newest = newest_whole(output / CHECKPOINTS, say, run_dir=output, record=sealed)
    if newest is None:
        say(f"no whole checkpoint in {output}: starting again")
    return newest


SETTINGS = ("num_epochs", "batch_size", "gradient_accumulation_steps", "learning_rate", "seed", "precision")
"""Settings that the weights depend on, beside model, data and adapter; a resumed run must have the same."""


def record_of(
    cfg: FineTuningConfig, start: Start, data: Mapping[str, Any], left_out: Mapping[str, int], **settings: Any
) -> dict[str, Any]:
    """Check that the weights fit the model, and return the record of the run.

    Args:
        data: the source, its sha256 and counts.
        settings: settings that the weights depend on, beside `SETTINGS`.
    Raises:
        ValueError: the weights do not fit.
    """
    check_model_weights(cfg.model_path)
    lora = asdict(start.lora) if start.lora else None
    return {
        "model": {"path": str(start.model), "sha256": weights_sha256(start.model)},
        "tokenizer_sha256": tokenizer_sha256(start.tokenizer),
        "data": dict(data),
        "left_out": dict(left_out),
        "settings": {name: getattr(cfg, name) for name in SETTINGS} | settings | {"lora": lora},
        "versions": library_versions(),
        "git_commit": git_commit(),
    }


def encoded_sha256(encoded: Iterable[Any]) -> str:
    """The sha256 of the tokens and masks of each conversation or pair, in order."""
    whole = hashlib.sha256()
    for one in encoded:
        whole.update(json.dumps(one).encode())
    return whole.hexdigest()


def check_resumed(checkpoint: Path, before: Mapping[str, Any], record: Mapping[str, Any], say: Say) -> None:
    """Check that the checkpoint belongs to this run.

    Args:
        before: the record that the checkpoint holds.
    Raises:
        UsageError: model, data or settings differ.
    """
    then, now = _what_counts(before), _what_counts(record)
    if "precision" not in then:  # an earlier version did not note it
        del now["precision"]
    check_same_run(checkpoint, then, now)
    say(f"resuming from {checkpoint}")


def _what_counts(record: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that the weights depend on, as JSON values."""
    facts = {
        "model": record["model"]["sha256"],
        "tokenizer or chat template": record["tokenizer_sha256"],
        "data": record["data"]["sha256"],
        **record["settings"],
    }
    return json.loads(json.dumps(facts))


# Training -------------------------------------------------------------------------------------------------------------


def load_trainable(folder: Path, base: Path, *, all_weights: bool, device: str) -> Any:
    """Load the model on its device; if `folder` is an adapter, with that adapter to train further.

    Frozen weights are bfloat16 on a GPU. Trained ones are float32, because bfloat16 would lose small updates.
    """
    dtype = torch.float32 if all_weights or device == "cpu" else torch.bfloat16
    where = str(base.resolve())  # an absolute path, because adapters name their base by it
    model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, trust_remote_code=False)
    if folder != base:
        model = PeftModel.from_pretrained(model, str(folder), is_trainable=True)
        model.peft_config["default"].base_model_name_or_path = where
    return model.to(device)


def in_bfloat16(cfg: FineTuningConfig, model: Any) -> bool:
    """Whether matrix products are computed in bfloat16 (autocast)."""
    on_gpu = model.device.type == "cuda"
    return torch.cuda.is_bf16_supported() if on_gpu else uses_bfloat16(cfg.precision, model.num_parameters())


def fine_tune(
    model: Any,
    train: Callable[[], int],
    start: Start,
    output: Path,
    record_name: str,
    record: Mapping[str, Any],
    say: Say,
    trained_on: TrainedOn,
) -> int:
    """Train, and save the result.

    Args:
        train: trains the model, from the checkpoint if there is one, and returns the number of updates.
        trained_on: the record of the trained model, which is written beside it.
    Returns:
        The number of updates.
    Raises:
        UsageError: a loss is not finite, or the disk fails.
    """
    weights = list(model.parameters())
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    say(f"{trained:,} of {sum(map(torch.numel, weights)):,} weights are trained, on {start.device}")
    try:
        with failures_of_the_disk(output):
            steps = train()
            save_model(model, start.tokenizer, output, trained_on)
            write_record(output / record_name, record, steps)
    except OutputError as error:
        remove_torn(output / CHECKPOINTS, start.sealed)
        left = how_to_go_on(output / CHECKPOINTS, "--resume", record=start.sealed)
        raise UsageError(f"{error}; {left}") from error
    return steps


def save_model(model: Any, tokenizer: PreTrainedTokenizerBase, output: Path, trained_on: TrainedOn) -> None:
    """Write model or adapter, tokenizer and what it was trained on."""
    with tempfile.TemporaryDirectory(dir=output, prefix=".saving-") as scratch, failures_of_the_disk(output):
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        write_trained_on(Path(scratch), trained_on)
        publish(Path(scratch), output)
