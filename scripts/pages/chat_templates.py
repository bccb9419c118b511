"""Which families' chat templates continue exactly from sampled ids, by protocol; and which architectures agree.

The templates are those of the model repositories, as TRL ships them, and ours. No family's own tokenizer is on the
machine: one of bytes, with the family's special tokens, stands in for it.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bench.agreement import HEAD as AGREEMENT_HEAD
from bench.agreement import line_of
from dbbench_adapter.protocols import ProtocolName
from scripts.pages.tables import ROOT, table
from sql_agent.model_check import choose_template, unrendered

HEAD = """# Chat templates and architectures

A run trains the tokens that were sampled, so a model server continues each conversation from their ids ([exact
tokens](../concepts/exact_tokens.md)). The table says for which templates it can, by
[protocol](../concepts/glossary.md):

- exact: every turn continues the ids before it;
- no tools: the template renders no tool calls, so take `agent.protocol=text` or `lab`.

Where a template rewrites earlier turns and TRL has a version of it for training, a run uses that version and saves it
with every checkpoint. `agentgrpo doctor --model MODEL --protocol fc` tries any other model.
"""
AGREEMENT = """## Architectures

`python -m bench.agreement` samples small random models in float32 by vLLM's engine on a CPU, and the local trainer
scores the same tokens. A difference of 1e-3 nats or more would be a fault. *Once* means that the trainer computes
what the rows of a group share only once.
"""
PROTOCOLS: tuple[ProtocolName, ...] = ("fc", "text", "lab")
CHATML = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
LLAMA = ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>")
GEMMA = ("<end_of_turn>", "<start_of_turn>", "<bos>", "<eos>")
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Family(NamedTuple):
    template: str
    special: tuple[str, ...]
    """The first one ends a turn."""
    eos: str
    settings: dict[str, Any]
    """What the template is told beside the conversation."""


def from_trl(file: str, special: tuple[str, ...] = CHATML, eos: str | None = None, **settings: Any) -> Family:
    spec = importlib.util.find_spec("trl")
    assert spec is not None and spec.origin is not None
    text = (Path(spec.origin).parent / "chat_templates" / f"{file}.jinja").read_text("utf-8")
    return Family(text, special, eos or special[0], settings)


@cache
def families() -> dict[str, Family]:
    return {
        "Qwen2.5": from_trl("qwen2_5"),
        "Qwen3, thinking": from_trl("qwen3"),
        "Qwen3, thinking off": from_trl("qwen3", enable_thinking=False),
        "Qwen3-Instruct-2507": from_trl("qwen3_instruct_2507"),
        "Qwen3.5 from 4B, thinking": from_trl("qwen3_5_think"),
        "Qwen3.5 from 4B, thinking off": from_trl("qwen3_5_think", enable_thinking=False),
        "Qwen3.5 up to 2B (thinking off)": from_trl("qwen3_5_nothink"),
        "Llama 3": from_trl("llama3", LLAMA),
        "Llama 3.1": from_trl("llama3_1", LLAMA),
        "Llama 3.2": from_trl("llama3_2", LLAMA),
        "Gemma 3": from_trl("gemma3", GEMMA, eos="<eos>"),
        "SmolLM2": Family(SMOLLM2, CHATML, CHATML[0], {}),
        **{
            f"`{file.parent.relative_to(ROOT)}` (ours)": Family(file.read_text("utf-8"), CHATML, CHATML[0], {})
            for file in sorted(ROOT.glob("sql_agent/*/chat_template.jinja"))
        },
    }


def byte_tokenizer(*special: str) -> Any:
    """A `tokenizers.Tokenizer` of bytes and these tokens, whose ids are 0, 1, ...: where replies end is all that a
    template needs of it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return tokenizer


def look(family: Family, protocol: ProtocolName) -> tuple[str, str]:
    """Say whether conversations of a protocol continue exactly, and which template a run uses."""
    tokenizer = byte_tokenizer(*family.special)
    tokens = {"bos_token": "<bos>", "eos_token": family.eos, **family.settings}
    ends = frozenset(map(tokenizer.token_to_id, (family.special[0], family.eos)))
    try:
        missing = unrendered(family.template, tokens, protocol)
    except Exception as refusal:  # whatever a family's template raises is why it renders nothing
        missing = [str(refusal)]
    if missing:
        return "no tools" if protocol == "fc" else f"no: {missing[0]}", ""
    template, played = choose_template(family.template, tokens, tokenizer, ends, protocol)
    exact = "exact" if played.broken is None else f"breaks after {played.broken}"
    if template != family.template:
        return exact, "rewritten; TRL's version is used"
    return exact, "kept" if played.rewritten is None else "rewritten"


def row(name: str) -> tuple[str, ...]:
    found = [look(families()[name], protocol) for protocol in PROTOCOLS]
    earlier = dict.fromkeys(said for _, said in found if said)
    return name, *(exact for exact, _ in found), " / ".join(earlier)


def page() -> str:
    templates = table(("template", "`fc`", "`text`", "`lab`", "earlier turns"), map(row, families()))
    measured = json.loads((ROOT / "doc" / "data" / "agreement.json").read_text("utf-8"))
    lines = "\n".join(line_of(kind, found) for kind, found in measured.items())
    return f"{HEAD}\n{templates}\n\n{AGREEMENT}\n{AGREEMENT_HEAD}\n{lines}\n"
