"""The model that training starts from: can it become a reward model?

Answered from the folder's small files before any weights are read. Leaves out whether the model fits into memory.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerBase

from core.weights import HEAD, LANGUAGE_HEADS, in_a_line, misfit
from reward_model.scorer import endless_template, read_tokenizer

FETCH = "`hf download NAME --local-dir FOLDER` fetches one"
UNUSED_TOKEN = re.compile(r"pad|reserved|unused|extra|placeholder", re.IGNORECASE)


class BaseModelError(ValueError):
    """A folder cannot be trained into a reward model; the message says why and what to do."""


def load_tokenizer(path: Path, chat_template_path: Path | None = None) -> PreTrainedTokenizerBase:
    """The base's tokenizer with a chat template and a padding token that no conversation ends with.

    Args:
        chat_template_path: a Jinja file, or a folder whose tokenizer has the template; replaces the base's own.
    Raises:
        BaseModelError: there is no folder, no tokenizer, no template or no such token.
    """
    if not path.is_dir():
        raise BaseModelError(f"model folder {path} does not exist; give a Hugging Face folder, {FETCH}")
    tokenizer = _tokenizer(path)
    if chat_template_path:
        tokenizer.chat_template = _template(chat_template_path)
    if not tokenizer.chat_template:
        raise BaseModelError(
            f"{path} has no chat template, so a conversation cannot be rendered; give one with "
            "--chat_template_path FILE.jinja, or the folder of a model whose format it shall have"
        )
    if fault := endless_template(tokenizer):
        raise BaseModelError(f"{fault} with --chat_template_path FILE.jinja")
    tokenizer.pad_token = choose_pad_token(tokenizer)
    return tokenizer


def _tokenizer(path: Path) -> PreTrainedTokenizerBase:
    try:
        return read_tokenizer(path)
    except (OSError, ValueError) as error:
        raise BaseModelError(f"{path} has no tokenizer that can be read ({error}); {FETCH} whole") from None


def _template(path: Path) -> Any:
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise BaseModelError(f"--chat_template_path {path} is no text, expected a Jinja template") from None
    if not path.is_dir():
        raise BaseModelError(f"--chat_template_path {path} is neither a Jinja file nor a model folder")
    template = _tokenizer(path).chat_template
    if not template:
        raise BaseModelError(f"--chat_template_path {path} has no chat template either")
    return template


def choose_pad_token(tokenizer: Any) -> str:
    """The model's own padding token, else one that is unused, else the one that ends a text.

    transformers' head reads the last token that is not padding, vLLM's the last token: they agree only as long as no
    conversation ends with the padding token, so that one is passed over.

    Raises:
        BaseModelError: every candidate ends conversations, or the chat template renders none.
    """
    endings = set()
    for word in ("yes", "42."):
        messages = [{"role": "user", "content": word}, {"role": "assistant", "content": word}]
        try:
            rendered: Any = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)
        except Exception as error:  # a template is a program: it may raise anything
            raise BaseModelError(
                f"the chat template cannot render a question and its answer ({in_a_line(error)}); give one that can "
                "with --chat_template_path FILE.jinja"
            ) from None
        endings.add(rendered["input_ids"][-1])
    unused = [token for token in tokenizer.all_special_tokens if UNUSED_TOKEN.search(token)]
    unused += [token for token in tokenizer.get_added_vocab() if UNUSED_TOKEN.search(token)]
    for candidate in (tokenizer.pad_token, tokenizer.unk_token, *unused, tokenizer.eos_token):
        if candidate and tokenizer.convert_tokens_to_ids(str(candidate)) not in endings:
            return str(candidate)
    raise BaseModelError(
        f"no token of the vocabulary can be the padding: conversations end with {tokenizer.decode(sorted(endings))!r}, "
        "which may not be it; add a token to the tokenizer, or end the chat template with a line break"
    )


def check_base(path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse what cannot get, or already has, another head than that of a reward model.

    Raises:
        BaseModelError: says which of them it is.
    """
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        raise BaseModelError(f"{path} is an adapter, expected a whole model; merge it into its base first")
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise BaseModelError(f"{path} has no config that transformers can read ({error}); {FETCH} whole") from None
    architecture = (config.architectures or ["no named architecture"])[0]
    if config.is_encoder_decoder:
        raise BaseModelError(f"{path} is an encoder-decoder ({architecture}); a reward model needs a decoder")
    if architecture.endswith("ForSequenceClassification") and config.num_labels != 1:
        raise BaseModelError(
            f"{path} is a classifier with {config.num_labels} labels ({architecture}); a reward model has one output, "
            "so start from the language model that it was made of"
        )
    if not architecture.endswith(("ForCausalLM", "LMHeadModel", "ForSequenceClassification")):
        raise BaseModelError(
            f"{path} has the head of another task ({architecture}); expected a ...ForCausalLM or a "
            "...ForSequenceClassification with one label"
        )
    try:
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    except ValueError:
        raise BaseModelError(f"transformers has no sequence classifier for {config.model_type} ({path})") from None
    if not hasattr(model, "score"):
        raise BaseModelError(f"the classifier of {config.model_type} has no `score` head ({path}); take a decoder")
    embedding = model.get_input_embeddings().weight
    highest = max(tokenizer.get_vocab().values())
    if highest >= len(embedding):
        raise BaseModelError(
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
        raise BaseModelError(f"{fault}; take config.json and weights of one model, {FETCH} whole")


def num_parameters(path: Path) -> int:
    """Number of parameters of the classifier that the base becomes, read from its config alone."""
    with torch.device("meta"):
        return AutoModelForSequenceClassification.from_config(
            AutoConfig.from_pretrained(path, trust_remote_code=False), trust_remote_code=False
        ).num_parameters()


def weight_files(path: Path) -> list[Path]:
    """The files that hold the base's weights, by name.

    Raises:
        BaseModelError: there are none.
    """
    files = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    if not files:
        raise BaseModelError(f"{path} has no weights (*.safetensors); {FETCH} whole")
    return files


def weights_sha256(path: Path) -> str:
    """One digest over the weight files and their names; a shard that was swapped changes it."""
    digest = hashlib.sha256()
    for file in weight_files(path):
        digest.update(file.name.encode() + b"\0")
        for block in _blocks(file):
            digest.update(block)
    return digest.hexdigest()


def _blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while block := stream.read(1 << 24):
            yield block
