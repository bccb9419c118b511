"""Arguments of reward-model training: TRL's names and defaults hold unless this module says otherwise."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from trl.scripts.utils import TrlParser
from trl.trainer.model_config import ModelConfig
from trl.trainer.reward_config import RewardConfig

from agentgrpo.checks import UsageError
from agentgrpo.flags import Parser
from agentgrpo.machine import uses_bfloat16
from agentgrpo.run_folder import usable_trackers

OUTPUT = "outputs/reward-model"
# What the other commands call TRL's flags.
OTHER_NAMES = {
    "--model-name-or-path": "--model",
    "--dataset-name": "--train-file",
    "--eval-dataset-name": "--val-file",
    "--output-dir": "--run-dir",
    "--lora-r": "--lora-rank",
}


def parse_arguments(arguments: list[str]) -> tuple[DataArguments, TrainingArguments, ModelArguments]:
    """Flags override the file, and the file overrides the defaults.

    Raises:
        UsageError: the file is missing or holds an unknown setting.
    """
    parser = _Parser((DataArguments, TrainingArguments, ModelArguments))  # type: ignore[arg-type]
    for name, other in OTHER_NAMES.items():
        parser.rename_flag(name, other)
    try:
        return parser.parse_args_and_config(arguments)  # type: ignore[return-value]
    except OSError as error:
        raise UsageError(
            f"--config {error.filename} cannot be read: {error.strerror}; name a YAML file of settings"
        ) from None
    except UnicodeDecodeError:
        raise UsageError("--config is not a text, expected YAML with settings") from None
    except RecursionError:
        raise UsageError("--config is not YAML: brackets are nested too deep") from None
    except ValueError as error:
        raise UsageError(str(error)) from None


class _Parser(Parser, TrlParser):
    """Parses TRL's arguments under TRL's names, and takes those of the other commands for the same things too."""


@dataclass
class DataArguments:
    dataset_name: str = field(metadata={"help": "Preferences, as agentgrpo reward convert writes them."})
    eval_dataset_name: str | None = field(
        default=None, metadata={"help": "Held-out preferences; without it a part of the prompts is held out."}
    )
    held_out_fraction: float = field(
        default=0.1, metadata={"help": "Share of the pairs to hold out, whole prompts at a time; 0 for none."}
    )


@dataclass
class ModelArguments(ModelConfig):
    """TRL's arguments, with LoRA on all linear layers and a new head that is trained without LoRA."""

    use_peft: bool = field(default=True, metadata={"help": "Train with LoRA; --no-use-peft trains all weights."})
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
            "help": "Train under bfloat16 autocast; default on a GPU that has it, and for 20 million weights or more "
            "on a CPU that has it in hardware (AVX-512 BF16, AMX)."
        },
    )
    micro_batch_tokens: int | None = field(
        default=None,
        metadata={
            "help": "Most tokens, padding included, of a forward and backward pass, which has at least one pair; "
            "default 1024 on a CPU, 4096 on a GPU. Longer pairs compute their activations twice. It changes memory, "
            "not the result. Several processes do not cut their batches."
        },
    )
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Hide losses that are NaN; leave it off."})
    disable_tqdm: bool | None = field(
        default=True, metadata={"help": "Print a line per logging step, no progress bars."}
    )
    resume_from_checkpoint: str | None = field(
        default="auto",
        metadata={"help": "The checkpoint to continue from; auto takes the newest in output_dir, if any."},
    )

    def __post_init__(self) -> None:
        self.decides_bf16 = self.bf16 is None
        on_gpu = torch.cuda.is_available() and not self.use_cpu and os.environ.get("ACCELERATE_USE_CPU") != "true"
        if self.bf16 is None:
            self.bf16 = on_gpu and not self.fp16 and torch.cuda.is_bf16_supported()
        if self.gradient_checkpointing is None:
            self.gradient_checkpointing = on_gpu
        self.dataloader_pin_memory = self.dataloader_pin_memory and on_gpu
        wanted = [self.report_to] if isinstance(self.report_to, str) else self.report_to or []
        if wanted not in (["none"], ["all"]):
            self.report_to = usable_trackers(wanted, Path(self.output_dir or OUTPUT)) or ["none"]
        super().__post_init__()

    def suit(self, parameters: int) -> None:
        """Turn bfloat16 on if no flag was given and it is faster on this CPU for a model of that size."""
        on_cpu = self.device.type == "cpu" and not self.fp16
        if self.decides_bf16 and on_cpu and uses_bfloat16("auto", parameters):
            self.bf16, self.mixed_precision = True, "bf16"


# The weights depend on these settings; a run continues from a checkpoint only if they are unchanged.
SETTINGS = (
    "use_peft lora_r lora_alpha lora_dropout lora_target_modules lora_target_parameters lora_modules_to_save "
    "use_rslora use_dora load_in_8bit load_in_4bit dtype learning_rate lr_scheduler_type warmup_steps "
    "weight_decay max_grad_norm optim optim_args adam_beta1 adam_beta2 adam_epsilon lr_scheduler_kwargs "
    "num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps seed data_seed bf16 fp16 "
    "center_rewards_coefficient max_length disable_dropout held_out_fraction"
)


def settings_record(*arguments: object) -> dict[str, object]:
    """The values of `SETTINGS` as JSON would store them."""
    names = SETTINGS.split()
    found = {name: getattr(source, name) for source in arguments for name in names if hasattr(source, name)}
    return json.loads(json.dumps(found, default=str))
