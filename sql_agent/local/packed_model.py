"""Computes rows with a common prefix as one packed sequence, so that the prefix goes through the model once, and the
log-probs of their completion tokens without keeping the logits of whole rows in memory.

The rollouts of a group have the same prompt, and questions about one database share rules and schema, which is most of
a row. The packing is in `sql_agent.packed_rows`, its attention in `sql_agent.shared_prefix`; this module applies them
to a model of transformers, on a GPU if `shared_prompts` is set. Capped scores are not supported.

The logits of 1,000 positions over a vocabulary of 152,000 take 600 MB. On a CPU `sql_agent.log_probs` computes them for
a tile of the vocabulary at a time. On a GPU, and for output layers with a bias, a cap or a factor, TRL's
`ChunkedLogProbFunction` does; on two cores it takes two to four times as long (archive/log.md). Both are called on the
hidden states of the chosen positions, because TRL's trainers compute the logits of prompts and padding too on a CPU. An
output layer with an adapter is refused, since they would ignore the adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from trl.kernels import ChunkedLogProbFunction

from agentgrpo.checks import UsageError
from agentgrpo.micro_batches import micro_batches
from sql_agent import architectures
from sql_agent.block_mask import block_mask, flex_shared_attention
from sql_agent.log_probs import LogProbs
from sql_agent.packed_rows import PackedRows, Segment, pack_rows, shared_beginning
from sql_agent.settings.groups import SharedPrompts
from sql_agent.shared_prefix import shared_prefix_attention

NAME = "sdpa"
"""transformers' name of the attention implementation that is extended; models with another one are not packed."""


def attend_plain_or_packed(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    segments: tuple[Segment, ...] | None = None,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute transformers' attention, or that of packed rows for a call with segments.

    Args:
        attention_mask: with segments, an empty tensor, or a block mask for flex_attention.
    """
    if segments is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    if isinstance(attention_mask, torch.Tensor):
        return shared_prefix_attention(module, query, key, value, None, segments=segments, **others)
    return flex_shared_attention(module, query, key, value, attention_mask, segments=segments, **others)


def base_of(model: Any) -> Any:
    """Return the model of transformers, without a PEFT model around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def rows_of(ids: torch.Tensor, attention: torch.Tensor) -> list[list[int]]:
    """Return the tokens of each row without the padding on its right.

    Args:
        ids: tokens, shape (B, T).
        attention: 1 on tokens, 0 on padding, shape (B, T).
    """
    return [row[:length].tolist() for row, length in zip(ids, attention.sum(-1).tolist(), strict=True)]


def packs(base: Any, shared_prompts: SharedPrompts | None = None) -> bool:
    """Return whether a model can compute packed rows.

    Args:
        base: a causal LM of transformers, without a PEFT model around it.
        shared_prompts: the setting; None: on a CPU alone. flex_attention cannot drop attention weights.
    """
    config = base.config.get_text_config()
    return (
        (base.device.type == "cpu" if shared_prompts is None else not getattr(config, "attention_dropout", 0))
        and config._attn_implementation == NAME
        and architectures.can_pack(config.to_dict())
    )


def packed_states(base: Any, packed: PackedRows, shared_prompts: SharedPrompts | None = None) -> torch.Tensor:
    """Compute the last hidden states of packed rows, shape (L, D).

    This registers `attend_plain_or_packed` in the process; for calls without segments nothing changes.

    Args:
        base: a model that `packs`.
    """
    AttentionInterface.register(NAME, attend_plain_or_packed)
    # transformers takes a mask of four dimensions as it is; segments replace an empty one
    mask = torch.empty(1, 1, 1, 0) if shared_prompts is None else block_mask(packed.segments, base.device)
    return base.base_model(
        input_ids=packed.input_ids[None].to(base.device),
        attention_mask=mask,
        position_ids=packed.position_ids[None].to(base.device),
        segments=packed.segments,
        use_cache=False,
    ).last_hidden_state[0]


def micro_batches_of(
    base: Any, rows: Sequence[list[int]], max_tokens: int, shared_prompts: SharedPrompts | None = None
) -> list[list[int]]:
    """Split rows into micro-batches of at most `max_tokens` computed tokens, or of a single longer row.

    If the model `packs`, rows with a common prefix come into one micro-batch, which computes it once. Otherwise padding
    counts as computed. The largest micro-batches come first, as in `agentgrpo.micro_batches`.

    Args:
        base: a causal LM of transformers, without a PEFT model around it.
        rows: the token ids of each row.
    Returns:
        The indices of the rows of each micro-batch.
    """
    if not packs(base, shared_prompts):
        return micro_batches([len(row) for row in rows], max_tokens)
    parts: list[list[int]] = []
    sizes: list[int] = []
    before: list[int] = []
    for i in sorted(range(len(rows)), key=rows.__getitem__):
        # in sorted order, a row shares most with the row before it
        new = len(rows[i]) - len(shared_beginning([before, rows[i]]))
        if parts and sizes[-1] + new <= max_tokens:
            parts[-1].append(i)
            sizes[-1] += new
        else:
            parts.append([i])
            sizes.append(len(rows[i]))
        before = rows[i]
    return [parts[k] for k in sorted(range(len(parts)), key=sizes.__getitem__, reverse=True)]


VOCAB_TILE = 4096
"""Tokens of the vocabulary in a tile of TRL's function: 16 MiB of logits for 1,000 positions, of which it holds several
copies. Wider tiles are slower on a CPU."""


@dataclass(frozen=True)
class Scores:
    """What the model says about the chosen tokens, row by row; every field has shape (N,)."""

    log_probs: Tensor
    """In nats, float32, with gradient."""
    entropy: Tensor
    """Entropy of the distribution at each token's position, in nats, float32, without gradient."""
    is_top1: Tensor
    """Whether no token is likelier at its position, bool."""


def score_tokens(
    model: Any,
    ids: Tensor,
    attention: Tensor,
    chosen: Tensor,
    *,
    temperature: float = 1.0,
    metrics: bool = False,
    shared_prompts: SharedPrompts | None = None,
) -> Scores:
    """Score chosen tokens by one forward pass over whole rows; a prefix that rows share is computed once if `packs`.

    Args:
        model: a causal LM of transformers, or a PEFT model around one.
        ids: tokens, padded right, shape (B, T).
        attention: 1 on tokens, 0 on padding, shape (B, T).
        chosen: True where a token's log-prob is wanted, shape (B, T); a row's first token has none.
        temperature: divisor of the logits, above 0.
        metrics: whether to compute entropy and is_top1, which are empty otherwise.
        shared_prompts: the setting of that name.
    Raises:
        ValueError: the output layer carries an adapter.
    """
    base = base_of(model)
    head = output_layer(base)
    places = chosen[:, 1:]
    if len(ids) > 1 and packs(base, shared_prompts):
        hidden = _packed_hidden(base, ids, attention, places, shared_prompts)
    else:
        hidden = base.base_model(input_ids=ids, attention_mask=attention, use_cache=False).last_hidden_state
        hidden = hidden[:, :-1][places]
    softcap, scale = _of_logits(base.config.get_text_config())
    labels = ids[:, 1:][places]
    if hidden.device.type == "cpu" and head.bias is None and softcap is None and scale == 1:
        rounded = torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", enabled=False):
            log_probs, entropy, is_top1 = LogProbs.apply(
                hidden.to(head.weight.dtype), head.weight, labels, temperature, rounded
            )
    else:
        wanted = ("entropy", "is_top1") if metrics else ()
        log_probs, entropy, _, _, is_top1 = ChunkedLogProbFunction.apply(
            hidden, head.weight, head.bias, labels, temperature, VOCAB_TILE, softcap, scale, ("log_probs", *wanted)
        )
    none = log_probs.new_zeros(0)
    return Scores(log_probs, entropy.detach() if metrics else none, is_top1 if metrics else none.bool())


def _packed_hidden(
    base: Any, ids: Tensor, attention: Tensor, places: Tensor, shared_prompts: SharedPrompts | None
) -> Tensor:
    """Return the hidden states at `places`, a mask of shape (B, T - 1), row by row, shape (N, D)."""
    packed = pack_rows(rows_of(ids, attention))
    at = torch.cat([where[row.nonzero().flatten()] for where, row in zip(packed.places, places.cpu(), strict=True)])
    # Rows may share a place. The gradient of indexing with repeated places is summed by several threads in any order,
    # that of index_select by one.
    return packed_states(base, packed, shared_prompts).index_select(0, at.to(base.device))


def output_layer(base: Any) -> torch.nn.Linear:
    """Return the output layer (lm_head) of a model.

    Raises:
        UsageError: it has an adapter.
    """
    head = base.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        raise UsageError(
            f"the output layer is a {type(head).__name__}, expected a plain Linear: adapters on it are not supported; "
            "leave lm_head out of target_modules and modules_to_save, and trainable_token_indices out where the output "
            "layer shares the embeddings' weights"
        )
    return head


def _of_logits(config: Any) -> tuple[float | None, float]:
    """Return the cap and the factor that some architectures apply to their logits, as in TRL's `add_fused_lm_head`."""
    names = ("logit_scale", "output_multiplier", "lm_head_multiplier")
    scale = next((found for name in names if (found := getattr(config, name, None)) is not None), None)
    if scale is None and (given := getattr(config, "logits_scaling", None)) is not None:
        scale = given if config.model_type == "hyperclovax" else 1 / given
    return getattr(config, "final_logit_softcapping", None), 1.0 if scale is None else scale
