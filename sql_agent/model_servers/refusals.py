"""Reads why a model server refused a request, in the words of many servers. Pure.

A router wraps the error of the server behind it, often as a text that is JSON itself, so every text of an error is
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentgrpo.json_text import parse_json

# Statuses of a request that a server will not take in this form.
REFUSED = (400, 422)
# Statuses under which servers answer what the model's own words caused.
_FAILED = (*REFUSED, 424, 500)
# OpenAI's code of the error for a conversation that is longer than the model's context.
CONTEXT_FULL = "context_length_exceeded"
# Code of the error of our own servers for a request that they do not read (`model_address.request_limits`).
TOO_LARGE = "request_too_large"
# Code of our error for a tool call that the model wrote and its server could not parse.
UNREAD_CALL = "unreadable_tool_call"

# Fields with the sentence of an error; texts beside it are codes and places.
_FIRST = ("message", "msg", "error", "errors", "detail", "raw")
# Fields that repeat what was sent, whose words are not the server's.
_ECHOES = ("input", "request")
_TEXT_CHARS, _WORDS_CHARS = 2_000, 4_000
# Objects in objects that are read; routers behind routers nest three or four for each of them.
_DEPTH = 12

_OVERFLOWS = re.compile(
    # vLLM, SGLang, OpenAI, DeepSeek, llama.cpp, MiniMax; Mistral, LM Studio: "... context length"
    r"context[ _-]?(length|window|size|limit)"
    # Anthropic, Bedrock, Fireworks: "prompt is too long"; TensorRT-LLM, xAI, Zhipu: "prompt length exceeds maximum"
    r"|\b(prompt|inputs?|request|conversation|sequence|messages)\b[^.;]{0,80}"
    r"\b(too (long|large)|longer than|larger than|exceed)"
    # mistral.rs: "Prompt sequence length is greater than 4096"; LMDeploy
    r"|\b(prompt|input|sequence)\b[^.;]{0,40}\bgreater than [1-9]|input_length_error"
    r"|max(imum)?[ _](prompt|input|model|sequence|seq)[ _]len"
    # Gemini, Kimi, Cohere: "exceeds the maximum number of tokens", "model token limit", "too many tokens"
    r"|exceed[^.;]{0,60}\btokens?\b|\btokens?\b[^.;]{0,40}\bexceed|too many (\w+ )?tokens"
    # Vertex AI: "the input token count is 40000 but model only supports up to 32768"
    r"|\btoken count\b[^.;]{0,40}\bsupports up to"
    # Groq, Cerebras, OpenAI: "Please reduce the length of the messages or completion."
    r"|reduce (the length of )?(the|your) (messages|prompt|input|conversation)"
    # TGI: "`inputs` must have less than 4095 tokens", "`inputs` tokens + `max_new_tokens` must be <= 4096"
    r"|must have less than \d+ tokens|tokens`? \+ `?max_new_tokens"
    # DashScope; Zhipu and others in Chinese: "prompt too long", "length of the context"
    r"|range of input length|prompt ?超长|上下文长度",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"rate.?limit|per[ _](minute|day|hour)|quota|\bTPM\b", re.IGNORECASE)
# It finds limits of one part of the request: an id, an attachment, or `max_tokens` itself, as Groq says it.
_OTHER_LIMIT = re.compile(
    r"tool_call|string_above_max_length|string too long|tokens`? must be less"
    # "The number of completion tokens exceeds the maximum of 4096"; an overflow may name them beside the prompt
    r"|\A(?!.*\b(context|prompts?|inputs?|messages|conversation|sequence|total|sum)\b)"
    r".*\b(max_)?(completion|output|new)[ _]tokens?\b"
    # "messages.0: an attachment is too large"
    r"|\A(?!.*\b(context|prompts?|tokens?|conversation|sequence)\b)"
    r".*\b(attachments?|images?|audios?|videos?|files?|documents?)\b"
    r"[^.;]{0,60}\b(too (large|big|long)|larger than|exceed)",
    re.IGNORECASE | re.DOTALL,
)
_UNREAD_CALLS = re.compile(
    # llama.cpp: "Failed to parse tool call arguments as JSON", "Failed to parse input at pos 0: <tool_call>"; LM Studio
    r"fail\w* to parse (the )?((tool|function)[ _]calls?\b|input at pos)"
    # Ollama: "error parsing tool call: raw='{', err=unexpected end of JSON input"; its history: "invalid tool call ..."
    r"|pars(e|ing) (the )?(tool|function)[ _]calls?\b|(invalid|malformed)[ _](tool|function)[ _]call\b(?! id)"
    # Groq; SGLang: "Failed to parse fc related info to json format!"
    r"|tool_use_failed|output_parse_failed|failed to call a function|parse fc related"
    # gpt-oss behind vLLM; Bedrock; Cohere
    r"|harmonyerror|tokens remaining in message header|expecting start token"
    r"|invalid sequence as part of tooluse|invalid tool generation",
    re.IGNORECASE,
)


def error_text(body: bytes) -> str:
    """All texts of an answer, once each, in one line of at most 4,000 characters; the whole answer if it is no JSON.
    The server's sentence comes first, then the codes, places and wrapped errors beside it.
    """
    text = body.decode("utf-8", "replace")
    try:
        said = parse_json(text)
    except ValueError:
        said = text
    found = dict.fromkeys(" ".join(each[:_TEXT_CHARS].split()) for each in _texts(said, _DEPTH))
    return ("; ".join(filter(None, found)) or text)[:_WORDS_CHARS]


def is_overflow(status: int, words: str) -> bool:
    """
    Args:
        status: llama.cpp answers 500 where the context is full in the middle of a reply, TGI and Bedrock 424.
        words: the server's answer. One that names a quota is not about the context.
    """
    if status not in (*_FAILED, 413) or _QUOTA.search(words):
        return False
    return status == 413 or CONTEXT_FULL in words or bool(_OVERFLOWS.search(words) and not _OTHER_LIMIT.search(words))


def is_unread_call(status: int, words: str) -> bool:
    """
    Args:
        status: llama.cpp and Ollama answer 500, Groq 400, Bedrock 424.
    """
    return status in _FAILED and bool(_UNREAD_CALLS.search(words))


def is_too_large(body: bytes) -> bool:
    # A request that one of our own servers did not read says nothing about the context.
    error = _error_in(body)
    return isinstance(error, dict) and error.get("code") == TOO_LARGE


def true_status(status: int, body: bytes) -> int:
    # A router may pass on a refusal under 200, with the status inside.
    # replies with the ids of their tokens are long, and are parsed elsewhere
    error = _error_in(body) if status == 200 and b'"error"' in body else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if code in (*REFUSED, 413) else status


def _error_in(body: bytes) -> object:
    try:
        said = parse_json(body)
    except ValueError:
        return None
    return said.get("error") if isinstance(said, dict) else None


def _texts(said: object, depth: int) -> Iterator[str]:
    if isinstance(said, str):
        inner = _json_in(said)
        if inner is None:
            yield said
        said = inner
    if not depth or not isinstance(said, dict | list):
        return
    if isinstance(said, dict):
        order = [*(name for name in _FIRST if name in said), *(name for name in said if name not in _FIRST)]
        yield from (name for name in order if "messages" in name and name != "messages")  # `messages[2].reasoning`
        said = [said[name] for name in order if name not in _ECHOES]
    for each in said:
        yield from _texts(each, depth - 1)


def _json_in(text: str) -> object:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return parse_json(text)
    except ValueError:
        return None
