"""What TRL's trainers on pairs share here, for reward models and DPO: micro-batches of whole pairs, and the log.

A batch has all chosen sides first, then all rejected ones, as TRL's collators make it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from agentgrpo.micro_batches import micro_batches, recomputed, return_freed_memory
from agentgrpo.training_run import TrainerLog, check_finite


def weighted_mean(values: Sequence[float], shares: Sequence[float]) -> float:
    return sum(value * share for value, share in zip(values, shares, strict=True))


# These metrics of micro-batches are combined differently from the mean weighted by their share of the pairs.
COMBINED: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {
    "min_reward": lambda values, shares: min(values),
    "max_reward": lambda values, shares: max(values),
    "num_tokens": lambda values, shares: values[-1],
}


class PairMicroBatches:
    """Makes a trainer of TRL train in micro-batches of whole pairs; it stands before that trainer among the bases.

    The trainer then stops at the first loss that is not finite, and continues the token count of a checkpoint.
    """

    accelerator: Any
    args: Any
    model: Any
    state: Any
    _metrics: Any
    _share = 1.0
    """The current micro-batch's share of the pairs; the loss of the batch is the mean over its pairs."""

    def most_tokens(self) -> int:
        """The most tokens of one forward and backward pass, padding included."""
        raise NotImplementedError

    def remedy(self) -> str:
        """What to change when the loss is not finite."""
        raise NotImplementedError

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._total_train_tokens = (
            self.state.num_input_tokens_seen
        )  # TRL starts at 0 after a restart; the state is saved
        noted = self._metrics["train"]
        before = {name: len(values) for name, values in noted.items() if name != "num_tokens"}
        losses, shares = [], []
        for own, share in self._parts(inputs):
            self._share = share
            too_long = own["input_ids"].numel() > self.most_tokens() and self.accelerator.num_processes == 1
            with recomputed(self.model, when=too_long):
                losses.append(super().training_step(model, own, *args, **kwargs))  # pyright: ignore[reportAttributeAccessIssue]
            shares.append(share)
            return_freed_memory()
        loss = torch.stack(losses).sum()
        for name, values in noted.items():
            start = before.get(name, 0)
            values[start:] = [COMBINED.get(name, weighted_mean)(values[start:], shares)]
        self.state.num_input_tokens_seen = self._total_train_tokens
        check_finite("loss", loss.item(), self.state.global_step + 1, self.remedy())
        return loss

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        found: Any = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)  # pyright: ignore[reportAttributeAccessIssue]
        return found if return_outputs else found * (self._share if model.training else 1.0)

    def _parts(self, inputs: Any) -> Iterator[tuple[dict[str, torch.Tensor], float]]:
        """Cut the batch into micro-batches of whole pairs, each with its share.

        Args:
            inputs: tensors of shape (2 B, T) with a row per side, or (B,) with a number per pair.
        """
        lengths = inputs["attention_mask"].sum(-1)
        pairs = len(lengths) // 2
        longer = torch.maximum(lengths[:pairs], lengths[pairs:]).tolist()
        several = (
            self.accelerator.num_processes > 1
        )  # processes wait for each other's passes, so their number must be equal
        for part in [list(range(pairs))] if several else micro_batches(longer, self.most_tokens() // 2):
            rows, width = [*part, *(pairs + i for i in part)], max(longer[i] for i in part)
            own = {name: values[rows, :width] if values.dim() > 1 else values[part] for name, values in inputs.items()}
            yield own, len(part) / pairs


# The log --------------------------------------------------------------------------------------------------------------


def rename_metrics(logs: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    """Metrics without a name here are left out; `val/` means held out."""
    named = {}
    for key, value in logs.items():
        prefix, key = ("val/", key.removeprefix("eval_")) if key.startswith("eval_") else ("", key)
        if key in names:
            named[names[key] if names[key].startswith("time/") else prefix + names[key]] = value
    return named


def metrics_line(metrics: Mapping[str, float], forms: Sequence[tuple[str, str]]) -> str:
    """A number that was not measured is left out."""
    return "  ".join(form.format(metrics[name]) for name, form in forms if name in metrics)


class PairLog(TrainerLog):
    """The log of a trainer on pairs, without the summary that the trainer writes at its end.

    A subclass sets `kind`, `record_name` and these three.
    """

    loss: ClassVar[str]
    """Our name of the loss, which each row of metrics has, held out or not."""
    names: ClassVar[Mapping[str, str]]
    """Our names of metrics by the trainer's; see `rename_metrics`."""
    line: ClassVar[Sequence[tuple[str, str]]]
    """What is printed of a row; see `metrics_line`."""

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        metrics = rename_metrics(kwargs["logs"], self.names)
        if not state.is_world_process_zero or not any(key.endswith(self.loss) for key in metrics):
            return
        if self.loss in metrics:
            metrics["time/step_s"] = self.seconds_per_step(state.global_step)
        self.log(state.global_step, metrics, metrics_line(metrics, self.line))
