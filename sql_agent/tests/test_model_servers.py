"""`sql_agent.model_servers`: what a server's answer says, what is sent back, which names it serves."""

import json
import random

import pytest
from openai.types.chat import ChatCompletion

from sql_agent.model_servers.histories import is_overflow, refused_fields, sendable, words_of
from sql_agent.model_servers.listed import listed_models, lists_all, served_as
from sql_agent.model_servers.replies import ReplyError, read_reply
from sql_agent.tests.odd_server import ARGUMENTS, CALLS, CONTENTS, UNREADABLE, USAGES, call, reply


def read(answer, taken=()):
    return read_reply(answer if isinstance(answer, bytes) else json.dumps(answer), taken)


def said(answer, taken=()):
    return read(answer, taken)["choices"][0]["message"]


# replies ------------------------------------------------------------------------------------------------------------


def test_a_reply_in_openais_form_is_left_as_it_is():
    whole = reply({"content": None, "refusal": None, "reasoning_content": "Hm.", "tool_calls": [call()]})
    whole |= {"prompt_token_ids": [1, 2], "service_tier": None}
    whole["choices"][0] |= {"token_ids": [3], "logprobs": {"content": [{"token": "a", "logprob": -0.5}]}}
    assert read(whole) == whole


@pytest.mark.parametrize("message", CALLS.values(), ids=CALLS)
def test_a_call_is_read_in_every_form(message):
    (found,) = said(reply(message))["tool_calls"]
    assert (found["type"], found["function"]["name"]) == ("function", "execute_sql")
    assert json.loads(found["function"]["arguments"]) == ARGUMENTS
    assert isinstance(found["id"], str) and found["id"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(..., "{}"), (None, "{}"), ("", ""), ("{", "{"), ({}, "{}"), ([1], "[1]"), (5, "5"), (False, "false"),
     ({"é": 1}, '{"é": 1}')],
)  # fmt: skip
def test_arguments_are_a_text_and_none_are_an_empty_object(arguments, text):
    (found,) = said(reply({"tool_calls": [call(function={"arguments": arguments})]}))["tool_calls"]
    assert found["function"] == {"name": "execute_sql", "arguments": text}


def test_a_call_of_a_tool_of_another_kind_is_a_call_of_its_name():
    custom = {"id": "c", "type": "custom", "custom": {"name": "python", "input": "1 + 1"}}
    assert said(reply({"tool_calls": [custom]}))["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "python", "arguments": "1 + 1"}}
    ]


def test_what_a_server_wants_back_with_a_call_is_kept():
    signed = call(extra_content={"google": {"thought_signature": "s"}})
    assert said(reply({"tool_calls": [signed]}))["tool_calls"] == [signed]


def test_ids_that_were_there_before_are_replaced_so_that_no_two_calls_share_one():
    found = said(reply({"tool_calls": [call(), call(), call(id="b"), call(id="")]}), taken={"a"})["tool_calls"]
    ids = [each["id"] for each in found]
    assert ids[2] == "b" and len({*ids, "a"}) == 5
    assert all(len(new) == 9 and new.isalnum() for new in (ids[0], ids[1], ids[3]))  # as Mistral's templates ask
    assert said(reply({"tool_calls": [call(), call()]}), taken={"a"}) == said(
        reply({"tool_calls": [call(), call()]}), taken={"a"}
    )


@pytest.mark.parametrize(("content", "text"), CONTENTS.values(), ids=CONTENTS)
def test_content_is_a_text_or_null(content, text):
    assert said(reply({"content": content}))["content"] == text


def test_thoughts_among_the_parts_are_reasoning():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    message = said(reply({"content": [thinking, {"type": "text", "text": "4"}], "reasoning_content": None}))
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "4")


@pytest.mark.parametrize("usage", USAGES.values(), ids=USAGES)
def test_counts_that_are_not_known_are_none_and_not_0(usage):
    assert read(reply({"content": "4"}, usage=usage))["usage"] is None


def test_a_missing_sum_of_tokens_is_added_up_and_details_are_kept():
    usage = {
        "prompt_tokens": 10.0,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 8},
        "other": None,
    }
    assert read(reply({"content": "4"}, usage=usage))["usage"] == {
        "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 8},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("end", "read_as"), [("length", "length"), ("max_tokens", "length"), ("MAX_TOKENS", "length"), (None, None),
                         ("model_length", "length"), ("eos_token", "eos_token"), (3, None)],
)  # fmt: skip
def test_a_reply_that_was_cut_is_named_length(end, read_as):
    assert read(reply({"content": "4"}, choice={"finish_reason": end}))["choices"][0]["finish_reason"] == read_as


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE)
def test_an_answer_without_a_meaning_says_what_is_wrong(answer):
    with pytest.raises(ReplyError, match=r"it is no (JSON|chat completion)|is no text|no list|no function|aborted"):
        read(answer)


def test_the_error_repeats_what_the_server_says():
    with pytest.raises(ReplyError, match=r"Provider returned error.*up to /v1"):
        read(UNREADABLE["an_error"])


ODD = (
    None,
    ...,
    True,
    0,
    -1,
    1.5,
    10**400,
    "",
    "text",
    "\ud800",
    [],
    {},
    [None],
    [[]],
    {"type": "text"},
    [{"text": 1}],
)


def mutated(value, rng):
    """The value with one of its parts, at any depth, replaced by something odd or left out."""
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        place = rng.choice([*value] if isinstance(value, dict) else range(len(value)))
        new = mutated(value[place], rng)
        copy = {**value} if isinstance(value, dict) else [*value]
        if new is ...:
            del copy[place]
        else:
            copy[place] = new
        return copy
    return rng.choice(ODD)


def test_any_answer_is_a_reply_in_one_form_or_an_error_that_says_why():
    rng, called = random.Random(0), [call(), call(function={"arguments": {"a": 1}})]
    texts = {"content": [{"type": "text", "text": "4"}], "refusal": None, "reasoning_content": "Hm."}
    good = reply({**texts, "function_call": None, "tool_calls": called})
    kept = 0
    for _ in range(3_000):
        answer = good
        for _ in range(rng.randint(1, 3)):
            answer = mutated(answer, rng)
        try:
            found = read(None if answer is ... else answer)
        except ReplyError:
            continue
        kept += 1
        found["choices"][0] |= {"finish_reason": "stop", "logprobs": None}  # free words of servers
        ChatCompletion.model_validate(found)
        json.dumps(found, ensure_ascii=False).encode()
        assert read(found) == found
    assert 500 < kept < 2_800  # both kinds were tried


# what is sent back --------------------------------------------------------------------------------------------------

QUESTION = {"role": "user", "content": "How many?", "cache_control": {"type": "ephemeral"}}
LOOKED = {"role": "assistant", "content": None, "reasoning": "Hm.", "prefix": False, "tool_calls": [call(index=0)]}


def test_an_assistants_message_goes_back_with_its_reasoning_and_without_what_no_request_has():
    assert sendable([QUESTION, LOOKED]) == [
        QUESTION,
        {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [call()]},
    ]


def test_a_message_without_content_and_call_has_an_empty_text():
    assert sendable([{"role": "assistant", "content": None, "tool_calls": []}]) == [
        {"role": "assistant", "content": ""}
    ]


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("invalid message content type: <nil>", {"content"}),
        ("'messages.2' : property 'reasoning' is unsupported", {"reasoning"}),
        ("Extra inputs are not permitted", {"content", "reasoning"}),  # it names none: all that can be left out
        ("reasoning_content is not allowed", {"content", "reasoning"}),  # which was not sent
    ],
)
def test_a_refusal_names_the_fields_that_are_left_out(words, fields):
    left_out = refused_fields(words, [QUESTION, LOOKED], frozenset())
    assert left_out == fields
    sent = {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [call()]}
    sent |= {"content": ""} if "content" in fields else {}
    assert sendable([LOOKED], left_out) == [{n: v for n, v in sent.items() if n not in fields - {"content"}}]


def test_a_conversation_of_which_nothing_can_be_left_out_is_not_sent_again():
    assert refused_fields("bad content", [QUESTION, {"role": "assistant", "content": "4"}], frozenset()) == frozenset()
    assert refused_fields("bad content", [LOOKED], frozenset({"content", "reasoning"})) == frozenset()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "This model's maximum context length is 4096 tokens. However, you requested 4200 tokens"),
        (400, "the request exceeds the available context size, try increasing it"),
        (500, "Context size has been exceeded."),
        (400, "The input (4100 tokens) is longer than the model's context length (4096 tokens)."),
        (422, "Input validation error: `inputs` must have less than 4095 tokens. Given: 4100"),
        (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4100"),
        (400, "prompt is too long: 4100 tokens > 4096 maximum"),
        (400, "input length and `max_tokens` exceed context limit: 4000 + 512 > 4096"),
        (400, "The input token count (4100) exceeds the maximum number of tokens allowed (4096)."),
        (413, "Request too large for model"),
        (413, "<html>Request Entity Too Large</html>"),
        (400, "Prompt contains 4100 tokens, too large for model with 4096 maximum context length"),
        (400, "too many tokens: total number of tokens in the prompt cannot exceed 4081"),
        (400, "Input is too long for requested model."),
        (400, "This model's maximum prompt length is 4096 but the request contains 4100 tokens."),
        (400, "Your request exceeded model token limit: 4096"),
        (400, "Prompt length (4100) exceeds maximum input length (4096)"),
        (400, "Range of input length should be [1, 4096]"),
        (400, "litellm.ContextWindowExceededError: ..."),
    ],
)
def test_a_full_context_is_known_in_the_words_of_each_server(status, words):
    assert is_overflow(status, words)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (413, "Request too large for model on tokens per minute (TPM): Limit 6000, Requested 7000"),
        (400, "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40"),
        (400, "`max_tokens` must be less than or equal to `8192`, the maximum for this model's context_window"),
        (400, "max_tokens is too large: 40000. This model supports at most 16384 completion tokens"),
        (400, "Unsupported parameter: 'max_tokens' is not supported with this model."),
        (400, "Can only get item pairs from a mapping"),
        (422, "Extra inputs are not permitted"),
        (429, "maximum context length"),
        (500, "out of memory"),
        (200, "context length"),
    ],
)
def test_other_refusals_are_no_full_context(status, words):
    assert not is_overflow(status, words)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "no", "type": "x"}}', "no"),
        (b'{"error": "no", "error_type": "validation"}', "no"),
        (b'{"object": "error", "message": "no"}', "no"),
        (b'{"detail": [{"loc": ["body"]}]}', '[{"loc": ["body"]}]'),
        (b"<html>no</html>", "<html>no</html>"),
        (b'{"error": null}', '{"error": null}'),
        (b"\xff", "\ufffd"),
    ],
)
def test_the_sentence_of_an_error_is_found(body, words):
    assert words_of(body) == words


# names --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "listed", "name"),
    [
        ("m", ["m", "m:latest"], "m"),
        ("m", ["m:latest", "n:7b"], "m:latest"),
        ("m:latest", ["m"], "m"),
        ("m", ["models/m"], "models/m"),
        ("models/m", ["m"], "m"),
        ("openai/gpt-4o", ["openai/*", "anthropic/*"], "openai/*"),
        ("m", ["n", "n:latest"], None),
        ("m", ["m:7b"], None),  # another model
        ("gpt-4o", ["openai/*"], None),
    ],
)
def test_a_model_is_served_under_a_name_with_a_tag_a_prefix_or_a_wildcard(model, listed, name):
    assert served_as(model, listed) == name


@pytest.mark.parametrize(("listed", "all_"), [(["m"], True), (["m", "openai/*"], False), ([], False)])
def test_a_router_and_a_server_without_a_list_may_serve_other_names_too(listed, all_):
    assert lists_all(listed) is all_


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        ({"data": [{"id": "m", "root": "/x"}]}, ["m"]),
        ({"data": [{"id": None}, {"id": "m"}, None]}, ["m"]),
        ({"models": [{"name": "m"}, "n"]}, ["m", "n"]),
        (["m"], ["m"]),
        ({"data": None}, []),
        ({"object": "list"}, []),
        ([], []),
        (None, []),
        ("m", []),
    ],
)
def test_a_list_of_models_is_read_in_every_form(answer, names):
    assert list(listed_models(answer)) == names
