"""Which chat completions are refused before anything reads them, and that a real conversation never is."""

import json

import pytest

from sql_agent.model_address.request_limits import RequestLimits, RequestTooLargeError, error_body
from sql_agent.model_servers.refusals import TOO_LARGE, is_overflow, is_too_large

LIMITS = RequestLimits(4096)
USER = {"role": "user", "content": "hi"}


def refused(body: bytes | dict, limits: RequestLimits = LIMITS) -> str | None:
    """Why a body is refused; None if it passes."""
    try:
        limits.check(limits.parse(body if isinstance(body, bytes) else json.dumps(body).encode()))
    except ValueError as error:
        return error_body(error)["error"]["message"]
    return None


def test_limits_follow_from_the_context():
    # 1 MiB + 64 * 4096; 16,384 + 4 * 4096
    assert (LIMITS.body_bytes, LIMITS.values, LIMITS.parts) == (1_310_720, 32_768, 4096)
    assert RequestLimits(131_072).parts == 8192


@pytest.mark.parametrize(
    "message",
    [
        USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "assistant", "tool_calls": None},
        {"role": "tool", "tool_call_id": "a", "content": "[[[" * 50_000},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, "there", {"type": "image_url", "image_url": {}}]},
        {"role": "user", "content": '"\\"{[,]}"\\' * 10_000},
    ],
    ids=lambda message: str(message)[:60],
)
def test_what_an_agent_sends_passes(message):
    assert refused({"messages": [USER, message], "tools": None}) is None
    assert refused({"messages": [message] * 3, "tools": [{"type": "function", "function": {"name": "f"}}]}) is None


def test_a_conversation_that_fills_the_context_passes_whatever_its_letters():
    """Two tokens a message beside its text, and letters that JSON escapes to twelve bytes each."""
    messages = [{"role": "tool", "tool_call_id": f"call_{i}", "content": "\U0001f600"} for i in range(1300)]
    assert refused({"messages": messages}) is None


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (["\n"] * 16, None),
        ("x" * 1000, None),
        (["\n"] * 17, "the request does not fit: stop has more than 16 texts, or one of more than 1000 characters"),
        ("x" * 1001, "the request does not fit: stop has more than 16 texts, or one of more than 1000 characters"),
        ({"a": 1}, "the request does not fit: stop is neither a text nor a list of texts"),
    ],
)
def test_a_model_server_looks_for_few_stop_texts(stop, words):
    assert refused({"messages": [USER], "stop": stop}) == words


def test_a_body_is_utf_8_whose_brackets_can_be_counted():
    body = json.dumps({"messages": [USER], "\u2200": [[]] * 40_000}, ensure_ascii=False)
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        assert refused(body.encode(encoding)) is not None
    assert "commas and opening brackets" in refused(body.encode())


NESTED = b'{"messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param({"messages": [{}] * 66_000}, "132,001 commas and opening brackets", id="empty_messages"),
        pytest.param({"messages": [USER] * 4097}, "4,097 messages", id="many_valid_messages"),
        pytest.param({"messages": [{"role": "user", "content": ["x"] * 5000}]}, "5,001 messages", id="many_parts"),
        pytest.param({"messages": [USER], "tools": [{}] * 4096}, "4,097 messages", id="many_tools"),
        pytest.param({"messages": [{**USER, "tool_calls": [{}] * 4096}]}, "4,097 messages", id="many_calls"),
        pytest.param({"messages": [{**USER, "content": "x" * 1_400_000}]}, "1,400,0", id="a_long_text"),
        pytest.param({"messages": [USER], "tools": [{"a": [0] * 40_000}]}, "40,00", id="a_large_schema"),
        pytest.param(NESTED, "nested more than 64 deep", id="deep_lists"),
        pytest.param(NESTED[:10_000], "nested more than 64 deep", id="deep_and_never_closed"),
        pytest.param(b'{"a":' * 1000 + b"1" + b"}" * 1000, "nested more than 64 deep", id="deep_objects"),
        pytest.param(b'"' + b'\\"' * 700_000, "1,400,001 bytes", id="a_text_without_end"),
    ],
)
def test_what_is_too_large_is_refused_under_a_name_of_its_own(body, words):
    said = refused(body)
    assert said is not None and words in said
    assert "does not fit" not in said


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": [{}] * 100}, "messages[0] is no object with a role"),
        ({"messages": [USER, 5]}, "messages[1] is no object with a role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content is neither a text, nor null"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0] is neither a text"),
        ({"messages": [{**USER, "tool_calls": [1]}]}, "messages[0].tool_calls[0] is no object"),
        ({"messages": [USER], "tools": {"a": 1}}, "tools is no list"),
        ({"messages": {}}, "it holds no messages"),
        (b"[]", "it holds no messages"),
        (b"{", "the request does not fit: "),
        (b'{"messages": ' + b"1" * 5000 + b"}", "the request does not fit: "),
        (b"\xff", "the request does not fit: "),
        (b'"' + b'\\"' * 600_000, "the request does not fit: "),
    ],
    ids=str,
)
def test_of_what_is_wrong_the_first_fault_is_named_and_no_other(body, words):
    said = refused(body)
    assert said is not None and words in said and len(said) < 300


def test_its_code_is_known_and_its_words_are_not_those_of_a_full_context():
    with pytest.raises(RequestTooLargeError) as error:
        LIMITS.check({"messages": [USER] * 5000})
    body = error_body(error.value)
    assert is_too_large(json.dumps(body).encode()) and body["error"]["code"] == TOO_LARGE
    assert not is_overflow(400, body["error"]["message"])
