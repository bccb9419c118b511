"""Which families' chat templates go on exactly from sampled ids, by protocol: the table of doc/faithful.md.

The templates are those of the model repositories, as TRL ships them, and ours. No family's own tokenizer is on the
machine: one of bytes, with the family's special tokens, stands in for it.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trl
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import get_training_chat_template

from dbbench_adapter.protocols import ProtocolName
from sql_agent.model_check import choose_template, training_template, unrendered
from sql_agent.tests.conftest import byte_tokenizer

ROOT = Path(__file__).parents[2]
TRL = Path(trl.__file__).parent / "chat_templates"
PAGE = ROOT / "doc" / "faithful.md"
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
    return Family((TRL / f"{file}.jinja").read_text(), special, eos or special[0], settings)


FAMILIES = {
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
        f"`{file.parent.relative_to(ROOT)}` (ours)": Family(file.read_text(), CHATML, CHATML[0], {})
        for file in sorted(ROOT.glob("sql_agent/*/chat_template.jinja"))
    },
}


def look(family: Family, protocol: ProtocolName) -> tuple[str, str]:
    """Of one protocol: whether its conversations go on exactly, and which template a run uses."""
    tokenizer = byte_tokenizer(*family.special)
    tokens = {"bos_token": "<bos>", "eos_token": family.eos, **family.settings}
    ends = frozenset(map(tokenizer.token_to_id, (family.special[0], family.eos)))
    try:
        missing = unrendered(family.template, tokens, protocol)
    except Exception as refusal:
        missing = [str(refusal)]
    if missing:
        return "no tools" if protocol == "fc" else f"no: {missing[0]}", ""
    template, played = choose_template(family.template, tokens, tokenizer, ends, protocol)
    exact = "exact" if played.broken is None else f"breaks after {played.broken}"
    if template != family.template:
        return exact, "rewritten; TRL's version is used"
    return exact, "kept" if played.rewritten is None else "rewritten"


def row(name: str) -> str:
    found = [look(FAMILIES[name], protocol) for protocol in PROTOCOLS]
    earlier = dict.fromkeys(said for _, said in found if said)
    return "| " + " | ".join([name, *(exact for exact, _ in found), " / ".join(earlier)]) + " |"


@pytest.mark.parametrize("name", FAMILIES)
def test_the_page_says_how_the_familys_conversations_go_on(name):
    assert row(name) in PAGE.read_text().splitlines()


def test_the_page_names_no_family_that_is_not_tried():
    lines = PAGE.read_text().splitlines()
    table = lines[lines.index("| template | `fc` | `text` | `lab` | earlier turns |") + 2 :]
    named = [line.split("|")[1].strip() for line in table[: table.index("")]]
    assert [name for name in named if name not in FAMILIES and not name.endswith("(ours)")] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_trl_itself_has_the_same_version_for_training(name):
    """`training_template` reads TRL's files, for it would take seconds to import TRL."""
    family = FAMILIES[name]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(*family.special), eos_token=family.eos)
    tokenizer.chat_template = family.template
    try:
        expected = get_training_chat_template(tokenizer)
    except ValueError:
        expected = None
    assert training_template(family.template) == expected
