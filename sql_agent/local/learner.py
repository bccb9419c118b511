"""Turns rows and what they are credited with into one step of the policy, and leaves bad steps out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from agentgrpo.micro_batches import ON_CPU_SHARED, micro_batch_tokens, recomputed
from sql_agent.credit.losses import Loss, LossInputs
from sql_agent.credit.registry import LOSSES, made
from sql_agent.credit.row import Row
from sql_agent.local.datatypes import DivergedError
from sql_agent.local.packed_model import base_of, micro_batches_of
from sql_agent.local.policy import LocalPolicy, Rows
from sql_agent.local.weighted_loss import LossStats, token_weights, weighted_loss
from sql_agent.settings.local import LossConfig, OptimConfig

MAX_BAD_STEPS = 3


class Learner:
    """Trains a policy's adapter, or all its weights, with AdamW.

    Args:
        loss: the loss and its settings.
    """

    def __init__(self, policy: LocalPolicy, optim: OptimConfig, loss: LossConfig) -> None:
        self._policy, self._optim, self._settings = policy, optim, loss
        self._loss: Loss = made(LOSSES[loss.name], loss)
        self.on_pass: Callable[[int], None] = lambda _tokens: None
        """Receives, after each forward and backward pass, the tokens of its rows."""
        # fused, as transformers' trainer has it; on a CPU the other one makes a new tensor for each step of the formula
        self.optimiser = torch.optim.AdamW(
            policy.parameters(), lr=optim.learning_rate, weight_decay=optim.weight_decay, fused=True
        )
        self.steps = self.bad_steps = 0
        """Optimiser steps so far, and steps that were left out because loss or gradient was not finite."""
        self._bad_in_a_row = self._accumulated = 0

    def learn(self, rows: Sequence[Row], *, temperature: float) -> dict[str, float]:
        """Add the gradient of one batch; every `grad_accum`-th batch moves the adapter.

        Args:
            rows: sampled by this policy since its last step, so that the ratio starts at 1; each with its credit.
            temperature: the sampling temperature of the rows.
        Returns:
            Metrics of the batch; `policy/grad_norm` only if a step was due.
        Raises:
            DivergedError: loss or gradient is not finite for the third time in a row.
        """
        metrics = self._backward(rows, temperature)
        if not math.isfinite(metrics["policy/loss"]):
            return self._skip(metrics)
        self._accumulated += 1
        if self._accumulated < self._optim.gradient_accumulation_steps:
            self._bad_in_a_row = 0
            return metrics
        return self._step(metrics)

    def flush(self) -> dict[str, float] | None:
        """Make a step with the gradients accumulated so far, as at the end of the data; None if there are none."""
        return self._step({}) if self._accumulated else None

    def _backward(self, rows: Sequence[Row], temperature: float) -> dict[str, float]:
        # micro-batches hold rows of similar length, or that begin alike; weights are computed over all rows, so that
        # the losses add up to that of the whole batch
        asked = self._optim.micro_batch_tokens or self._policy.pass_tokens
        most = micro_batch_tokens(asked, self._policy.device.type, ON_CPU_SHARED)
        parts = micro_batches_of(
            base_of(self._policy.model), [list(row.ids) for row in rows], most, self._policy.shared_prompts
        )
        total, done = 0.0, LossStats()
        masks = Rows.of(rows, pad_id=self._policy.pad_id).mask
        weights = token_weights(masks, self._settings.aggregation, max_tokens=self._settings.max_tokens)
        self._policy.model.train()  # for dropout, and because gradient checkpointing works in this mode only
        try:
            for part in parts:
                batch = Rows.of([rows[i] for i in part], pad_id=self._policy.pad_id, device=self._policy.device)
                own_weights = weights[part, : batch.ids.shape[1]].to(self._policy.device)
                with recomputed(self._policy.model, when=batch.ids.shape[1] > most):
                    loss, stats = self._loss_of(batch, own_weights, temperature)
                    loss.backward()
                total, done = total + loss.item(), done + stats
                self.on_pass(sum(len(rows[i].ids) for i in part))
        finally:
            self._policy.model.eval()
        return {
            "policy/loss": total,
            "train/sampled_tokens": int(masks.sum()),
            "train/tokens": sum(len(row.ids) for row in rows),
            **_metrics_of(done),
        }

    def _loss_of(self, rows: Rows, weights: torch.Tensor, temperature: float) -> tuple[torch.Tensor, LossStats]:
        log_probs, kl_coef = self._policy.log_probs(rows, temperature=temperature), self._settings.kl_coef
        reference = self._policy.reference_log_probs(rows, temperature=temperature) if kl_coef else None
        # Sampling is in float32; in bfloat16 the same weights give other log-probs (ratios of 0.86 to 1.17 were
        # measured). With one update per group the policy is still the one that sampled, so its current log-probs are
        # also the old ones.
        old_log_probs = log_probs.detach() if self._policy.bfloat16 else rows.old_log_probs
        inputs = LossInputs(log_probs, old_log_probs, rows.advantages, rows.mask)
        return weighted_loss(self._loss, inputs, weights, kl_coef=kl_coef, ref_log_probs=reference)

    def _step(self, metrics: dict[str, float]) -> dict[str, float]:
        parameters = self._policy.parameters()
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= self._accumulated  # the mean over the batches
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._optim.max_grad_norm))
        metrics = metrics | {"policy/grad_norm": norm}
        if not math.isfinite(norm):
            return self._skip(metrics)
        self.optimiser.step()
        self._clear()
        self.steps += 1
        self._bad_in_a_row = 0
        return metrics

    def _skip(self, metrics: dict[str, float]) -> dict[str, float]:
        self._clear()
        self.bad_steps += 1
        self._bad_in_a_row += 1
        if self._bad_in_a_row >= MAX_BAD_STEPS:
            self._bad_in_a_row = 0  # a run that is resumed with other settings starts to count anew
            raise DivergedError(
                f"loss or gradient was not finite {MAX_BAD_STEPS} times in a row. The last good state is saved "
                f"as a checkpoint: resume with a lower learning_rate (now {self._optim.learning_rate:g}) or "
                f"max_grad_norm (now {self._optim.max_grad_norm:g})"
            )
        return metrics

    def _clear(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        self._accumulated = 0

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs beside the adapter, including gradients that are being accumulated."""
        return {
            "optimiser": self.optimiser.state_dict(),
            "gradients": [None if p.grad is None else p.grad.clone() for p in self._policy.parameters()],
            "counts": (self.steps, self.bad_steps, self._bad_in_a_row, self._accumulated),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.optimiser.load_state_dict(state["optimiser"])
        for group in self.optimiser.param_groups:  # the current settings apply, not the earlier ones
            group["lr"], group["weight_decay"] = self._optim.learning_rate, self._optim.weight_decay
        for parameter, gradient in zip(self._policy.parameters(), state["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        self.steps, self.bad_steps, self._bad_in_a_row, self._accumulated = state["counts"]


def _metrics_of(stats: LossStats) -> dict[str, float]:
    if not stats.tokens:
        return {}
    found = {
        "policy/clip_frac": stats.clip_frac,
        "policy/ratio_mean": stats.ratio_mean,
        "policy/ratio_max": stats.ratio_max,
    }
    return found if stats.kl_k3 is None else found | {"policy/kl_k3": stats.kl_k3}
