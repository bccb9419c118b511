"""Builds the small policy before any training: a random Qwen3 with a copy circuit.

A policy of one million parameters does not learn to copy unseen names from its prompt in minutes. With the circuit in
place at initialisation, it only has to learn when to copy. The circuit is the induction head of arXiv:2209.11895. Layer
0 stores at each position which token came before. Layer 1 looks for a position whose previous token equals the current
token, and makes the token there likely as the next one.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3DecoderLayer

from sql_agent.tiny_policy.tokenizer import END_ID, MAX_POSITIONS, PAD_ID

ROPE_THETA = 1e6
# Copies of the circuit, one per key-value head; each has its own projections for matching and copying.
HEADS = 2
EMBEDDING_STD = 0.1
# Feature 0 of every embedding, in units of `EMBEDDING_STD`; position-only queries and keys are made from it.
CONSTANT = 6.0
# Scale of everything else that writes into the residual stream, so that the circuit dominates.
DAMPING = 0.1
# Norm weights of the rotary dimensions that the two layers attend by; they decide how peaked the attention is.
SHARPNESS = (2.5, 1.8)
# Strength of the copied token relative to the current one.
COPY_GAIN = 8.0
# Rotary pairs that turn faster than this per position distinguish neighbours.
NEIGHBOUR_RAD = 0.15
# Rotary pairs that turn slower than this hardly depend on distance and can encode which token it is.
STEADY_RAD = 0.02


def build_model(vocab_size: int, *, seed: int) -> Qwen3ForCausalLM:
    """Build the untrained policy with the circuit: 0.9 million parameters, float32, the same for the same seed.

    The global random state of torch does not change.
    """
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        seed_copy_circuit(model)
    return model


@torch.no_grad()
def seed_copy_circuit(model: Qwen3ForCausalLM) -> None:
    """Write the circuit into layers 0 and 1 of a newly initialised model, with torch's random state."""
    config = model.config
    embedding = model.model.embed_tokens.weight
    embedding.mul_(EMBEDDING_STD / embedding.std())
    embedding[:, 0] = CONSTANT * EMBEDDING_STD
    layers = cast(list[Qwen3DecoderLayer], list(model.model.layers))
    for layer in layers:
        layer.self_attn.o_proj.weight.mul_(DAMPING)
        layer.mlp.down_proj.weight.mul_(DAMPING)

    turns = _radians_per_position(config)
    neighbour = (turns > NEIGHBOUR_RAD).nonzero().flatten()
    steady = (turns < STEADY_RAD).nonzero().flatten()
    steady = torch.cat([steady, steady + len(turns)])  # a rotary pair is the dimensions (i, i + head_dim / 2)
    recall, copy = layers[0].self_attn, layers[1].self_attn
    _sharpen(recall, torch.cat([neighbour, neighbour + len(turns)]), SHARPNESS[0])
    _sharpen(copy, steady, SHARPNESS[1])
    for kv_head in range(HEADS):
        identity = _directions(len(steady), config.hidden_size)
        note = _directions(len(steady), config.hidden_size)
        _look_one_back(recall, kv_head, neighbour, turns)
        _move(recall, kv_head, read=identity, write=note * EMBEDDING_STD)
        _match(copy, kv_head, steady, query=identity, key=note)
        content = _directions(config.head_dim, config.hidden_size)
        _move(copy, kv_head, read=content, write=content * EMBEDDING_STD * COPY_GAIN)


def _radians_per_position(config: Qwen3Config) -> Tensor:
    """Angle that each rotary pair turns per position, shape (head_dim / 2,), falling from 1."""
    half = config.head_dim // 2
    return ROPE_THETA ** (-torch.arange(half) / half)


def _directions(n: int, hidden_size: int) -> Tensor:
    """n random orthonormal directions of the residual stream without the constant feature; (n, hidden)."""
    directions = torch.nn.init.orthogonal_(torch.empty(n, hidden_size))
    directions[:, 0] = 0
    return directions


def _sharpen(attention: Qwen3Attention, dims: Tensor, weight: float) -> None:
    attention.q_norm.weight[dims] = weight
    attention.k_norm.weight[dims] = weight


def _look_one_back(attention: Qwen3Attention, kv_head: int, pairs: Tensor, turns: Tensor) -> None:
    """Attend to the previous position.

    The query is constant, and the key is that query rotated by one position, so that after rotary embedding the two
    agree at distance one.
    """
    query, key = (rows * 0.3 for rows in _head_weights(attention, kv_head))  # some noise, as a start for training
    query[:, 0] = key[:, 0] = 0
    query[pairs, 0] = 0.3
    key[pairs, 0] = 0.3 * torch.cos(turns[pairs])
    key[pairs + len(turns), 0] = 0.3 * torch.sin(turns[pairs])
    _set_head_weights(attention, kv_head, query, key)


def _match(attention: Qwen3Attention, kv_head: int, dims: Tensor, *, query: Tensor, key: Tensor) -> None:
    """Attend to positions whose residual stream along `key` equals the one here along `query`, both (dims, hidden)."""
    query_rows, key_rows = (torch.zeros_like(rows) for rows in _head_weights(attention, kv_head))
    query_rows[dims], key_rows[dims] = query, key
    _set_head_weights(attention, kv_head, query_rows, key_rows)


def _move(attention: Qwen3Attention, kv_head: int, *, read: Tensor, write: Tensor) -> None:
    """Add along `write` the attended position's values along `read`, both of shape (n <= head_dim, hidden)."""
    head, size = kv_head * attention.num_key_value_groups, attention.head_dim
    value = torch.zeros(size, read.shape[1])
    value[: len(read)] = read
    output = torch.zeros(write.shape[1], size)
    output[:, : len(write)] = write.T
    attention.v_proj.weight[kv_head * size : (kv_head + 1) * size] = value
    attention.o_proj.weight[:, head * size : (head + 1) * size] = output


def _head_weights(attention: Qwen3Attention, kv_head: int) -> tuple[Tensor, Tensor]:
    """Weights of the first query head of this key-value head, and of its key, each (head_dim, hidden)."""
    head, size = kv_head * attention.num_key_value_groups, attention.head_dim
    query, key = attention.q_proj.weight, attention.k_proj.weight
    return query[head * size : (head + 1) * size], key[kv_head * size : (kv_head + 1) * size]


def _set_head_weights(attention: Qwen3Attention, kv_head: int, query: Tensor, key: Tensor) -> None:
    query_rows, key_rows = _head_weights(attention, kv_head)
    query_rows.copy_(query)
    key_rows.copy_(key)
