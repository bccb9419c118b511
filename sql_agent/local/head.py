"""Computes log-probs of completion tokens without keeping the logits of whole rows in memory.

The logits of 1,000 positions over a vocabulary of 152,000 take 600 MB. TRL's `ChunkedLogProbFunction` computes them for
a tile of the vocabulary at a time, in float32, with the same values and gradients. It is called here, on the hidden
states of the chosen positions, because TRL's trainers compute the logits of prompts and padding too on a CPU. An output
layer with an adapter is refused, since the function would ignore the adapter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from trl.kernels import ChunkedLogProbFunction

from agentgrpo.checks import UsageError
from sql_agent.local.packed_model import base_of, packed_states, packs, rows_of
from sql_agent.settings.groups import SharedPrompts
from sql_agent.shared_prefix import pack_rows

VOCAB_TILE = 4096
"""Tokens of the vocabulary in a tile: 16 MiB of logits for 1,000 positions, of which the function holds several copies.
Wider tiles are slower on a CPU."""


@dataclass(frozen=True)
class Scores:
    """What the model says about the chosen tokens, row by row; every field has shape (N,)."""

    log_probs: Tensor
    """In nats, float32, with gradient."""
    entropy: Tensor
    """Entropy of the distribution at each token's position, in nats, float32, without gradient."""
    is_top1: Tensor
    """Whether the token is the most likely one at its position, bool."""


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
    wanted = ("entropy", "is_top1") if metrics else ()
    log_probs, entropy, _, _, is_top1 = ChunkedLogProbFunction.apply(
        hidden, head.weight, head.bias, ids[:, 1:][places], temperature, VOCAB_TILE, softcap, scale,
        ("log_probs", *wanted),
    )  # fmt: skip
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
