"""Adds micro-batches and a log to TRL's reward trainer. TRL has the loss and the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from trl.trainer.reward_trainer import RewardTrainer

from core.micro_batches import micro_batch_tokens, micro_batches, recomputed, return_freed_memory
from core.training_run import RunLog, check_loss
from reward_model.datatypes import RECORD


def weighted_mean(values: Sequence[float], shares: Sequence[float]) -> float:
    return sum(value * share for value, share in zip(values, shares, strict=True))


COMBINED: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "min_reward": lambda values, shares: min(values),
    "max_reward": lambda values, shares: max(values),
    "num_tokens": lambda values, shares: values[-1],
}
"""These metrics of micro-batches are combined differently from the mean weighted by their share of the pairs."""


class PairTrainer(RewardTrainer):
    """Trains with TRL's trainer in micro-batches. It stops at the first loss that is not finite, and continues the
    token count of a checkpoint."""

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
"""The trainer's names of metrics with ours; its throughputs and totals are left out."""


def rename(logs: Mapping[str, float]) -> dict[str, float]:
    """Return the trainer's metrics under our names; `val/` means held out."""
    named = {}
    for key, value in logs.items():
        prefix, key = ("val/", key.removeprefix("eval_")) if key.startswith("eval_") else ("", key)
        if key in RENAMED:
            named[RENAMED[key] if RENAMED[key].startswith("time/") else prefix + RENAMED[key]] = value
    return named


class RewardRunLog(RunLog):
    """Logs the metrics of pairs; the trainer's other reports, such as its summary, are left out."""

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
    """Return the metrics for the screen; a number that was not measured is left out."""
    return "  ".join(form.format(metrics[name]) for name, form in LINE if name in metrics)
