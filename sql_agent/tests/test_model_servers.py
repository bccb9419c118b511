"""`sql_agent.model_servers`: what a server's answer says, what is sent back, which names it serves."""

import importlib.util
import json
import random
from pathlib import Path

import pytest
from openai.types.chat import ChatCompletion

from dbbench_adapter.datatypes import Score
from sql_agent.model_servers.ask import CONTENT_BESIDE_CALLS, refused_fields, sendable
from sql_agent.model_servers.calls_as_text import _PARSERS, CallsAsText, vllm_parser
from sql_agent.model_servers.deadline_client import listed_models, lists_all, served_as
from sql_agent.model_servers.refusals import error_text, is_overflow, is_unread_call, true_status
from sql_agent.model_servers.replies import ReplyError, read_reply
from sql_agent.tests.odd_server import ARGUMENTS, CALLS, CONTENTS, UNREADABLE, USAGES, call, reply, wrapped
from sql_agent.tests.records import make_record


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
        (
            error_text(json.dumps(wrapped({"error": {"message": "no", "param": "messages[1].reasoning"}})).encode()),
            {"reasoning"},
        ),
    ],
)
def test_a_refusal_names_the_fields_that_are_left_out(words, fields):
    left_out = refused_fields(words, [QUESTION, LOOKED], frozenset())
    assert left_out == fields
    sent = {"role": "assistant", "content": None, "reasoning": "Hm.", "tool_calls": [call()]}
    sent |= {"content": ""} if "content" in fields else {}
    assert sendable([LOOKED], left_out) == [{n: v for n, v in sent.items() if n not in fields - {"content"}}]


@pytest.mark.parametrize(
    "words",
    [
        "Assistant message must have either content or tool_calls, but not both.",
        "an assistant message cannot have both tool calls and content",
        "content and tool_calls may not be set at the same time",
    ],
)
def test_content_beside_calls_is_left_out_where_a_server_takes_only_one_of_both(words):
    said = {"role": "assistant", "content": "I look.", "reasoning": "Hm.", "tool_calls": [call()]}
    left_out = refused_fields(words, [QUESTION, said], frozenset())
    assert left_out == {CONTENT_BESIDE_CALLS}
    assert sendable([said], left_out) == [{"role": "assistant", "reasoning": "Hm.", "tool_calls": [call()]}]
    assert sendable([{"role": "assistant", "content": "4"}], left_out) == [{"role": "assistant", "content": "4"}]
    assert refused_fields(words, [QUESTION, said], left_out) == {"reasoning"}  # the words had another cause


def test_a_message_that_needs_content_or_calls_keeps_both():
    said = {"role": "assistant", "content": "I look.", "tool_calls": [call()]}
    assert refused_fields("Assistant message must have either content or tool_calls", [said], frozenset()) == set()


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
        (400, "Please reduce the length of the messages or completion. Current length is 4100 while limit is 4096"),
        (400, "Unable to submit request because the input token count is 4100 but model only supports up to 4096."),
        (400, "Requested tokens (4100) exceed context window of 4096"),
        (400, "Prompt 超长"),
        (400, "Prompt sequence length is greater than 4096, perhaps consider using `truncate_sequence`?"),
        (400, "Total tokens (4100) exceed the limit of 4096"),
        (400, "The sum of prompt tokens and completion tokens exceeds 4096"),
        (400, "maximum context length is 4096 tokens, and you asked for 4000 output tokens after 97 input tokens"),
        (400, "prompt with images is too long: 4100 tokens > 4096 maximum"),
        (400, "At body -> messages: Total length of messages exceeds limit"),
        (424, "Input is too long for requested model."),
        (400, "Provider returned error; openinference; prompt is too long: 4100 tokens > 4096 maximum"),
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
        (400, "max_tokens (8192) exceeds the limit of this model"),
        (400, "The number of completion tokens exceeds the maximum of 4096"),
        (
            400,
            "Requested 8000 output tokens, which exceeds the limit of 4096 tokens; invalid_request_error; max_tokens",
        ),
        (422, "max_new_tokens exceeds the maximum of 4096 tokens"),
        (400, "messages: attachments are too large"),
        (400, "messages with an image that is larger than 5 MB"),
        (400, "input: `top_k` has to be greater than 0"),
        (400, "Please reduce the length of the messages; rate_limit_exceeded"),
        (400, "the prompt is empty; the limit of stop words is exceeded"),  # of two texts, neither is about the context
        (200, "context length"),
    ],
)
def test_other_refusals_are_no_full_context(status, words):
    assert not is_overflow(status, words)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "no", "type": "x"}}', "no; x"),
        (b'{"error": {"code": "x", "message": "no", "param": "messages[2].name"}}', "no; x; messages[2].name"),
        (b'{"error": "no", "error_type": "validation"}', "no; validation"),
        (b'{"object": "error", "message": "no"}', "no; error"),
        (b'{"detail": [{"loc": ["body", 2, "name"], "msg": "no", "input": "yes"}]}', "no; body; name"),
        (b'{"errors": {"messages[2].reasoning": ["no", "no"]}}', "messages[2].reasoning; no"),
        (b'[{"error": {"code": 400, "message": "no"}}]', "no"),
        (b"<html>no</html>", "<html>no</html>"),
        (b'{"error": null}', '{"error": null}'),
        (b"\xff", "\ufffd"),
        (wrapped({"error": {"message": "too\n long"}}), "Provider returned error; too long; DeepInfra"),
        (wrapped("[] no"), "Provider returned error; [] no; DeepInfra"),
        (wrapped(wrapped("{")), "Provider returned error; {; DeepInfra"),  # a router behind a router
        (wrapped("a" * 5_000), f"Provider returned error; {'a' * 2_000}; DeepInfra"),
    ],
)
def test_all_that_an_error_says_is_found_and_its_sentence_first(body, words):
    assert error_text(body if isinstance(body, bytes) else json.dumps(body).encode()) == words


def test_the_words_of_an_error_have_a_limit():
    body = json.dumps({"error": [f"{n:05}" for n in range(10_000)]}).encode()
    assert len(error_text(body)) == 4_000 and error_text(b"[" * 100_000) == "[" * 2_000


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (500, "Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] parse error at line 1"),
        (500, 'Failed to parse input at pos 11: <tool_call>{"name": "execute_sql"; server_error'),
        (500, "error parsing tool call: raw='{', err=unexpected end of JSON input"),
        (400, "invalid tool call arguments"),
        (400, "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details."),
        (400, "tool call validation failed: attempted to call tool 'a' which was not in request; tool_use_failed"),
        (400, "Failed to parse fc related info to json format!"),
        (500, "openai_harmony.HarmonyError: unexpected tokens remaining in message header"),
        (424, "Model produced invalid sequence as part of ToolUse. Please refer to the model tool use guide."),
        (400, "Provider returned error; Failed to call a function; tool_use_failed; Groq"),
        (500, "error parsing tool call: raw='the prompt is too long', err=invalid character 't'"),
    ],
)
def test_a_call_that_a_server_could_not_parse_is_known_in_the_words_of_each_server(status, words):
    assert is_unread_call(status, words)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (500, "Internal Server Error"),
        (500, "Failed to parse tools: unsupported schema"),
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (400, "Invalid tool call id: it has to have nine letters"),
        (400, "maximum context length is 4096 tokens"),
        (503, "Failed to parse tool call arguments as JSON"),
        (200, "Failed to parse tool call arguments as JSON"),
    ],
)
def test_other_failures_are_no_call_that_could_not_be_parsed(status, words):
    assert not is_unread_call(status, words)


@pytest.mark.parametrize(
    ("status", "body", "true"),
    [
        (200, wrapped("no"), 400),
        (200, b'{"error": {"code": 413}}', 413),
        (200, b'{"error": {"code": 502}}', 200),  # it holds no reply, and is asked for again
        (200, b'{"error": {"code": "x"}}', 200),
        (200, b'{"error": null, "choices": []}', 200),
        (200, b"<html>", 200),
        (429, wrapped("no"), 429),
    ],
)
def test_a_refusal_under_status_200_has_the_status_that_it_names(status, body, true):
    assert true_status(status, body if isinstance(body, bytes) else json.dumps(body).encode()) == true


# calls as text ------------------------------------------------------------------------------------------------------

HERMES = '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "parser"),
    [
        (HERMES, "hermes"),
        (f"<think>Hm.</think>I look.\n{HERMES}", "hermes"),
        ("<tool_call>\n<function=execute_sql>\n<parameter=query>\nSELECT 1", "qwen3_coder"),
        ("<tool_call>execute_sql\n<arg_key>query</arg_key>", "glm45"),
        ('<function=execute_sql>{"query": "SELECT 1"}</function>', "llama3_json"),
        ('<|python_tag|>{"name": "execute_sql", "parameters": {}}', "llama3_json"),
        (' {"name": "execute_sql", "parameters": {"query": "SELECT 1"}}\n', "llama3_json"),
        ('[TOOL_CALLS][{"name": "execute_sql", "arguments": {}}]', "mistral"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>execute_sql", "deepseek_v3"),
        ('<tool_call>\n{"name": "execute_sql", "argum', None),  # cut: a parser would leave it in the text too
        ('<tool_call>\n{"name": execute_sql}\n</tool_call>', None),
        ("I write <tool_call> to call a tool.", None),
        ('{"score": 0.5}', None),
        ('{"name": "Ann"}', None),
        ("{", None),
        ("", None),
    ],
)
def test_a_whole_call_in_a_text_names_the_parser_that_would_read_it(text, parser):
    assert vllm_parser(text) == parser


def test_the_parsers_that_are_named_are_vllms():
    vllm = importlib.util.find_spec("vllm")
    assert vllm is not None and vllm.origin is not None
    # its import takes ten seconds, and its table is a literal
    table = (Path(vllm.origin).parent / "tool_parsers" / "__init__.py").read_text("utf-8")
    assert [parser for parser in _PARSERS.values() if f'"{parser}": (' not in table] == []


def test_calls_as_text_are_told_once_and_not_after_a_call_that_was_read():
    def played(*messages, tools=("execute_sql",)):
        return make_record(Score(0.0, "no_answer"), messages=[*messages], tools=None if tools is None else [*tools])

    as_text = {"role": "assistant", "content": HERMES}
    watch = CallsAsText()
    assert watch.note(played({"role": "user", "content": HERMES})) is None
    assert watch.note(played(as_text, tools=())) is None  # a protocol of texts
    assert "--enable-auto-tool-choice --tool-call-parser hermes" in str(watch.note(played(as_text)))
    assert watch.note(played(as_text)) is None
    assert "hermes" in str(CallsAsText().note(played(as_text, tools=None)))  # of an agent of the user's own
    reads = CallsAsText()
    assert [reads.note(played(LOOKED)), reads.note(played(as_text))] == [None, None]


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
