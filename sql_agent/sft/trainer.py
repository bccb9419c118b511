"""Fine-tunes with TRL's `SFTTrainer`: settings and log.

Loop, optimiser, collator and defaults are TRL's. The loss is ours to save memory and time: on a CPU, TRL's also
computes the logits of prompts and padding, it computes a shared prompt in every row, and it has no micro-batches by
tokens. Leaves out training with several processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from transformers.trainer_callback import PrinterCallback
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from agentgrpo.chat.replies import Encoded
from agentgrpo.micro_batches import recomputed, return_freed_memory
from agentgrpo.training_run import RunLog, check_loss
from sql_agent.local.head import score_tokens
from sql_agent.local.packed_model import base_of, micro_batches_of, rows_of
from sql_agent.settings.tuning import SftConfig
from sql_agent.sft.fine_tuning import Lora, training_arguments

RECORD = "sft.json"
"""The record of a run, in its output and in each checkpoint. It is written last; if it exists, the rest is whole."""


class MicroBatchSFTTrainer(SFTTrainer):
    """Trains like TRL's trainer with bounded memory: micro-batches, and logits of trained tokens only, tile by tile.

    It also stops at the first loss that is not finite, and continues a checkpoint's count of tokens.
    """

    def __init__(self, *args: Any, micro_batch_tokens: int, **kwargs: Any) -> None:
        self._micro_batch_tokens = micro_batch_tokens
        self._seen: list[tuple[int, int, float]] = []
        """For each micro-batch: trained tokens, how many of them were most likely, and the sum of their entropies."""
        super().__init__(*args, **kwargs)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        self._total_train_tokens = self.state.num_input_tokens_seen  # TRL starts at 0 each time; this number is saved
        if num_items_in_batch is None:
            num_items_in_batch = _learnt(inputs).sum()
        self._seen, losses = [], []
        rows = rows_of(inputs["input_ids"], inputs["attention_mask"])
        for part in micro_batches_of(base_of(self.model), rows, self._micro_batch_tokens):
            width = max(len(rows[i]) for i in part)
            own = {name: values[part, :width] for name, values in inputs.items()}
            with recomputed(self.model, when=width > self._micro_batch_tokens):
                losses.append(super().training_step(model, own, num_items_in_batch))
            return_freed_memory()
        loss = torch.stack(losses).sum()
        self.state.num_input_tokens_seen = self._total_train_tokens
        self._note_metrics()
        check_loss(
            loss.item(),
            self.state.global_step + 1,
            f"lower --learning-rate (now {self.args.learning_rate:g}) in a new --run-dir; if this happens at step "
            "1, the weights of --model hold NaN",
        )
        return loss

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Return the cross-entropy summed over the trained tokens, divided by their number in the whole update."""
        learnt = _learnt(inputs)
        with self.accelerator.autocast():
            found = score_tokens(model, inputs["input_ids"], inputs["attention_mask"], learnt, metrics=True)
        self._seen.append((len(found.is_top1), int(found.is_top1.sum()), float(found.entropy.sum())))
        self._total_train_tokens += int(inputs["attention_mask"].sum())
        return -found.log_probs.sum() / (num_items_in_batch or max(1, int(learnt.sum())))

    def _note_metrics(self) -> None:
        """Record metrics under TRL's names, as means over all tokens of the batch."""
        tokens, likeliest, entropy = map(sum, zip(*self._seen, strict=True))
        noted = self._metrics["train"]
        noted["entropy"].append(entropy / max(1, tokens))
        noted["mean_token_accuracy"].append(likeliest / max(1, tokens))
        noted["num_tokens"] = [self._total_train_tokens]


def _learnt(inputs: Any) -> torch.Tensor:
    """Return True on trained tokens, shape (B, T), never on the first token, which nothing predicts."""
    learnt = inputs["labels"] != -100
    learnt[:, 0] = False
    return learnt


def make_trainer(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    encoded: Sequence[Encoded],
    cfg: SftConfig,
    *,
    lora: Lora | None,
    record: dict[str, Any],
    pass_tokens: int,
) -> MicroBatchSFTTrainer:
    """Make TRL's trainer for tokenised conversations, one per row, padded right.

    Args:
        lora: the adapter to make; None trains the weights of `model` that are not frozen.
        record: the record that is written beside each checkpoint.
        pass_tokens: tokens of one forward and backward pass.
    """
    args = SFTConfig(**training_arguments(cfg, model))
    trainer = MicroBatchSFTTrainer(
        model=model,
        args=args,
        micro_batch_tokens=pass_tokens,
        train_dataset=as_dataset(encoded),
        processing_class=tokenizer,
        peft_config=lora and lora.peft_config(),
        callbacks=[SftLog(cfg.run_dir, record, cfg.model_dump(mode="json"))],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def as_dataset(encoded: Sequence[Encoded]) -> Dataset:
    """Return the columns that TRL uses unchanged: `input_ids`, and `labels` with -100 on tokens without loss."""
    return Dataset.from_dict({"input_ids": [one.ids for one in encoded], "labels": [one.labels for one in encoded]})


# The log --------------------------------------------------------------------------------------------------------------

RENAMED = {
    "loss": "sft/loss",
    "mean_token_accuracy": "sft/token_accuracy",
    "entropy": "sft/entropy",
    "grad_norm": "optim/grad_norm",
    "learning_rate": "optim/learning_rate",
    "num_tokens": "data/tokens",
    "epoch": "data/epoch",
}
"""TRL's names of the metrics, and ours."""


class SftLog(RunLog):
    """Writes the run's log with the metrics of fine-tuning, without the trainer's summary at the end."""

    kind, record_name = "sft", RECORD

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if "loss" in kwargs["logs"]:
            metrics = {RENAMED[key]: value for key, value in kwargs["logs"].items() if key in RENAMED}
            metrics["time/step_s"] = self.seconds_per_step(state)
            self.log(state, metrics, metrics_line(metrics))


def metrics_line(metrics: Mapping[str, float]) -> str:
    parts = [f"loss {metrics['sft/loss']:.4f}", f"accuracy {metrics['sft/token_accuracy']:.1%}"]
    parts += [f"grad {metrics['optim/grad_norm']:.2f}", f"lr {metrics['optim/learning_rate']:.1e}"]
    return "  ".join([*parts, f"{metrics['time/step_s']:.2f} s/step"])
