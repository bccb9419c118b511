"""Trains with TRL's `DPOTrainer`: data, settings and log.

Loss, loop, optimiser and reference log-probs are TRL's. A pair's log-prob ratio is that of the tokens which the policy
samples. Tool results and the template's headers between two replies come from elsewhere, so they are context here;
TRL's data collator, which is replaced, masks the prompt alone. The batch is cut into micro-batches. Leaves out training
with several processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase
from transformers.trainer_callback import PrinterCallback
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer

from agentgrpo.chat.messages import Message
from agentgrpo.chat.replies import EncodedReplies, encode_conversation
from agentgrpo.chat.template import NOT_TRAINED, ChatTemplateError
from agentgrpo.checkpoints import SaveClock
from agentgrpo.checks import UsageError
from agentgrpo.micro_batches import micro_batch_tokens
from agentgrpo.pair_training import PairLog, PairMicroBatches
from reward_model.datatypes import Preference, place_of
from sql_agent.settings.tuning import DpoConfig
from sql_agent.sft.fine_tuning import CHECKPOINTS, KEPT, Lora, in_bfloat16


@dataclass(frozen=True)
class EncodedPair:
    """Both sides, each a whole conversation with a mask over the replies that follow the prompt."""

    chosen: EncodedReplies
    rejected: EncodedReplies

    @property
    def longer(self) -> int:
        return max(len(self.chosen.ids), len(self.rejected.ids))


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Preference], name: str, *, max_length: int | None
) -> list[EncodedPair]:
    """Encode the pairs in order, except those with a side of more than `max_length` tokens, if there is a limit.

    Args:
        name: the source of the rows in error messages.
    Raises:
        ChatTemplateError: the template cannot be used for training, or refuses a row, which is named.
        UsageError: all pairs are too long.
    """
    pairs = [_encode_pair(tokenizer, row, place_of(row, name)) for row in rows]
    fitting = [pair for pair in pairs if max_length is None or pair.longer <= max_length]
    if pairs and not fitting:
        raise UsageError(
            f"all {len(pairs)} pairs of {name} are longer than --max-length {max_length}; the shortest has "
            f"{min(pair.longer for pair in pairs)} tokens: raise --max-length, or take a model with a longer context"
        )
    return fitting


def _encode_pair(tokenizer: PreTrainedTokenizerBase, row: Preference, where: str) -> EncodedPair:
    tools = json.loads(row.tools) if row.tools else []
    prompt = [_as_prompt(message) for message in row.prompt]
    try:
        sides = [
            encode_conversation(tokenizer, [*prompt, *(message.to_dict() for message in side)], tools)
            for side in (row.chosen, row.rejected)
        ]
    except ChatTemplateError as error:
        raise ChatTemplateError(f"{where}: {error}") from None
    return EncodedPair(*sides)


def _as_prompt(message: Message) -> dict:
    """A message of the prompt; replies in it, such as worked examples, are not the policy's."""
    return message.to_dict() | ({NOT_TRAINED: 0} if message.role == "assistant" else {})


def calls_without_tools(rows: Sequence[Preference]) -> int:
    """Count the pairs that call tools and name none, so that their prompts differ from those of the agent."""
    return sum(
        row.tools is None and any(message.tool_calls for side in (row.chosen, row.rejected) for message in side)
        for row in rows
    )


RECORD = "dpo.json"
"""The record of a run, in its output and in each checkpoint. It is written last; if it exists, the rest is whole."""


class PairDpoTrainer(PairMicroBatches, DPOTrainer):
    """Trains like TRL's trainer on pairs that are tokens already, in micro-batches."""

    def __init__(self, *args: Any, micro_batch_tokens: int, **kwargs: Any) -> None:
        self._micro_batch_tokens = micro_batch_tokens
        super().__init__(*args, **kwargs)
        if "ref" in getattr(self.model, "peft_config", ()):
            # TRL's copy of an adapter that is trained further; its log-probs are computed, and it would be saved
            self.model.delete_adapter("ref")  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset

    def most_tokens(self) -> int:
        return self._micro_batch_tokens

    def remedy(self) -> str:
        return (
            f"lower --learning-rate (now {self.args.learning_rate:g}) in a new --run-dir; if this happens at step "
            "1, the weights of --model hold NaN"
        )


def training_arguments(cfg: DpoConfig, model: Any) -> dict[str, Any]:
    """Those of transformers' trainer that the settings and the device decide."""
    on_gpu = model.device.type == "cuda"
    return {
        "output_dir": str(cfg.run_dir / CHECKPOINTS),
        "num_train_epochs": cfg.num_epochs,
        "per_device_train_batch_size": cfg.batch_size,
        "gradient_accumulation_steps": cfg.gradient_accumulation_steps,
        "learning_rate": cfg.learning_rate,
        "seed": cfg.seed,
        "save_strategy": "no",  # `DpoLog` tells when one is due
        "save_total_limit": KEPT,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "max_length": None,  # what is too long was left out; TRL would cut it
        "use_cpu": not on_gpu,
        "bf16": in_bfloat16(cfg, model),
        "gradient_checkpointing": on_gpu,
        "dataloader_pin_memory": on_gpu,
        "disable_tqdm": True,
        "report_to": ["none"],
    }


def make_trainer(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[EncodedPair],
    held_out: Sequence[EncodedPair],
    cfg: DpoConfig,
    *,
    lora: Lora | None,
    record: dict[str, Any],
) -> PairDpoTrainer:
    """Make TRL's trainer and compute the log-probs of the reference, which is `model` as it is.

    Args:
        lora: the adapter to make; None trains the weights of `model` that are not frozen.
        record: the record that is written beside each checkpoint.
    """
    args = DPOConfig(
        **training_arguments(cfg, model),
        beta=cfg.beta,
        precompute_ref_log_probs=True,  # one model in memory, and one pass over the pairs instead of one per epoch
        precompute_ref_batch_size=1,
        per_device_eval_batch_size=1,  # TRL's metrics are means over batches
        eval_strategy="epoch" if held_out else "no",
        remove_unused_columns=False,
    )
    trainer = PairDpoTrainer(
        model=model,
        args=args,
        micro_batch_tokens=micro_batch_tokens(cfg.micro_batch_tokens, model.device.type),
        data_collator=PairCollator(int(tokenizer.pad_token_id)),  # pyright: ignore[reportArgumentType]
        train_dataset=as_dataset(pairs),
        eval_dataset=as_dataset(held_out) if held_out else None,
        processing_class=tokenizer,
        peft_config=lora and lora.peft_config(),
        callbacks=[DpoLog(cfg, record)],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


SIDES = ("chosen", "rejected")


def as_dataset(pairs: Sequence[EncodedPair]) -> Dataset:
    columns = {}
    for side in SIDES:
        columns[f"{side}_ids"] = [getattr(pair, side).ids for pair in pairs]
        columns[f"{side}_mask"] = [getattr(pair, side).mask for pair in pairs]
    return Dataset.from_dict(columns)


class PairCollator:
    """Pads pairs right, with the names and the order of TRL's `DataCollatorForPreference`."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad = pad_token_id

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """
        Returns:
            `input_ids`, `attention_mask` and `completion_mask` (1 on what the policy said), each of shape (2 B, T), all
            chosen sides first; `ref_chosen_logps` and `ref_rejected_logps` (B,), if the examples have them.
        """

        def padded(column: str, padding: int) -> torch.Tensor:
            rows = [torch.tensor(example[f"{side}_{column}"]) for side in SIDES for example in examples]
            return pad_sequence(rows, batch_first=True, padding_value=padding)

        lengths = torch.tensor([len(example[f"{side}_ids"]) for side in SIDES for example in examples])
        ids = padded("ids", self._pad)
        attention = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        batch = {"input_ids": ids, "attention_mask": attention, "completion_mask": padded("mask", 0)}
        names = (f"ref_{side}_logps" for side in SIDES)
        return batch | {n: torch.tensor([e[n] for e in examples]) for n in names if n in examples[0]}


# The log --------------------------------------------------------------------------------------------------------------

RENAMED = {
    "loss": "dpo/loss",
    "rewards/accuracies": "dpo/accuracy",
    "rewards/margins": "dpo/margin",
    "rewards/chosen": "dpo/reward_chosen",
    "rewards/rejected": "dpo/reward_rejected",
    "grad_norm": "optim/grad_norm",
    "learning_rate": "optim/learning_rate",
    "num_tokens": "data/tokens",
    "epoch": "data/epoch",
    "runtime": "time/validation_s",
}
"""TRL's names of the metrics, and ours."""

LINE = (
    ("dpo/loss", "loss {:.4f}"),
    ("dpo/accuracy", "accuracy {:.1%}"),
    ("dpo/margin", "margin {:+.3f}"),
    ("optim/grad_norm", "grad {:.2f}"),
    ("optim/learning_rate", "lr {:.1e}"),
    ("time/step_s", "{:.2f} s/step"),
    ("val/dpo/loss", "held-out loss {:.4f}"),
    ("val/dpo/accuracy", "held-out accuracy {:.1%}"),
    ("val/dpo/margin", "held-out margin {:+.3f}"),
)


class DpoLog(PairLog):
    kind, record_name = "dpo", RECORD
    loss, names, line = "dpo/loss", RENAMED, LINE

    def __init__(self, cfg: DpoConfig, record: dict[str, Any]) -> None:
        super().__init__(cfg.run_dir, record, cfg.model_dump(mode="json"))
        self._saves = SaveClock(cfg.save_every)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = self._saves.is_due(state.global_step) or state.global_step == state.max_steps
