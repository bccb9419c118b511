"""Trains a reward model on preferences with TRL's `RewardTrainer`: arguments, data, the run's log and its record.

TRL's names and defaults hold unless this module says otherwise. Leaves out the loss and the loop, which are TRL's, and
the checks of the base (`reward_model.base_model`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl.trainer.model_config import ModelConfig
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer

from core import signed
from core.cpu_features import uses_bfloat16
from core.json_text import parse_json
from core.micro_batches import micro_batch_tokens, micro_batches, recomputed, return_freed_memory
from core.outputs import failures_of_the_disk
from core.training_run import (
    RunLog,
    TrainingError,
    check_loss,
    check_same_run,
    checkpoints,
    newest_whole,
    publish,
    remove_torn,
    write_record,
)
from reward_model.data.preferences import PreferenceFileError
from reward_model.datatypes import Preference, prompt_key
from reward_model.scorer import RECORD, encode_conversation

logger = logging.getLogger(__name__)

OUTPUT = "outputs/reward-model"


@dataclass
class DataArguments:
    """The data to train on and to hold out."""

    dataset_name: str = field(metadata={"help": "Preferences, as convert_dpo_format.py writes them."})
    eval_dataset_name: str | None = field(
        default=None, metadata={"help": "Held-out preferences; without it a part of the prompts is held out."}
    )
    held_out_fraction: float = field(
        default=0.1, metadata={"help": "Share of the pairs that is held out, whole prompts at a time; 0 for none."}
    )


@dataclass
class ModelArguments(ModelConfig):
    """TRL's arguments, with LoRA on all linear layers and a new head that is trained whole."""

    use_peft: bool = field(default=True, metadata={"help": "LoRA; --no_use_peft trains all weights."})
    lora_task_type: str = field(default="SEQ_CLS", metadata={"help": "Task type of the adapter."})
    lora_target_modules: list[str] | None = field(
        default_factory=lambda: ["all-linear"], metadata={"help": "Layers that get an adapter; the head gets none."}
    )
    lora_modules_to_save: list[str] | None = field(
        default_factory=lambda: ["score"], metadata={"help": "Layers that are trained whole: the head, which is new."}
    )


@dataclass
class TrainingArguments(RewardConfig):
    """TRL's arguments, with centred scores, an evaluation per epoch, and precision and memory by device."""

    output_dir: str | None = field(default=OUTPUT, metadata={"help": "Adapter, checkpoints, metrics.jsonl."})
    center_rewards_coefficient: float | None = field(
        default=0.01, metadata={"help": "Pulls the scores of a pair towards mean 0 (arXiv:2312.09244, eq. 2)."}
    )
    eval_strategy: str = field(default="epoch", metadata={"help": "When held-out pairs are scored."})
    gradient_checkpointing: bool | None = field(
        default=None, metadata={"help": "Recompute activations to save memory; default on a GPU only."}
    )
    bf16: bool | None = field(
        default=None,
        metadata={
            "help": "bfloat16 autocast; default where a GPU has it, and for 20 million weights or more where a CPU has "
            "it in hardware (AVX-512 BF16, AMX)."
        },
    )
    micro_batch_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Tokens, padding included, of one forward and backward pass, at least one pair; default 1024 on a "
            "CPU, 4096 on a GPU. Longer pairs compute their activations twice. Changes memory, not the result. Several "
            "processes do not cut their batches."
        },
    )
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Hide losses that are NaN; never wanted."})
    disable_tqdm: bool | None = field(default=True, metadata={"help": "No progress bars; a line per logging step."})
    resume_from_checkpoint: str | None = field(
        default="auto", metadata={"help": "A checkpoint to go on from; auto: the newest in output_dir, if any."}
    )

    def __post_init__(self) -> None:
        self.decides_bf16 = self.bf16 is None
        on_gpu = torch.cuda.is_available() and not self.use_cpu and os.environ.get("ACCELERATE_USE_CPU") != "true"
        if self.bf16 is None:
            self.bf16 = on_gpu and not self.fp16 and torch.cuda.is_bf16_supported()
        if self.gradient_checkpointing is None:
            self.gradient_checkpointing = on_gpu
        self.dataloader_pin_memory = self.dataloader_pin_memory and on_gpu
        self.report_to = usable_sinks(self.report_to)
        super().__post_init__()

    def suit(self, parameters: int) -> None:
        """Turn bfloat16 on if no flag was given and it is faster on this CPU for a model of that size."""
        on_cpu = self.device.type == "cpu" and not self.fp16
        if self.decides_bf16 and on_cpu and uses_bfloat16("auto", parameters):
            self.bf16, self.mixed_precision = True, "bf16"


def usable_sinks(wanted: str | Sequence[str] | None) -> list[str]:
    """The sinks that are installed; wandb and swanlab write to disk if there is no key."""
    names = [wanted] if isinstance(wanted, str) else list(wanted or ())
    usable = []
    for name in names:
        if name not in ("none", "all") and importlib.util.find_spec(name) is None:
            logger.warning("%s is not installed; going on without it (`uv pip install %s` adds it)", name, name)
            continue
        usable.append(name)
    if "wandb" in usable and not os.environ.get("WANDB_API_KEY"):
        os.environ.setdefault("WANDB_MODE", "offline")
    if "swanlab" in usable and not os.environ.get("SWANLAB_API_KEY"):
        os.environ.setdefault("SWANLAB_MODE", "local")
    return usable or ["none"]


# Data -----------------------------------------------------------------------------------------------------------------


def split_by_prompt(
    rows: Sequence[Preference], fraction: float, *, seed: int
) -> tuple[list[Preference], list[Preference]]:
    """Hold out whole prompts, drawn by hash, until `fraction` of the pairs is reached.

    Returns:
        Training and held-out pairs, both in the order of `rows`; no prompt is in both.
    Raises:
        TrainingError: the fraction is not in [0, 1), or nothing would be left to train on.
    """
    if not 0 <= fraction < 1:
        raise TrainingError(f"--held_out_fraction is {fraction}, expected 0 or more and less than 1")
    keys = [prompt_key(row) for row in rows]
    sizes: dict[str, int] = {}
    for key in keys:
        sizes[key] = sizes.get(key, 0) + 1
    chosen: set[str] = set()
    for key in sorted(sizes, key=lambda key: hashlib.sha256(f"{seed}\0{key}".encode()).digest()):
        if sum(sizes[key] for key in chosen) >= fraction * len(rows):
            break
        chosen.add(key)
    train = [row for row, key in zip(rows, keys, strict=True) if key not in chosen]
    if not train:
        raise TrainingError(
            f"all {len(rows)} pairs have one prompt, so none can be held out; "
            "give --eval_dataset_name FILE or --held_out_fraction 0"
        )
    return train, [row for row, key in zip(rows, keys, strict=True) if key in chosen]


def encode_pairs(
    rows: Sequence[Preference], tokenizer: PreTrainedTokenizerBase, max_length: int | None, name: str
) -> Dataset:
    """The columns `chosen_ids` and `rejected_ids` that TRL trains on, without pairs that have a side that is too long.

    TRL leaves out the same pairs. Here the caller can count them, since the result is shorter by them.

    Raises:
        PreferenceFileError: the chat template refuses a row of `name`.
        TrainingError: all rows are too long.
    """
    columns: dict[str, list[Any]] = {"chosen_ids": [], "rejected_ids": []}
    limit, shortest = max_length or 1 << 62, 1 << 62
    for number, row in enumerate(rows, 1):
        try:
            sides = [
                encode_conversation(tokenizer, (*row.prompt, *side), tools=row.tools, max_length=1 << 62).ids
                for side in (row.chosen, row.rejected)
            ]
        except Exception as error:  # a template is a program: it may raise anything
            raise PreferenceFileError(
                f"{name}, pair {number}: the model's chat template refuses it ({type(error).__name__}: {error}); "
                "leave such rows out or give another --chat_template_path"
            ) from None
        shortest = min(shortest, max(map(len, sides)))
        if max(map(len, sides)) <= limit:
            for column, ids in zip(columns.values(), sides, strict=True):
                column.append(torch.tensor(ids, dtype=torch.int32).numpy())
    if not columns["chosen_ids"]:
        raise TrainingError(
            f"all {len(rows)} pairs of {name} are longer than --max_length {max_length}; the shortest has {shortest} "
            "tokens, so give a larger --max_length"
        )
    return Dataset.from_dict(columns)


# The run --------------------------------------------------------------------------------------------------------------


def weighted_mean(values: Sequence[float], shares: Sequence[float]) -> float:
    return sum(value * share for value, share in zip(values, shares, strict=True))


COMBINED: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "min_reward": lambda values, shares: min(values),
    "max_reward": lambda values, shares: max(values),
    "num_tokens": lambda values, shares: values[-1],
}
"""How metrics of micro-batches are combined, where it is not the mean weighted by their share of the pairs."""


class PairTrainer(RewardTrainer):
    """TRL's trainer with micro-batches. It stops at the first loss that is not finite and continues the token count
    of a checkpoint."""

    _share = 1.0
    """The current micro-batch's share of the pairs; the loss of the batch is the mean over its pairs."""

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._total_train_tokens = (
            self.state.num_input_tokens_seen
        )  # TRL starts at 0 after a restart; the state is saved
        noted = self._metrics["train"]
        before = {name: len(values) for name, values in noted.items() if name != "num_tokens"}
        losses, shares = [], []
        for own, share in self._parts(inputs):
            self._share = share
            too_long = own["input_ids"].numel() > self._most_tokens() and self.accelerator.num_processes == 1
            with recomputed(self.model, when=too_long):
                losses.append(super().training_step(model, own, *args, **kwargs))
            shares.append(share)
            return_freed_memory()
        loss = torch.stack(losses).sum()
        for name, values in noted.items():
            start = before.get(name, 0)
            values[start:] = [COMBINED.get(name, weighted_mean)(values[start:], shares)]
        self.state.num_input_tokens_seen = self._total_train_tokens
        remedy = (
            f"lower --learning_rate (now {self.args.learning_rate:g}) or --max_grad_norm (now "
            f"{self.args.max_grad_norm:g}), or train in float32 with --bf16 False"
        )
        check_loss(loss.item(), self.state.global_step + 1, remedy)
        return loss

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        found: Any = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return found if return_outputs else found * (self._share if model.training else 1.0)

    def _most_tokens(self) -> int:
        args: Any = self.args
        return micro_batch_tokens(args.micro_batch_tokens, args.device.type)

    def _parts(self, inputs: Any) -> Iterator[tuple[dict[str, torch.Tensor], float]]:
        """Cut the batch into micro-batches of whole pairs, each with its share. A batch has all chosen sides first."""
        lengths = inputs["attention_mask"].sum(-1)
        pairs = len(lengths) // 2
        longer = torch.maximum(lengths[:pairs], lengths[pairs:]).tolist()
        several = (
            self.accelerator.num_processes > 1
        )  # processes wait for each other's passes, so their number must be equal
        for part in [list(range(pairs))] if several else micro_batches(longer, self._most_tokens() // 2):
            rows, width = [*part, *(pairs + i for i in part)], max(longer[i] for i in part)
            yield {name: values[rows, :width] for name, values in inputs.items()}, len(part) / pairs


RENAMED = {
    "loss": "pair/loss",
    "accuracy": "pair/accuracy",
    "margin": "pair/margin",
    "mean_reward": "score/mean",
    "min_reward": "score/min",
    "max_reward": "score/max",
    "grad_norm": "optim/grad_norm",
    "learning_rate": "optim/learning_rate",
    "num_tokens": "data/tokens",
    "epoch": "data/epoch",
    "runtime": "time/validation_s",
}
"""The trainer's names of metrics and ours; its throughputs and totals are left out."""


def rename(logs: Mapping[str, float]) -> dict[str, float]:
    """The trainer's metrics under our names; `val/` means held out."""
    named = {}
    for key, value in logs.items():
        prefix, key = ("val/", key.removeprefix("eval_")) if key.startswith("eval_") else ("", key)
        if key in RENAMED:
            named[RENAMED[key] if RENAMED[key].startswith("time/") else prefix + RENAMED[key]] = value
    return named


class RewardRunLog(RunLog):
    """The run's log with the metrics of pairs; the trainer's other reports, such as its summary, are left out."""

    record_name = RECORD

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        metrics = rename(kwargs["logs"])
        if not state.is_world_process_zero or not any(key.endswith("pair/loss") for key in metrics):
            return
        if "pair/loss" in metrics:
            metrics["time/step_s"] = self.seconds_per_step(state)
        self.log(state, metrics, metrics_line(metrics))


LINE = (
    ("pair/loss", "loss {:.4f}"),
    ("pair/accuracy", "accuracy {:.1%}"),
    ("pair/margin", "margin {:+.3f}"),
    ("optim/grad_norm", "grad {:.2f}"),
    ("optim/learning_rate", "lr {:.1e}"),
    ("time/step_s", "{:.2f} s/step"),
    ("val/pair/loss", "held-out loss {:.4f}"),
    ("val/pair/accuracy", "held-out accuracy {:.1%}"),
    ("val/pair/margin", "held-out margin {:+.3f}"),
)


def metrics_line(metrics: Mapping[str, float]) -> str:
    """The metrics for the screen; a number that was not measured is left out."""
    return "  ".join(form.format(metrics[name]) for name, form in LINE if name in metrics)


# The record -----------------------------------------------------------------------------------------------------------

SETTINGS = (
    "use_peft",
    "lora_r",
    "lora_alpha",
    "lora_dropout",
    "lora_target_modules",
    "lora_target_parameters",
    "lora_modules_to_save",
    "use_rslora",
    "use_dora",
    "load_in_8bit",
    "load_in_4bit",
    "dtype",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "max_grad_norm",
    "optim",
    "optim_args",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "lr_scheduler_kwargs",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "seed",
    "data_seed",
    "bf16",
    "fp16",
    "center_rewards_coefficient",
    "max_length",
    "disable_dropout",
    "held_out_fraction",
)
"""The settings that the weights depend on; a run continues from a checkpoint only if they are unchanged."""


def settings(*arguments: Any) -> dict[str, Any]:
    """The values of `SETTINGS` as JSON would store them."""
    found = {name: getattr(source, name) for source in arguments for name in SETTINGS if hasattr(source, name)}
    return json.loads(json.dumps(found, default=str))


def save_whole(trainer: Any, output: Path, record: Mapping[str, Any]) -> None:
    """Save model or adapter, and tokenizer, then the record."""
    with tempfile.TemporaryDirectory(dir=output, prefix=".saving-") as scratch, failures_of_the_disk(output):
        trainer.save_model(scratch)
        publish(Path(scratch), output)
    if trainer.is_world_process_zero():
        write_record(output / RECORD, record, trainer.state.global_step)


def describe_rest(output: Path) -> str:
    """Remove unfinished checkpoints after a failure, and say from which one the run will continue."""
    newest = remove_torn(output, RECORD)
    return f"the run will continue from {newest}" if newest else "no checkpoint was whole yet"


def checkpoint_to_resume(
    args: TrainingArguments, record: Mapping[str, Any], say: Callable[[str], None] = print
) -> Path | None:
    """The checkpoint to continue from, or None to start a new run; torn and changed checkpoints are skipped.

    Args:
        say: is told of every checkpoint that is skipped.
    Raises:
        TrainingError: data, base or settings differ from those of the checkpoint, or the folder holds another run.
        NotOursError: this user did not write the checkpoint, or has no key to sign with.
    """
    output = Path(args.output_dir or OUTPUT)
    signed.user_key()
    if args.resume_from_checkpoint not in (None, "auto"):
        checkpoint = Path(args.resume_from_checkpoint)
        if not (checkpoint / RECORD).is_file():
            raise TrainingError(f"--resume_from_checkpoint {checkpoint} is no checkpoint of this command: no {RECORD}")
        if fault := signed.fault_of_ours(checkpoint, RECORD, run_dir=checkpoint.parent):
            raise TrainingError(f"--resume_from_checkpoint {checkpoint}: {fault}")
    else:
        checkpoint = newest_whole(output, RECORD, run_dir=output, say=say)
        if checkpoint is None:
            if (output / RECORD).is_file():
                raise TrainingError(
                    f"{output} holds a finished reward model without checkpoints; name another --output_dir"
                )
            if checkpoints(output):
                say(f"no checkpoint in {output} is complete: starting a new run")
            return None
    before = parse_json((checkpoint / RECORD).read_text())
    check_same_run(checkpoint, _weights_depend_on(before), _weights_depend_on(record))
    return checkpoint


def _weights_depend_on(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "base": record["base"]["sha256"],
        "tokenizer or chat template": record["tokenizer_sha256"],
        "dataset": record["dataset"]["sha256"],
        "processes": record["processes"],
        **record["settings"],
    }
