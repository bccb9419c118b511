"""Which architectures can be trained where: one table, asked before anything loads, by a model's config.json.

The main job computes rows together on a CPU, and with `engine.shared_prompts` on a GPU (`sql_agent.shared_prefix`).
That needs causal attention through transformers' interface and nothing else between tokens. verl's own engine and
training in this process need less; SFT, DPO and reward training take any language model of transformers. Leaves out
whether vLLM serves a model. Importing this module is instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from agentgrpo.checks import Problem

Config = Mapping[str, Any]
"""The contents of config.json; of a model of texts and images the part about texts."""
Trainer = Literal["packed", "verl", "local"]
"""The main job where rows are computed together; the main job with verl's own engine; training in this process."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Their rows give the same hidden states together as apart (sql_agent/tests/test_packed_model.py). Others may ignore
# which tokens belong to a row, and would be trained on the wrong log-probs without an error: StableLM does.
TOGETHER = _names(
    "afmoe apertus arcee bitnet cohere cohere2 cwm deepseek_v2 ernie4_5 ernie4_5_moe exaone4 flex_olmo gemma gemma2 "
    "gemma3_text glm glm4 glm4_moe gpt2 gpt_neox granite granitemoe granitemoeshared helium hunyuan_v1_dense "
    "hunyuan_v1_moe hyperclovax jais2 jetmoe llama minimax_m2 ministral ministral3 mistral mixtral nanochat olmo olmo2 "
    "olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 solar_open starcoder2 "
    "vaultgemma"
)
# Their configs have no `num_key_value_heads`, which verl reads of every model (models/transformers/monkey_patch.py).
WITHOUT_KEY_VALUE_HEADS = _names("biogpt bloom codegen falcon gpt2 gpt_neo gpt_neox gptj mpt opt persimmon xglm")
# Their layers hand a state from token to token. Configs need not say so: LFM2's may name its other layers alone.
WITH_STATES = _names(
    "bamba falcon_h1 falcon_mamba granitemoehybrid jamba lfm2 lfm2_moe mamba mamba2 minimax nemotron_h olmo_hybrid "
    "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next recurrent_gemma rwkv xlstm zamba zamba2"
)
# Padded rows of theirs are sampled and computed as each is alone (sql_agent/tests/test_layers_with_states.py), unlike
# RWKV's and RecurrentGemma's, which padding before a row changes.
PADDED = _names("bamba falcon_h1 granitemoehybrid jamba lfm2 nemotron_h qwen3_5_text qwen3_next")
# They tell their window to their mask or to their attention, not to both, and rows together have no mask.
WITH_WINDOW_IN_MASK = _names("olmoe phimoe qwen2_moe")
# Fields that change logits behind the output layer, unless they are None or 1.
OF_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier", "lm_head_multiplier")
_TUNE = "fine-tune it with agentgrpo sft or agentgrpo dpo, or take another model"
_APART = "train it with agentgrpo local, or on a GPU without engine.shared_prompts"


def _no_heads(config: Config, row_tokens: int) -> str | None:
    return "has no num_key_value_heads, which verl asks for" if _kind(config) in WITHOUT_KEY_VALUE_HEADS else None


def _states(config: Config, row_tokens: int) -> str | None:
    has = _kind(config) in WITH_STATES or {"conv", "linear_attention", "mamba"} & set(config.get("layer_types") or ())
    return "has layers that hand a state from token to token" if has else None


def _unknown(config: Config, row_tokens: int) -> str | None:
    return None if _kind(config) in TOGETHER else "was never compared, rows together with rows apart"


def _untried_states(config: Config, row_tokens: int) -> str | None:
    return None if _kind(config) in PADDED else _states(config, row_tokens)


def _window(config: Config, row_tokens: int) -> str | None:
    window = config.get("sliding_window")
    kinds = set(config.get("layer_types") or ())
    if _kind(config) not in WITH_WINDOW_IN_MASK or config.get("use_sliding_window") is False or not window:
        return None
    if (kinds and "sliding_attention" not in kinds) or 0 < row_tokens <= window:
        return None
    return f"has a window of {window:,} tokens (sliding_window) that rows together do not keep to"


def _caps(config: Config, row_tokens: int) -> str | None:
    return "caps its attention scores" if config.get("attn_logit_softcapping") is not None else None


def _logits(config: Config, row_tokens: int) -> str | None:
    if _kind(config) == "phi":
        return "has a bias in its output layer"
    changed = [name for name in OF_LOGITS if config.get(name) not in (None, 1)]
    return f"changes its logits by {', '.join(changed)}" if changed else None


def _reach(config: Config, row_tokens: int) -> str | None:
    if (reach := reach_of(config)) is None or row_tokens <= reach[0]:
        return None
    return (
        f"changes its positions once a row is longer than {reach[0]:,} tokens ({reach[1]}), and rows may have "
        f"{row_tokens:,}"
    )


def reach_of(config: Config) -> tuple[int, str] | None:
    """The longest row whose positions do not depend on other rows, and the field that says so; None: every row is
    one."""
    rotation = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rotation.get("rope_type", rotation.get("type")) not in ("dynamic", "longrope"):
        return None
    for named in (rotation, config):
        if tokens := named.get("original_max_position_embeddings"):
            return tokens, "original_max_position_embeddings"
    tokens = config.get("max_position_embeddings")
    return (tokens, "max_position_embeddings") if tokens else None


class TrainingLimit(NamedTuple):
    fault: Callable[[Config, int], str | None]
    """What about a config and rows of so many tokens cannot be trained; None: nothing."""
    trainers: tuple[Trainer, ...]
    remedy: str


TABLE = (
    TrainingLimit(_no_heads, ("packed", "verl"), "train it with agentgrpo local, or take another model"),
    TrainingLimit(_states, ("packed",), _APART),
    TrainingLimit(_untried_states, ("local",), _TUNE),
    TrainingLimit(_unknown, ("packed",), _APART),
    TrainingLimit(_window, ("packed",), _APART),
    TrainingLimit(_caps, ("packed",), _APART),
    TrainingLimit(_logits, ("packed",), _APART),
    TrainingLimit(_reach, ("packed",), f"lower data.max_prompt_tokens and data.max_response_tokens, or {_APART}"),
)


def check_architecture(config: Config, trainer: Trainer, row_tokens: int = 0) -> Problem | None:
    """Why a model cannot be trained there; None if it can.

    Args:
        row_tokens: the longest row, as far as it is known.
    """
    config = config.get("text_config") or config
    for limit in TABLE:
        if trainer in limit.trainers and (fault := limit.fault(config, row_tokens)) is not None:
            return Problem(f"model type {_kind(config)} {fault}", limit.remedy)
    return None


def hands_states_on(config: Config) -> bool:
    """Whether layers hand a state from token to token, so that padding between tokens would change what follows."""
    return _states(config, 0) is not None


def can_pack(config: Config) -> bool:
    """Whether rows of any length give the same hidden states together as apart."""
    faults = (_states, _unknown, _window, _caps)
    return reach_of(config) is None and all(fault(config, 0) is None for fault in faults)


def _kind(config: Config) -> str:
    return str(config.get("model_type"))
