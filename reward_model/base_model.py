"""Whether a language model can become a reward model, by small files, before weights are read."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerBase

from agentgrpo.hub import ModelError
from agentgrpo.weights import FETCH, HEAD, LANGUAGE_HEADS, misfit, weight_files


def check_base(path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ModelError: the model cannot be a base; the message says why."""
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} has no config that transformers can read ({error}); {FETCH} whole") from None
    architecture = (config.architectures or ["no named architecture"])[0]
    if config.is_encoder_decoder:
        raise ModelError(f"{path} is an encoder-decoder ({architecture}); a reward model needs a decoder")
    if architecture.endswith("ForSequenceClassification") and config.num_labels != 1:
        raise ModelError(
            f"{path} is a classifier with {config.num_labels} labels ({architecture}); a reward model has one output, "
            "so start from the language model that it was made of"
        )
    if not architecture.endswith(("ForCausalLM", "LMHeadModel", "ForSequenceClassification")):
        raise ModelError(
            f"{path} has the head of another task ({architecture}); expected a ...ForCausalLM or a "
            "...ForSequenceClassification with one label"
        )
    try:
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    except ValueError:
        raise ModelError(
            f"transformers has no sequence classifier for {config.model_type} ({path}); take another model"
        ) from None
    if not hasattr(model, "score"):
        raise ModelError(f"the classifier of {config.model_type} has no `score` head ({path}); take a decoder")
    embedding = model.get_input_embeddings().weight
    highest = max(tokenizer.get_vocab().values())
    if highest >= len(embedding):
        raise ModelError(
            f"the tokenizer of {path} has token {highest}, its config {len(embedding)} embeddings (0 to "
            f"{len(embedding) - 1}); take the tokenizer that belongs to the model, or resize the embeddings"
        )
    weight_files(path)
    is_language_model = not architecture.endswith("ForSequenceClassification")
    fault = misfit(
        path,
        "ForSequenceClassification",
        num_labels=1,
        new=HEAD if is_language_model else None,
        unused=LANGUAGE_HEADS if is_language_model else (),
    )
    if fault:
        raise ModelError(f"{fault}; take config.json and weights of one model, {FETCH} whole")


def num_parameters(path: Path) -> int:
    with torch.device("meta"):
        return AutoModelForSequenceClassification.from_config(
            AutoConfig.from_pretrained(path, trust_remote_code=False), trust_remote_code=False
        ).num_parameters()
