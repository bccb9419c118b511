"""The reward model's scores, by chat template, tokens and one forward pass, and which models can become one.

Training, evaluation, merging and the service all encode conversations with `encode_truncated`, so that a score means
the same everywhere. Batches are padded on the right and the head reads the last token that is not padding, as in TRL's
trainer (trl 1.16 reward_trainer.py; transformers `GenericForSequenceClassification`).
`reward_model.service.batch_scorer` lets conversations share prefixes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerBase

from agentgrpo.chat.messages import Message
from agentgrpo.chat.template import ChatTemplate
from agentgrpo.chat.tokenizer import endless_template, read_tokenizer
from agentgrpo.hub import ModelError
from agentgrpo.json_text import parse_json
from agentgrpo.model_kinds import vocabulary_fault
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.weights import (
    FETCH,
    HEAD,
    LANGUAGE_HEADS,
    check_adapter_weights,
    check_weights_fit,
    weight_files,
    weights_sha256,
)
from reward_model.datatypes import RECORD, EncodedConversation, RewardScore

DEFAULT_MAX_LENGTH = 1024


def encode_truncated(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, tools: str | None, max_length: int
) -> EncodedConversation:
    """The last `max_length` tokens, because the head reads at the end; vLLM's `truncation_side: left` cuts the same
    tokens.
    """
    template = ChatTemplate.of(tokenizer, json.loads(tools) if tools else None)
    ids = tuple(template.ids([message.to_dict(objects=True) for message in messages]))  # as vLLM's chat endpoints do
    return EncodedConversation(ids[-max_length:], truncated=len(ids) > max_length)


class Scorer:
    """A sequence classifier with one output, its tokenizer and length limit; use it in one thread at a time."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self.model, self.tokenizer, self.max_length = model.eval(), tokenizer, max_length

    @classmethod
    def load(cls, path: Path, *, device: str = "auto") -> Scorer:
        """Load a merged model, or an adapter together with the base that it names.

        Args:
            device: `cpu`, `cuda`, or `auto` for a GPU if there is one.
        Raises:
            ModelError: the folder holds no reward model.
        """
        if not path.is_dir():
            raise ModelError(
                f"{path} is not a folder; give the output of agentgrpo reward train or of agentgrpo reward merge"
            )
        try:
            tokenizer = read_tokenizer(path)
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} has no tokenizer that can be read ({error}); give the whole folder") from None
        if not tokenizer.chat_template:
            raise ModelError(f"{path} has no chat template; agentgrpo reward train writes one beside the model")
        if fault := endless_template(tokenizer):
            raise ModelError(fault)
        record = parse_json((path / RECORD).read_text()) if (path / RECORD).is_file() else {}
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.float32 if device == "cpu" else "auto"  # bfloat16 saves no time on most CPUs
        load = _load_adapter if (path / "adapter_config.json").is_file() else _load_merged
        model = load(path, dtype)
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        return cls(model.to(device), tokenizer, length_limit(record, model.config))

    def encode(
        self, messages: Sequence[Message], tools: str | None = None, *, max_length: int | None = None
    ) -> EncodedConversation:
        limit = self.max_length if max_length is None else max_length
        return encode_truncated(self.tokenizer, messages, tools=tools, max_length=limit)

    @torch.inference_mode()
    def score(self, batch: Sequence[EncodedConversation]) -> list[RewardScore]:
        """Score the batch with one forward pass; the scores have its order."""
        longest = max(len(encoded.ids) for encoded in batch)
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[*encoded.ids, *[pad] * (longest - len(encoded.ids))] for encoded in batch])
        lengths = torch.tensor([len(encoded.ids) for encoded in batch])
        mask = (torch.arange(longest) < lengths[:, None]).long()
        device = self.model.device
        logits = self.model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False).logits
        return [RewardScore(v, e.truncated) for v, e in zip(logits.squeeze(-1).float().tolist(), batch, strict=True)]


def _load_merged(path: Path, dtype: object) -> Any:
    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    architecture = (config.architectures or ["none"])[0]
    if not architecture.endswith("ForSequenceClassification") or config.num_labels != 1:
        raise ModelError(
            f"{path} is a {architecture} with {config.num_labels} labels, a reward model is a "
            "...ForSequenceClassification with one; train one with agentgrpo reward train"
        )
    if fault := check_weights_fit(path, "ForSequenceClassification"):
        raise ModelError(f"{fault}; take config.json and weights of one model, as agentgrpo reward merge wrote them")
    return AutoModelForSequenceClassification.from_pretrained(path, dtype=dtype, trust_remote_code=False)


def _load_adapter(path: Path, dtype: object) -> Any:
    from peft import PeftConfig, PeftModel

    base = PeftConfig.from_pretrained(str(path)).base_model_name_or_path
    if not base or not Path(base).is_dir():
        merge = agentgrpo_command("reward merge", "--adapter", path)
        raise ModelError(
            f"{path} is an adapter of {base}, which is not on this machine; "
            f"merge it where the base is, with `{merge} --output MERGED`"
        )
    trained_on = parse_json((path / RECORD).read_text())["base"]["sha256"] if (path / RECORD).is_file() else None
    if trained_on and weights_sha256(Path(base)) != trained_on:
        raise ModelError(
            f"{base} is not the base that {path} was trained on (sha256 in {RECORD}); put the right base there"
        )
    where = Path(base)
    fault = check_weights_fit(where, "ForSequenceClassification", num_labels=1, new=HEAD, unused=LANGUAGE_HEADS)
    if fault := fault or check_adapter_weights(path, where, "ForSequenceClassification", num_labels=1):
        raise ModelError(f"{fault}; put the base there that the adapter was trained on")
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=dtype, trust_remote_code=False)
    return PeftModel.from_pretrained(model, str(path))


def length_limit(record: Mapping[str, Any], config: Any) -> int:
    """The token limit that training recorded, or the number of the model's positions if that is smaller."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None) or DEFAULT_MAX_LENGTH
    return min(record.get("max_length") or DEFAULT_MAX_LENGTH, positions)


# Language models that become reward models ----------------------------------------------------------------------------


def check_base(path: Path) -> None:
    """Small files are read, and no weights.

    Raises:
        ModelError: the model cannot be a base; the message says why.
    """
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
    if too_large := vocabulary_fault(path, path):
        raise ModelError(str(too_large))
    weight_files(path)
    heads: dict[str, Any] = {"new": HEAD, "unused": LANGUAGE_HEADS}
    if architecture.endswith("ForSequenceClassification"):
        heads = {"new": None, "unused": ()}
    if fault := check_weights_fit(path, "ForSequenceClassification", num_labels=1, **heads):
        raise ModelError(f"{fault}; take config.json and weights of one model, {FETCH} whole")


def num_parameters(path: Path) -> int:
    with torch.device("meta"):
        return AutoModelForSequenceClassification.from_config(
            AutoConfig.from_pretrained(path, trust_remote_code=False), trust_remote_code=False
        ).num_parameters()
