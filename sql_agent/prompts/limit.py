"""Chooses how long a first prompt may be: what a model's context leaves beside the response.

Every command uses the same limit for the same model, so that a model is trained, tuned and measured on one prompt.
Importing this module is instant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sql_agent.model_check import read_json
from sql_agent.settings.load import load_config

# Lowest limit that may be given.
MIN_PROMPT_TOKENS = 16


@dataclass(frozen=True)
class Limit:
    tokens: int | None
    """None: the model's context is not known, so nothing is cut."""
    why: str
    """Where the number comes from, in words."""
    flag: str
    """The flag or setting that gives another number, as it is typed."""
    given: bool = False


def context_of(config: Mapping[str, Any]) -> int | None:
    """The tokens of the model's context, prompt and reply together; None if its config names none.

    Args:
        config: the contents of config.json.
    Source:
        vLLM, `_get_and_verify_max_len`: of the ways to stretch rotary positions, yarn alone is not in
        `max_position_embeddings` yet.
    """
    config = config.get("text_config") or config  # a vision model nests its text model's
    named = (config.get(key) for key in ("max_position_embeddings", "n_positions", "max_seq_len"))
    positions = next(filter(None, named), None)
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) == "yarn" and scaling.get("original_max_position_embeddings"):
        return int(scaling["original_max_position_embeddings"] * scaling["factor"])
    return positions


def choose_limit(model: Path, given: int | None, flag: str, *, response_tokens: int = 0) -> Limit:
    """
    Args:
        model: the folder of a model, not of an adapter.
        given: the limit that the user asks for; None chooses one.
        response_tokens: room that the run asks for behind the prompt; at least the model's default is left.
    Raises:
        ValueError: the context has no room for it.
    """
    return limit_within(context_of(read_json(model / "config.json")), model, given, flag, response_tokens)


def limit_within(
    context: int | None, model: Path | str, given: int | None, flag: str, response_tokens: int = 0
) -> Limit:
    """The other arguments are those of `choose_limit`.

    Args:
        model: a folder, or the name of a model elsewhere, whose defaults are those of a large one.
    """
    if context is None:
        why = f"{model} names no length of its context"
        return Limit(given, "as given", flag, True) if given else Limit(None, why, flag)
    if (given or MIN_PROMPT_TOKENS) + max(response_tokens, 1) > context:
        beside = f" and data.max_response_tokens={response_tokens} behind it" if response_tokens else ""
        raise ValueError(
            f"the context of {model} has {context:,} tokens, which leaves no room for a first prompt"
            f"{f' of {given:,} tokens ({flag})' if given else ''}{beside}; lower "
            f"{'them' if given and response_tokens else flag if given else 'data.max_response_tokens'}"
        )
    if given is not None:
        return Limit(given, "as given", flag, True)
    room = max(min(default_response_tokens(model), context // 2), response_tokens)
    return Limit(context - room, f"the context of {model}, {context:,} tokens, less {room:,} for the response", flag)


def default_response_tokens(model: Path | str) -> int:
    """`data.max_response_tokens` of the main job where nobody sets it; small models have less."""
    return load_config(None, [f"model={json.dumps(str(model))}"]).data.max_response_tokens
