"""Can this folder be trained and served? Checked by reading it, before anything expensive starts.

Looks at what the run relies on: config, tokenizer, a chat template that renders tool calls and tool results, complete
weights. Leaves out whether vLLM knows the architecture and whether the model fits into memory. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETUP = "bash scripts/setup.sh"


@dataclass(frozen=True)
class Problem:
    """What is wrong, in words, and the line that mends it."""

    what: str
    mend: str
    blocks: bool = True
    """False: a run can start all the same."""

    def __str__(self) -> str:
        return f"{self.what}; {self.mend}"


class ModelFileError(ValueError):
    """A file of the folder cannot be read as what it should be; the message says which and why."""


def check_model_dir(path: Path) -> list[Problem]:
    """All problems of a Hugging Face model folder; an empty list means that a run can start from it."""
    if not path.is_dir():
        make = "make a small policy with `.venv/bin/python -m scripts.make_tiny_policy`"
        fetch = f"fetch a model with `.venv/bin/hf download NAME --local-dir {path}`"
        return [Problem(f"model folder {path} does not exist", f"{make}, or {fetch}")]
    checks = (check_config, check_tokenizer, check_template, check_weights)
    return [problem for check in checks for problem in check(path)]


def fetch_again(path: Path) -> str:
    return f"fetch the folder again: `.venv/bin/hf download NAME --local-dir {path}`"


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelFileError: it is missing, is not JSON, or holds something else than an object.
    """
    if not file.is_file():
        raise ModelFileError(f"{file} is missing")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFileError(f"{file} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ModelFileError(f"{file} holds a {type(content).__name__}, expected an object")
    return content


def check_config(path: Path) -> Iterator[Problem]:
    try:
        if not read_json(path / "config.json").get("architectures"):
            name = path / "config.json"
            yield Problem(f"{name} names no architectures, expected e.g. ['Qwen3ForCausalLM']", fetch_again(path))
    except ModelFileError as error:
        yield Problem(str(error), fetch_again(path))


def check_tokenizer(path: Path) -> Iterator[Problem]:
    if not (path / "tokenizer.json").is_file():
        yield Problem(f"{path} has no tokenizer.json", f"{fetch_again(path)}, or save its tokenizer as a fast one")


def chat_template(path: Path) -> str | None:
    """The folder's chat template for tools, where transformers looks: its own file first, then the tokenizer's config.

    Raises:
        ModelFileError: tokenizer_config.json is there and cannot be read.
    """
    if (path / "chat_template.jinja").is_file():
        return (path / "chat_template.jinja").read_text(encoding="utf-8")
    if not (path / "tokenizer_config.json").is_file():
        return None
    template = read_json(path / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("tool_use", named.get("default"))
    return template


CALL = {"type": "function", "function": {"name": "execute_sql", "arguments": {"query": "SELECT probe_call"}}}
PROBE: list[dict[str, Any]] = [
    {"role": "system", "content": "probe_system"},
    {"role": "user", "content": "probe_user"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "call_0", **CALL}]},
    {"role": "tool", "tool_call_id": "call_0", "name": "execute_sql", "content": "probe_result"},
]
PROBE_TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "execute_sql",
            "description": "Run one statement.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
]
PROBE_PARTS = {
    "probe_system": "the system message",
    "probe_user": "the user's message",
    "SELECT probe_call": "the arguments of tool calls",
    "probe_result": "tool results",
}


def check_template(path: Path) -> Iterator[Problem]:
    """Render one short conversation with a tool call, with transformers' own renderer, and look for its parts.

    A template that leaves out the tools' schemas passes: a policy may know its tools by training.
    """
    write = f"write a template that renders tool calls to {path / 'chat_template.jinja'}, or take a model that has one"
    try:
        template, tokens = chat_template(path), special_tokens(path)
    except ModelFileError as error:
        yield Problem(str(error), fetch_again(path))
        return
    if template is None:
        yield Problem(f"{path} has no chat template (neither chat_template.jinja nor tokenizer_config.json)", write)
        return
    try:
        missing = unrendered(template, tokens)
    except ImportError as error:
        yield Problem(f"transformers cannot be imported ({error}), so the chat template was not tried", SETUP)
    except Exception as error:  # a template is a program: it may raise anything, by accident or on purpose
        yield Problem(f"the chat template of {path} cannot render a tool call ({type(error).__name__}: {error})", write)
    else:
        if missing:
            yield Problem(f"the chat template of {path} leaves out {' and '.join(missing)}", write)


def special_tokens(path: Path) -> dict[str, Any]:
    """The tokens that a template may name, e.g. `bos_token`.

    Raises:
        ModelFileError: tokenizer_config.json is there and cannot be read.
    """
    if not (path / "tokenizer_config.json").is_file():
        return {}
    config = read_json(path / "tokenizer_config.json")
    tokens = {name: token for name, token in config.items() if name.endswith("_token")}
    return {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}


def render(messages: list[dict[str, Any]], tools: list[Any], template: str, tokens: dict[str, Any]) -> str:
    """The conversation as text, up to the next assistant turn, by transformers' own renderer (without torch: 2 s)."""
    from transformers.utils.chat_template_utils import render_jinja_template

    (prompt,), _ = render_jinja_template(
        [messages], tools, chat_template=template, add_generation_prompt=True, **tokens
    )
    return prompt


def unrendered(template: str, tokens: dict[str, Any]) -> list[str]:
    """The parts of the probe conversation that do not show up in the prompt."""
    prompt = render(PROBE, PROBE_TOOLS, template, tokens)
    return [part for mark, part in PROBE_PARTS.items() if mark not in prompt]


def check_weights(path: Path) -> Iterator[Problem]:
    index = path / "model.safetensors.index.json"
    try:
        shards = sorted(set(read_json(index)["weight_map"].values())) if index.is_file() else []
    except (ModelFileError, KeyError, AttributeError) as error:
        yield Problem(f"{index} cannot be read ({error!r})", fetch_again(path))
        return
    for name in shards:
        if not (path / name).is_file():
            yield Problem(f"{path / name} is missing, {index.name} names it", fetch_again(path))
    files = sorted(path.glob("*.safetensors"))
    if not files and not shards and not list(path.glob("pytorch_model*.bin")):
        yield Problem(f"{path} has no weights, expected *.safetensors", fetch_again(path))
    for file in files:
        expected, actual = safetensors_bytes(file), file.stat().st_size
        if expected != actual:
            header = "its header cannot be read" if expected is None else f"its header promises {expected}"
            yield Problem(f"{file} is damaged: {actual} bytes, {header}", fetch_again(path))


def safetensors_bytes(file: Path) -> int | None:
    """The size that a safetensors file says it has; None when its header cannot be read (a git-lfs pointer, say).

    Source: the format is 8 bytes little-endian header length, the header as JSON, the tensors.
    """
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            header = json.loads(stream.read(min(length, file.stat().st_size)))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, TypeError, AttributeError, KeyError, IndexError):
            return None
    return 8 + length + max(ends, default=0)
