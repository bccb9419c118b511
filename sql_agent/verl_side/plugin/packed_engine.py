"""Makes verl's FSDP engine compute shared prompts once, and logits only at trained positions.

verl computes every row of a micro-batch in full, and the logits of every token: eight rollouts of 750 tokens at a
vocabulary of 49,152 are 1.2 GB of float32 logits before the first copy. Here the rows of a group are packed
(`packed_rows`), and the output layer gets only the positions whose next token the policy sampled. It returns their
log-probs and entropies, a tile of the vocabulary at a time (`log_probs`). The rest (FSDP2, loss, optimiser,
checkpoints) is verl's. A CPU has it always, and computes attention a segment at a time; with `engine.shared_prompts` a
GPU has it too, or a CPU computes attention as a GPU then does. Source of the two methods that are overridden: verl
workers/engine/fsdp/transformer_impl.py, `forward_backward_batch` and `forward_step` of `FSDPEngineWithLMHead`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from transformers import AttentionInterface
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name
from verl.utils.metric import AggregationType, Metric
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.engine.utils import detach_tree

from agentgrpo.micro_batches import return_freed_memory
from sql_agent.architectures import check_architecture
from sql_agent.block_mask import block_mask, flex_shared_attention
from sql_agent.log_probs import LogProbs
from sql_agent.packed_rows import PackedRows, pack_chains
from sql_agent.verl_side.plugin.packed_attention import NAME


class LogProbHead:
    """Replaces the forward of a model's output layer and returns log-probs and entropies instead of logits.

    Args:
        head: the output layer, a linear one without bias.
    """

    def __init__(self, head: torch.nn.Module) -> None:
        self._head = head
        # Shape (K,): for each trained position, the index of its hidden state among U, and its next token.
        self.rows = self.labels = torch.empty(0, dtype=torch.long)
        self.temperature = 1.0

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Turn hidden states (1, U, D) into the log-prob of the label and the entropy in nats, shape (1, K, 2).

        A CPU always computes in float32: at a logit of 20, bfloat16 is off by up to 0.06 nats (arXiv:2506.13585 sec.
        3.2 reports the effect on training). On a GPU FSDP gives the weights in the run's precision, and the products
        are in it, as in verl's own kernel.
        """
        weight: Any = self._head.weight
        with torch.autocast(hidden.device.type, enabled=False):
            states = hidden[0].to(weight.dtype).index_select(0, self.rows)
            log_probs, entropies, _ = LogProbs.apply(states, weight, self.labels, self.temperature)
        return torch.stack([log_probs[None], entropies[None]], -1)  # FSDP would warn of a view


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")
class PackedEngine(FSDPEngineWithLMHead):
    def _build_module(self) -> torch.nn.Module:
        module: Any = super()._build_module()  # pyright: ignore[reportAttributeAccessIssue]
        if problem := check_architecture(module.config.to_dict(), "packed"):
            raise NotImplementedError(str(problem))
        head = module.get_output_embeddings()
        self._log_prob_head = LogProbHead(head)
        head.forward = self._log_prob_head
        return module

    def _build_lora_module(self, module: Any) -> Any:
        head = module.get_output_embeddings()
        module = super()._build_lora_module(module)  # pyright: ignore[reportAttributeAccessIssue]
        if module.get_base_model().get_output_embeddings() is not head:
            raise NotImplementedError(
                "an adapter on the output layer cannot be trained on a CPU or with engine.shared_prompts; leave "
                "lm_head out of lora.target_modules"
            )
        return module

    def _build_optimizer(self, module: Any) -> Any:
        # torch takes its fused AdamW on request only; the other one makes a new tensor for each step of the formula
        config = self.optimizer_config  # pyright: ignore[reportAttributeAccessIssue]
        if get_device_name() == "cpu" and (config.optimizer_impl, config.optimizer) == ("torch.optim", "AdamW"):
            own = {"fused": True, **(config.override_optimizer_config or {})}
            self.optimizer_config = replace(config, override_optimizer_config=own)
        return super()._build_optimizer(module)  # pyright: ignore[reportAttributeAccessIssue]

    def forward_backward_batch(self, data: Any, loss_function: Callable, forward_only: bool = False) -> Any:
        limit = data["max_token_len_per_gpu"]
        rows = _chains(data)
        # The workers decide alike: a micro-batch is one forward of FSDP, which all of them have to take part in.
        size = math.gcd(*self._of_workers(group_size(tu.get(data, "uid", default=None), len(rows))))
        # take as many rows together as fit into a micro-batch with what they share counted once
        count = math.gcd(*self._of_workers(len(rows)))
        together = next(
            n for n in even_shares(count, size) if n == 1 or max(self._of_workers(_tokens(rows, n))) <= limit
        )
        # verl counts a shared prompt in every row, so the limit for verl has to allow `alone` tokens
        lengths = [sum(map(len, row)) for row in rows]
        alone = max(self._of_workers(max(sum(lengths[i : i + together]) for i in range(0, len(rows), together))))
        tu.assign_non_tensor(data, force_group_size=together, max_token_len_per_gpu=max(limit, alone))
        try:
            return super().forward_backward_batch(data, loss_function, forward_only)
        finally:
            return_freed_memory()

    def forward_step(self, micro_batch: Any, loss_function: Callable | None, forward_only: bool) -> Any:
        return_freed_memory()  # the previous micro-batch's
        packed = pack_chains(_chains(micro_batch))  # on the CPU, where verl's batch is
        positions = trained_positions(micro_batch, packed)
        micro_batch = micro_batch.to(get_device_id())
        at, labels, places = (each.to(get_device_id()) for each in positions)
        head = self._log_prob_head
        # Each hidden state is kept once, although rows that share a sampled turn share its positions. The gradient of
        # indexing with repeated positions is summed by several threads in any order, that of index_select by one.
        kept_at, head.rows = at.unique(return_inverse=True)
        head.labels, head.temperature = labels, _temperature(micro_batch["temperature"])
        dtype = self._autocast_dtype  # pyright: ignore[reportAttributeAccessIssue]
        if os.environ.get("AGENTGRPO_PRECISION") == "bfloat16":  # a CPU, whose weights FSDP leaves in float32
            dtype = torch.bfloat16
        with torch.autocast(get_device_name(), dtype, enabled=dtype != torch.float32):
            kept = self.module(  # pyright: ignore[reportAttributeAccessIssue]
                input_ids=packed.input_ids[None].to(get_device_id()),
                attention_mask=self._attention_mask(packed),
                position_ids=packed.position_ids[None].to(get_device_id()),
                segments=packed.segments,
                logits_to_keep=kept_at,
                use_cache=False,
            ).logits[0]
        offsets = micro_batch["input_ids"].offsets()
        output = {"log_probs": _nested(kept[:, 0], places, offsets)}
        if tu.get_non_tensor_data(micro_batch, "calculate_entropy", default=False):
            output["entropy"] = _nested(kept[:, 1], places, offsets)
        if loss_function is None:
            return torch.tensor(1.0), {"model_output": detach_tree(output), "loss": 1.0, "metrics": {}}
        loss, metrics = loss_function(model_output=output, data=micro_batch, dp_group=self.get_data_parallel_group())
        if (workers := micro_batch["dp_size"]) > 1:
            metrics = over_all_tokens(metrics, workers * len(labels) / micro_batch["batch_num_tokens"])
        return loss, {"model_output": detach_tree(output), "loss": loss.detach().item(), "metrics": metrics}

    def _attention_mask(self, packed: PackedRows) -> Any:
        return None  # the segments take its place

    def _of_workers(self, value: int) -> list[int]:
        """The values of all training workers."""
        group = self.get_data_parallel_group()  # pyright: ignore[reportAttributeAccessIssue]
        values = [value] * dist.get_world_size(group)
        if len(values) > 1:
            dist.all_gather_object(values, value, group=group)
        return values


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device=["cpu", "cuda"], vendor="flex_attention")
class FlexEngine(PackedEngine):
    """Computes attention by flex_attention; verl chooses it by the name of the vendor (`engine.shared_prompts`)."""

    def _build_module(self) -> torch.nn.Module:
        AttentionInterface.register(NAME, flex_shared_attention)
        return super()._build_module()  # pyright: ignore[reportAttributeAccessIssue]

    def _attention_mask(self, packed: PackedRows) -> Any:
        return block_mask(packed.segments, get_device_id())


def over_all_tokens(metrics: dict[str, Any], share: float) -> dict[str, Any]:
    """Make the means over a micro-batch's tokens those over all tokens of the update.

    verl takes the mean over workers of each one's mean, in which a worker that has lost its rows counts as much as one
    that has all tokens.

    Args:
        share: of the update's tokens that this micro-batch has, times the number of workers, over which verl averages.
    """
    return {
        name: Metric("sum", value.aggregate() * share)
        if isinstance(value, Metric) and value.aggregation is AggregationType.MEAN
        else value
        for name, value in metrics.items()
    }


def group_size(uids: Sequence[str] | None, rows: int) -> int:
    # Rows are packed by as many as divide every run of adjacent rows of one group: a worker may have half of a group.
    if uids is None or rows == 0:
        return 1
    return math.gcd(*(len(list(group)) for _, group in groupby(uids)))


def even_shares(rows: int, group: int) -> list[int]:
    """The numbers of rows, the largest first, into which a batch can be parted evenly without cutting across groups:
    several whole groups, which may be about one database, or an even part of one."""
    return sorted((n for n in range(1, rows + 1) if rows % n == 0 and (n % group == 0 or group % n == 0)), reverse=True)


def trained_positions(micro_batch: Any, packed: PackedRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find the positions that are trained on, K over all rows.

    Args:
        micro_batch: with `input_ids` (nested, B rows), `attention_mask` (B, P + T), `response_mask` (B, T).
    Returns:
        For each position, shape (K,) each: the index of its hidden state in the packed sequence; the token that follows
        it; its index in the concatenation of all rows, where verl looks for the log-prob.
    """
    mask = micro_batch["response_mask"].bool()
    prompts = micro_batch["attention_mask"][:, : -mask.shape[1]].sum(1).tolist()
    offsets = micro_batch["input_ids"].offsets().tolist()
    # the token before a sampled one predicts it
    before = [prompt - 1 + row.nonzero().flatten() for prompt, row in zip(prompts, mask, strict=True)]
    at = torch.cat([place[positions] for place, positions in zip(packed.places, before, strict=True)])
    places = torch.cat([start + positions for start, positions in zip(offsets, before, strict=False)])
    return at, micro_batch["input_ids"].values()[places + 1], places


def _nested(kept: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """One value per token of each row, as verl expects it; 0 where nothing is trained."""
    values = kept.new_zeros(int(offsets[-1])).index_put((places,), kept)
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def _chains(data: Any) -> list[list[list[int]]]:
    """The token ids of each row, split where its position ids begin anew (`sql_agent.source.batch`)."""
    rows = zip(data["input_ids"].unbind(), data["position_ids"].unbind(), strict=True)
    return [[chain.tolist() for chain in ids.tensor_split((at == 0).nonzero().flatten()[1:])] for ids, at in rows]


def _tokens(rows: Sequence[list[list[int]]], together: int) -> int:
    """Tokens of the largest micro-batch if `together` rows are computed at once."""
    groups = (rows[i : i + together] for i in range(0, len(rows), together))
    return max(len(pack_chains(group).input_ids) for group in groups)


def _temperature(value: Any) -> float:
    # verl passes one number, or one per row.
    if not isinstance(value, torch.Tensor):
        return float(value)
    if (value != value.flatten()[0]).any():
        raise NotImplementedError("rows of one micro-batch were sampled at different temperatures")
    return float(value.flatten()[0])
