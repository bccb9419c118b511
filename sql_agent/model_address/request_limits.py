"""Limits of the size and the form of a chat completion before anything parses or validates it.

A model server validates every message against many schemas and reports each mismatch, so that a small body can keep it
busy for seconds; a parser of JSON fails on deep nesting. All limits follow from the context: a conversation that is
larger could not be answered anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentgrpo.json_text import MAX_DEPTH, depth, parse_json, structure
from sql_agent.model_servers.refusals import TOO_LARGE

# Variable with the context length of a model server, for its guard.
CONTEXT_TOKENS = "AGENTGRPO_CONTEXT_TOKENS"
UNKNOWN_CONTEXT = 131_072
# Bytes of a body for each token. Text has about 4 per token, and 12 if all its letters are escaped.
BYTES_PER_TOKEN = 64
# JSON values for each token; a message of three or more tokens is an object with two texts.
VALUES_PER_TOKEN = 4
MAX_PARTS = 8192
# A model server looks for each stop text after each token; OpenAI takes four.
MAX_STOPS, MAX_STOP_CHARS = 16, 1000


class RequestTooLargeError(ValueError):
    """The message says which limit a request exceeds."""


@dataclass(frozen=True)
class RequestLimits:
    context_tokens: int = UNKNOWN_CONTEXT

    @property
    def body_bytes(self) -> int:
        return (1 << 20) + BYTES_PER_TOKEN * self.context_tokens

    @property
    def values(self) -> int:
        """JSON values; a body has no more than it has commas and opening brackets outside of texts, and one."""
        return 16_384 + VALUES_PER_TOKEN * self.context_tokens

    @property
    def parts(self) -> int:
        """Messages, parts of their contents, calls and tools together; each takes a token at least."""
        return min(MAX_PARTS, self.context_tokens)

    def parse(self, body: bytes) -> Any:
        """
        Raises:
            RequestTooLargeError: the body is too long, or has too many values or too deep brackets.
            ValueError: it is no JSON in UTF-8.
        """
        if len(body) > self.body_bytes:
            raise self.too_long(len(body))
        found = structure(body)
        values = found.count(b",") + found.count(b"[") + found.count(b"{")
        if values > self.values:
            raise _too_large(f"{values:,} commas and opening brackets", f"{self.values:,}", self.context_tokens)
        if depth(found) > MAX_DEPTH:  # the arguments of a call are a text, whose brackets do not count
            raise RequestTooLargeError(f"the brackets of this call are nested more than {MAX_DEPTH} deep")
        return parse_json(body.decode())  # not as UTF-16, whose bytes were not counted right

    def too_long(self, size: int) -> RequestTooLargeError:
        return _too_large(f"{size:,} bytes", f"{self.body_bytes:,}", self.context_tokens)

    def check(self, request: object) -> None:
        """Check number and form of messages, their parts, calls, tools and stop texts; the first fault raises.

        Raises:
            RequestTooLargeError: there are too many.
            ValueError: one has not the form of the API; a model server would name every one that has not.
        """
        if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
            raise ValueError("it holds no messages; expected a chat completion")
        messages, tools = request["messages"], request.get("tools") or []
        parts = len(messages) + _length(tools)
        for message in messages:
            if isinstance(message, dict):
                parts += _length(message.get("content")) + _length(message.get("tool_calls"))
        if parts > self.parts:
            words = f"{parts:,} messages, parts of messages, calls and tools"
            raise _too_large(words, f"{self.parts:,}", self.context_tokens)
        for place, message in enumerate(messages):
            _check_message(message, f"messages[{place}]")
        _check_objects(tools, "tools")
        _check_stops(request.get("stop") or [])


def error_body(error: Exception) -> dict[str, dict[str, str | None]]:
    # OpenAI's form of an error.
    too_large = isinstance(error, RequestTooLargeError)
    words = str(error) if too_large else f"the request does not fit: {error}"
    return {"error": {"message": words, "type": "llm_proxy", "code": TOO_LARGE if too_large else None}}


def _too_large(found: str, limit: str, context_tokens: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"this call has {found}, and {limit} are taken where the context has {context_tokens:,} tokens; send less of "
        "the history and of what tools returned"
    )


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def _check_message(message: object, where: str) -> None:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f"{where} is no object with a role")
    content = message.get("content")
    if isinstance(content, list):
        for place, part in enumerate(content):
            if not isinstance(part, str) and not _is_part(part):
                raise ValueError(f"{where}.content[{place}] is neither a text nor a part that the API has")
    elif not isinstance(content, str | None):
        raise ValueError(f"{where}.content is neither a text, nor null, nor a list of parts")
    _check_objects(message.get("tool_calls") or [], f"{where}.tool_calls")


def _is_part(part: object) -> bool:
    return isinstance(part, dict) and (part.get("type") != "text" or isinstance(part.get("text"), str))


def _check_stops(given: object) -> None:
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("stop is neither a text nor a list of texts")
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise ValueError(f"stop has more than {MAX_STOPS} texts, or one of more than {MAX_STOP_CHARS} characters")


def _check_objects(values: object, where: str) -> None:
    if not isinstance(values, list):
        raise ValueError(f"{where} is no list")
    for place, value in enumerate(values):
        if not isinstance(value, dict):
            raise ValueError(f"{where}[{place}] is no object")
