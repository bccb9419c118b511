"""Shares the rows of each mini-batch among training workers that compute a group together, by the tokens they compute.

verl balances a whole step (trainer/ppo/ray_trainer.py, `_balance_batch`): its mini-batches have other rows than one
worker's, and it parts the rows of a group, whose prompt `packed_engine` computes once. Here a mini-batch keeps its
rows, so that the update is one worker's but for the order of sums, and a group is parted only where the workers do not
divide the mini-batch's tasks.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from sql_agent.verl_side.config import ENGINE


def shares(
    prompts: Sequence[int], responses: Sequence[int], *, group: int, mini_batch: int, workers: int
) -> list[list[int]]:
    """The rows of each worker, equally many, in the order in which it trains them.

    Args:
        prompts, responses: tokens of each row, shape (B,); the rows of a group stand together.
        group: rows of a group.
        mini_batch: rows of an update of all workers, which divide it.
    """
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

    unit = math.gcd(group, mini_batch // workers)
    of_workers: list[list[int]] = [[] for _ in range(workers)]
    for start in range(0, len(prompts), mini_batch):
        units = [range(first, first + unit) for first in range(start, start + mini_batch, unit)]
        tokens = [max(prompts[row] for row in rows) + sum(responses[row] for row in rows) for rows in units]
        parts: Any = get_seqlen_balanced_partitions(tokens, workers, equal_size=True)
        for mine, part in zip(of_workers, parts, strict=True):
            mine += [row for number in part for row in units[number]]
    return of_workers


def shares_prompts() -> bool:
    """Whether this process belongs to a run whose training workers compute shared prompts once."""
    return os.environ.get("VERL_PLATFORM") == "cpu" or ENGINE in os.environ


def _share(module: ModuleType) -> None:
    upstream = module.RayPPOTrainer._balance_batch

    @functools.wraps(upstream)
    def balance_batch(
        self: Any,
        batch: Any,
        metrics: dict[str, Any],
        logging_prefix: str = "global_seqlen",
        keep_minibatch: bool = False,
    ) -> None:
        if not shares_prompts():
            return upstream(self, batch, metrics, logging_prefix, keep_minibatch)
        attended, group = batch.batch["attention_mask"], self.config.actor_rollout_ref.rollout.n
        responses = attended[:, -batch.batch["responses"].shape[1] :].sum(1).tolist()
        lengths = attended.sum(1).tolist()
        of_workers = shares(
            [whole - response for whole, response in zip(lengths, responses, strict=True)],
            responses,
            group=group,
            mini_batch=self.config.actor_rollout_ref.actor.ppo_mini_batch_size * group,
            workers=self._get_dp_size(self.actor_rollout_wg, "actor"),
        )
        batch.reorder(module.torch.tensor([row for rows in of_workers for row in rows]))
        metrics.update(module.log_seqlen_unbalance(lengths, of_workers, prefix=logging_prefix))

    module.RayPPOTrainer._balance_batch = balance_batch  # type: ignore[attr-defined]
