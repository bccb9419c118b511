"""Notices tool calls that stand in the text of a reply, because the model server was started without a parser for them.

Such a server answers like any other, and every rollout ends as a reply without a call. A server with a parser leaves a
call in the text too if the call is broken, so nothing is said after a call that it has read.
"""

from __future__ import annotations

import json
import re

from agentgrpo.json_text import parse_json
from sql_agent.datatypes import RolloutRecord

# vLLM's names of parsers, by the beginning of a call as their models write it.
_PARSERS = {
    r"<tool_call>\s*<function=|<function=\w+>\s*<parameter=": "qwen3_coder",
    r"<tool_call>\s*\w+\s*<arg_key>": "glm45",
    r"<tool_call>\s*(?=[{\[])": "hermes",
    r"<function=\w+>\s*(?={)|<\|python_tag\|>": "llama3_json",
    r"\[TOOL_CALLS\]": "mistral",
    r"<｜tool▁calls▁begin｜>": "deepseek_v3",
    r"<\|tool_calls_section_begin\|>": "kimi_k2",
    r"<\|tool_call\|>": "granite",
    r"<minimax:tool_call>": "minimax_m2",
    r"<seed:tool_call>": "seed_oss",
    r"<start_function_call>": "functiongemma",
    r"<\|START_ACTION\|>": "cohere_command3",
    r"<\|action_start\|>": "internlm",
    r"<tool_calls>": "hunyuan_a13b",
    r"\bfunctools\[": "phi4_mini_json",
}


class CallsAsText:
    def __init__(self) -> None:
        self._settled = False

    def note(self, record: RolloutRecord) -> str | None:
        """None if there is nothing to say, as where no tools were offered.

        What an agent of the user's own offered is not known; its replies are read too.
        """
        if record.tools == []:
            return None
        replies = [message for message in record.messages if message.get("role") == "assistant"]
        if self._settled or any(reply.get("tool_calls") for reply in replies):
            self._settled = True
            return None
        parser = next(filter(None, (vllm_parser(str(reply.get("content") or "")) for reply in replies)), None)
        if parser is None:
            return None
        self._settled = True
        return (
            "the model writes its tool calls, and its server does not read them: they came as text, and no call has "
            "come as a call. Start the server with a parser of tool calls, or the model is judged as if it made none: "
            f"vLLM --enable-auto-tool-choice --tool-call-parser {parser} (`vllm serve --help` lists the parsers), "
            "SGLang --tool-call-parser, llama.cpp --jinja"
        )


def vllm_parser(text: str) -> str | None:
    """The name of vLLM's parser for a call that stands in a reply's text; None if there is no whole one."""
    for mark, parser in _PARSERS.items():
        found = re.search(mark, text)
        if found and _is_whole(text[found.end() :]):
            return parser
    return "llama3_json" if _is_call(text.strip()) else None


def _is_whole(rest: str) -> bool:
    # Arguments of another form than JSON are taken for whole.
    if not rest.startswith(("{", "[")):
        return True
    try:
        json.JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError):
        return False
    return True


def _is_call(text: str) -> bool:
    # Llama's models write a call as an object with a name and arguments.
    try:
        said = parse_json(text) if text.startswith("{") else None
    except ValueError:
        return False
    return isinstance(said, dict) and isinstance(said.get("name"), str) and bool({"parameters", "arguments"} & {*said})
