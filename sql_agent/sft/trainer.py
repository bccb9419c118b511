"""Fine-tunes with the local learner: the loss, the loop over epochs and updates, its log and its checkpoints.

Order, averages and the fall of the learning rate are those of TRL's `SFTTrainer`, and a test compares losses and
weights. TRL's trainer is not used: it computes the logits of prompts and padding, a shared prompt in every row, and has
no micro-batches by tokens. Leaves out training with several processes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from tqdm import tqdm
from transformers import set_seed
from transformers.trainer_utils import align_special_tokens

from agentgrpo.chat.replies import EncodedReplies
from agentgrpo.checkpoints import CHECKPOINTS, SaveClock
from agentgrpo.durations import left
from agentgrpo.micro_batches import return_freed_memory
from agentgrpo.run_folder import note_steps
from agentgrpo.training_run import RunLog, check_finite
from sql_agent.credit.row import Row
from sql_agent.local.learner import Learner
from sql_agent.local.policy import LocalPolicy, Rows
from sql_agent.local.run_folder import resume, save_checkpoint
from sql_agent.local.weighted_loss import LossStats
from sql_agent.packed_rows import shared_beginning
from sql_agent.settings.local import LossConfig, OptimConfig
from sql_agent.settings.tuning import SftConfig
from sql_agent.sft.fine_tuning import Start, in_bfloat16

RECORD = "sft.json"
"""The record of a run, in its output. It is written last; if it exists, the rest is whole."""


def trained_policy(model: Any, start: Start, cfg: SftConfig, pass_tokens: int) -> LocalPolicy:
    """Make the adapter, if one is to be made, and seed the generators, as TRL's and transformers' trainers do."""
    set_seed(cfg.seed)
    if start.lora:
        model = get_peft_model(model, start.lora.peft_config())
    align_special_tokens(model, start.tokenizer)
    if start.device != "cpu":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    set_seed(cfg.seed)
    return LocalPolicy(model, start.tokenizer, bfloat16=in_bfloat16(cfg, model), pass_tokens=pass_tokens)


class CrossEntropy(Learner):
    """Makes updates on what the assistant says, and stops at the first that is not finite.

    Of the loss settings only the aggregation counts: the mean over all trained tokens of an update.
    """

    def __init__(self, policy: LocalPolicy, learning_rate: float) -> None:
        optim = OptimConfig(learning_rate=learning_rate, weight_decay=0.0)
        super().__init__(policy, optim, LossConfig(aggregation="token-mean"))

    def update(self, conversations: Sequence[EncodedReplies], learning_rate: float) -> dict[str, float]:
        """
        Returns:
            The mean loss in nats over the trained tokens, and further metrics, by the names in metrics.jsonl.
        Raises:
            UsageError: loss or gradient is not finite.
        """
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        self._likeliest, self._entropy, step = 0, 0.0, self.steps + 1
        found = self.learn([row_of(one) for one in conversations], temperature=1.0)
        remedy = (
            f"lower --learning-rate (now {self._optim.learning_rate:g}) in a new --run-dir; if this happens at step 1, "
            "the weights of --model hold NaN"
        )
        check_finite("loss", found["policy/loss"], step, remedy)
        check_finite("norm of the gradient", found["policy/grad_norm"], step, remedy)
        return {
            "sft/loss": found["policy/loss"],
            "sft/token_accuracy": self._likeliest / max(1, found["train/sampled_tokens"]),
            "sft/entropy": self._entropy / max(1, found["train/sampled_tokens"]),
            "optim/grad_norm": found["policy/grad_norm"],
            "optim/learning_rate": learning_rate,
        }

    def _loss_of(self, rows: Rows, weights: torch.Tensor, temperature: float) -> tuple[torch.Tensor, LossStats]:
        return_freed_memory()
        scores = self._policy.scores(rows)
        self._likeliest += int(scores.is_top1.sum())
        self._entropy += float(scores.entropy.sum())
        return -(weights[rows.mask] * scores.log_probs).sum(), LossStats()


def row_of(one: EncodedReplies) -> Row:
    """The conversation as a row whose replies are trained, except for a first token, which nothing predicts."""
    return Row(tuple(one.ids), (0, *one.mask[1:]), (0.0,) * len(one.ids), prompt_tokens=0, num_turns=1)


def train_epochs(
    policy: LocalPolicy,
    encoded: Sequence[EncodedReplies],
    cfg: SftConfig,
    record: Mapping[str, Any],
    checkpoint: Path | None,
) -> int:
    """Train from the checkpoint, if there is one, to the last epoch.

    Args:
        record: the record of the run, which each checkpoint holds.
    Returns:
        The number of updates.
    """
    learner, log = CrossEntropy(policy, cfg.learning_rate), RunLog("sft", cfg.run_dir, cfg.model_dump(mode="json"))
    size = cfg.batch_size * cfg.gradient_accumulation_steps
    batches, per_epoch = -(-len(encoded) // cfg.batch_size), -(-len(encoded) // size)
    state = resume(checkpoint, policy, learner) if checkpoint else {"tokens": 0}
    tokens, planned = state["tokens"], cfg.num_epochs * per_epoch
    steps = state.get("steps", planned)
    log.begin(learner.steps, steps, policy.device.type)
    whole = steps / per_epoch * sum(len(one.ids) for one in encoded)
    progress = TokenProgress(round(whole) - tokens, steps - learner.steps)
    learner.on_pass = progress.add
    saves, related = SaveClock(cfg.save_every), related_conversations(encoded)
    while learner.steps < steps:
        step = learner.steps + 1
        epoch, place = divmod(step - 1, per_epoch)
        if place == 0:  # as torch's DataLoader: dropout is the one that a seed gave with TRL's trainer
            torch.empty((), dtype=torch.int64).random_()
        order = epoch_order(related, cfg.batch_size, cfg.seed + epoch)
        chosen = [encoded[i] for i in order[place * size : (place + 1) * size]]
        tokens += sum(len(one.ids) for one in chosen)
        metrics = learner.update(chosen, cfg.learning_rate * (steps - step + 1) / steps)
        done = min((place + 1) * cfg.gradient_accumulation_steps, batches)
        metrics |= {"data/tokens": tokens, "data/epoch": epoch + done / batches}
        metrics["time/step_s"] = log.seconds_per_step(step)
        with progress.bar.external_write_mode():
            log.log(step, metrics, format_sft_metrics(metrics))
        progress.said()
        # a resumed run goes on with the plan of its checkpoint
        if cfg.minutes is not None and (step == MEASURED or (step > MEASURED and checkpoint is None)):
            update_s = log.seconds_passed / (step - log.first_step)
            fit = updates_that_fit(cfg.minutes, log.seconds_passed, update_s, step, planned)
            if step == MEASURED:
                print(f"{fit} of {planned} updates fit into {cfg.minutes:g} minutes", flush=True)
            if fit != steps:
                progress.shorten(fit / steps)
                steps = log.steps = fit
                note_steps(cfg.run_dir, steps)
        if saves.is_due(step) or step == steps:
            state = {"tokens": tokens, "steps": steps, "record": record}
            save_checkpoint(cfg.run_dir / CHECKPOINTS, step, policy, learner, state)
    progress.bar.close()
    return steps


MEASURED = 2
"""The update from which on the mean time tells how many fit into `minutes`."""


def updates_that_fit(minutes: float, passed_s: float, update_s: float, done: int, planned: int) -> int:
    """One more than `MEASURED` at least, so that the learning rate falls."""
    return min(planned, max(MEASURED + 1, done + max(0, int((60 * minutes - passed_s) / update_s))))


QUIET_S = 30.0
"""Seconds after which a long update says how far it is where no terminal shows a bar."""


class TokenProgress:
    """Says after the first pass how long the whole takes, and then how far it is: a bar in a terminal, else lines.

    A pass counts by the tokens of its rows, although it computes less where they begin alike.

    Args:
        tokens: those that are still to be learnt from, of all epochs.
    """

    def __init__(self, tokens: int, updates: int) -> None:
        self.bar = tqdm(total=tokens, unit=" tokens", unit_scale=True, disable=None, leave=False)
        self._tokens, self._updates, self._done = tokens, updates, 0
        self._began = self._said = time.monotonic()

    def shorten(self, share: float) -> None:
        """Plan only this share of the tokens."""
        self.bar.total = self._tokens = max(round(share * self._tokens), self._done)

    def said(self) -> None:
        """Keep quiet for a while, since another line said how far it is."""
        self._said = time.monotonic()

    def add(self, tokens: int) -> None:
        self._done += tokens
        self.bar.update(tokens)
        now = time.monotonic()
        rest = left(now - self._began, self._done, self._tokens)
        if rest is None:
            return
        if self._done == tokens:
            rate = tokens / (now - self._began)
            line = f"{self._tokens:,} tokens in {self._updates} updates, {rate:,.0f} a second in the first pass: {rest}"
        elif self.bar.disable and now - self._said > QUIET_S:
            line = f"{self._done:,} of {self._tokens:,} tokens  {rest}"
        else:
            return
        with self.bar.external_write_mode():
            print(line, flush=True)
        self.said()


def related_conversations(conversations: Sequence[EncodedReplies]) -> list[list[int]]:
    """The numbers of conversations whose prompts share more than half of their tokens at the beginning.

    Questions about one database do, since the schema stands first.
    """
    prompts = [one.ids[: next(n for n, learnt in enumerate([*one.mask, 1]) if learnt)] for one in conversations]
    related: list[list[int]] = []
    before: list[int] = []
    for number in sorted(range(len(prompts)), key=prompts.__getitem__):
        prompt = prompts[number]
        if not related or 2 * len(shared_beginning([before, prompt])) <= len(prompt):
            related.append([])
        related[-1].append(number)
        before = prompt
    return related


def epoch_order(related: Sequence[Sequence[int]], batch_size: int, seed: int) -> list[int]:
    """Draw the order of an epoch, in which the conversations of a batch are related, so that it computes less.

    The seed draws which ones share a batch, and the order of the batches. Batches that are not full stand at the end.
    If all are related, or none, the order is that of torch's `RandomSampler`, as with TRL.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(sum(map(len, related)), generator=generator).tolist()
    if len(related) in (1, len(order)):
        return order
    place = {number: at for at, number in enumerate(order)}
    ordered = [sorted(group, key=place.__getitem__) for group in related]
    batches = [group[at : at + batch_size] for group in ordered for at in range(0, len(group), batch_size)]
    drawn = [batches[at] for at in torch.randperm(len(batches), generator=generator).tolist()]
    return [number for batch in sorted(drawn, key=lambda each: len(each) < batch_size) for number in batch]


def format_sft_metrics(metrics: Mapping[str, float]) -> str:
    parts = [f"loss {metrics['sft/loss']:.4f}", f"accuracy {metrics['sft/token_accuracy']:.1%}"]
    parts += [f"grad {metrics['optim/grad_norm']:.2f}", f"lr {metrics['optim/learning_rate']:.1e}"]
    return "  ".join([*parts, f"{metrics['time/step_s']:.2f} s/step"])
