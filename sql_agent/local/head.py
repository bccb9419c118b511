"""Computes log-probs of chosen tokens without the logits of all tokens.

The output layer sees only the chosen positions, and only a tile of the vocabulary at a time. The kernel is TRL's
`ChunkedLogProbFunction`, exact in value and gradient, which computes in float32 whatever the layer's dtype is. It is
called here because TRL's trainers on a CPU compute the logits of every position, prompts and padding included. Leaves
out adapters on the output layer.
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
"""Columns of a tile. 1,000 positions take several copies of 16 MiB of logits; wider tiles are slower on a CPU."""


@dataclass(frozen=True)
class Scores:
    """Holds the model's values for the chosen tokens, row by row; every field has shape (N,), float32."""

    log_probs: Tensor
    """With gradient, in nats."""
    entropy: Tensor
    """Entropy of the distribution that each token is drawn from, in nats, without gradient."""
    is_top1: Tensor
    """Whether the token is the most likely one, bool."""


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
    """Score chosen tokens by one forward pass over whole rows; what rows share is computed once if the model `packs`.

    Args:
        model: a causal LM of transformers, or a PEFT model around one.
        ids: tokens, padded right, shape (B, T).
        attention: 1 on tokens, 0 on padding, shape (B, T).
        chosen: True where a token's log-prob is wanted, shape (B, T); no first token can be.
        temperature: divisor of the logits, above 0.
        metrics: whether entropy and is_top1 are computed; they are empty otherwise.
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
    """Return the plain output layer of a model.

    Raises:
        UsageError: it carries an adapter, which the kernel would ignore.
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
