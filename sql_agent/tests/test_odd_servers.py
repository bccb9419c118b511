"""Rollouts, evaluations, own agents, the judge and APO's optimiser against servers with manners of their own."""

import dataclasses
import json
import os
import sqlite3
from contextlib import closing

import httpx
import pytest
from openai import APITimeoutError, AsyncOpenAI, InternalServerError

from dbbench_adapter.datatypes import Column, Gold, Score, Table, Task
from dbbench_adapter.engines import open_backend
from sql_agent.environments.dbbench import DbBench
from sql_agent.evaluate import main
from sql_agent.model_address.request_guard import RUN_TOKEN
from sql_agent.model_address.rollout_route import RolloutRoute
from sql_agent.model_address.signed_address import RolloutSampling, signed_prefix
from sql_agent.model_servers.chat_client import ChatClient
from sql_agent.model_servers.deadline_client import DeadlineClient
from sql_agent.play.served import run_rollout
from sql_agent.settings.groups import AgentConfig
from sql_agent.tests.odd_server import (
    CALLS,
    CONTENTS,
    UNREADABLE,
    USAGES,
    call,
    dripping,
    refusal,
    reply,
    serving,
    wrapped,
)
from sql_agent.tests.test_llm_judge import failure as judge_failure
from sql_agent.tests.test_llm_judge import judge, record
from sql_agent.user_agents.evaluation import SERVER, policy_served

QUESTION = Task(
    id="t-0", question="Which?", kind="other", tables=(Table("T", (Column("a"),), (("é",),)),), gold=Gold(("é",)),
)  # fmt: skip
COMMIT = {
    "content": None,
    "tool_calls": [call(id="end", function={"name": "commit_final_answer", "arguments": '{"answers": ["é"]}'})],
}
AGENT = '''
import agents

@agents.function_tool
def execute_sql(query: str) -> str:
    """Run a query."""
    return query

agent = agents.Agent(name="clerk", instructions="Look, then answer.", tools=[execute_sql])

def reward(record):
    return 1.0 if record.output == "done" and [name for name, _ in record.calls] == ["execute_sql"] else 0.0
'''


@pytest.fixture(scope="module")
def backend():
    with open_backend("sqlite") as sqlite:
        yield sqlite


@pytest.fixture
def play(backend, monkeypatch):
    """Plays the question against a server that answers each request with `answer(request)`."""
    monkeypatch.setattr("sql_agent.play.served.MAX_RETRIES", 0)

    async def play(answer):
        with serving(answer) as url:
            return await run_rollout(
                QUESTION, environment=DbBench("fc", backend=backend), base_url=url, model="m", config=AgentConfig()
            )

    return play


def evaluate(folder, answer, rows, *options, models=None, model="m"):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(answer, models) as url:
        main(["--base-url", url, "--model", model, "--tasks", str(folder / "rows.jsonl"),
              "--output", str(folder / "out.jsonl"), *options])  # fmt: skip
    return [json.loads(line) for line in (folder / "out.jsonl").read_text("utf-8").splitlines()]


def looked(request):
    """Whether the conversation holds the result of a call."""
    return any(message["role"] == "tool" for message in request["messages"])


def looking(first, last=COMMIT):
    """A model that answers with `first`, a message or a whole answer, until a call of it has a result."""
    return lambda request: _answer(last if looked(request) else first)


def _answer(said):
    return said if "choices" in said else reply(said)


# a reply in any form, in every command ------------------------------------------------------------------------------


@pytest.mark.parametrize("message", CALLS.values(), ids=CALLS)
async def test_a_rollout_runs_a_call_in_every_form(play, message):
    played = await play(looking({"content": None, **message}))
    assert (played.stop_reason, played.score.value, played.num_turns, played.malformed_calls) == ("answered", 1.0, 2, 0)
    assert [m["content"] for m in played.messages if m["role"] == "tool"] == ["[('é',)]", "Committed."]


@pytest.mark.parametrize("usage", USAGES.values(), ids=USAGES)
async def test_a_rollout_counts_only_tokens_that_are_known(play, usage):
    played = await play(looking(reply({"tool_calls": [call()]}, usage=usage)))
    assert (played.score.value, played.prompt_tokens, played.completion_tokens) == (1.0, 10, 5)  # of the second turn


@pytest.mark.parametrize("content", [content for content, _ in CONTENTS.values()], ids=CONTENTS)
async def test_a_rollout_takes_content_in_every_form(play, content):
    played = await play(looking({"content": content, "tool_calls": [call()]}))
    assert (played.score.value, json.dumps(played.to_dict(), ensure_ascii=False).encode() != b"") == (1.0, True)


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_rollout_whose_reply_cannot_be_read_is_lost_with_the_reason(play, answer):
    played = await play(lambda request: answer)
    assert (played.stop_reason, played.score) == ("model_unavailable", Score(None, "model_unavailable"))
    assert "the reply of the model server cannot be read: " in played.error


async def test_a_reply_that_cannot_be_read_is_asked_for_again(play, monkeypatch):
    monkeypatch.setattr("sql_agent.play.served.MAX_RETRIES", 1)
    answers = iter([UNREADABLE["an_error"], reply(COMMIT)])
    assert (await play(lambda request: next(answers))).score.value == 1.0


@pytest.fixture
def ferries(tmp_path):
    with closing(sqlite3.connect(tmp_path / "ferry.sqlite")) as database, database:
        database.execute("CREATE TABLE ferry (id INTEGER PRIMARY KEY, name TEXT)")
        database.execute("INSERT INTO ferry VALUES (1, 'Alba'), (2, 'Brae')")
    return ["--database", str(tmp_path / "ferry.sqlite")]


COUNT = "SELECT COUNT(*) FROM ferry"


def submit(sql, **changes):
    return {"tool_calls": [call(function={"name": "submit_sql", "arguments": {"sql": sql}}, **changes)]}


def test_an_evaluation_goes_on_after_a_reply_that_cannot_be_read(tmp_path, ferries, capsys, monkeypatch):
    monkeypatch.setattr("sql_agent.play.served.MAX_RETRIES", 0)
    rows = [{"question": f"How many, {n}?", "query": COUNT} for n in range(8)]
    broken = reply({"tool_calls": [{"id": "a", "function": {"arguments": "{}"}}]})

    def answer(request):
        return broken if "3" in request["messages"][-1]["content"] else reply(submit(COUNT))

    played = evaluate(tmp_path, answer, rows, *ferries)
    assert sorted(row["score"]["value"] or 0 for row in played) == [0, *[1.0] * 7]
    printed = capsys.readouterr().out
    assert "not judged: model_unavailable 1" in printed
    assert "the first model_unavailable: InternalServerError" in printed and "names no function" in printed


HALF = call(function={"arguments": r'{"query": "SELECT \ud83d"}'})


async def test_a_reply_that_nobody_can_go_on_from_ends_its_own_rollout(play):
    played = await play(lambda _: reply({"tool_calls": [HALF]}, choice={"finish_reason": "stop"}))
    assert played.stop_reason == "malformed"


async def test_a_task_that_no_request_can_hold_is_no_fault_of_the_policy(backend):
    environment = DbBench("fc", backend=backend)
    with serving(lambda request: reply(COMMIT)) as url:
        played = await run_rollout(
            dataclasses.replace(QUESTION, question="Which \ud83d?"),
            environment=environment, base_url=url, model="m", config=AgentConfig(),
        )  # fmt: skip
    assert (played.stop_reason, played.score) == ("environment_error", Score(None, "no_reply"))


@pytest.mark.parametrize(
    "words",
    ["Unsupported parameter: 'max_tokens' is not supported with this model.", "'temperature' does not support 0.0"],
)
def test_an_evaluation_prints_why_the_server_refused(tmp_path, ferries, capsys, words):
    (row,) = evaluate(tmp_path, lambda request: refusal(words), [{"question": "How many?", "query": COUNT}], *ferries)
    assert row["score"] == {"value": None, "reason": "model_unavailable", "parts": {}}
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    "sql", [f"```sql\n{COUNT};\n```", f"```\n{COUNT}\n```", f"\n```SQL {COUNT}```\n", f"```sqlite\n{COUNT}"]
)
def test_a_query_in_a_code_fence_is_the_query(tmp_path, ferries, sql):
    (row,) = evaluate(
        tmp_path, lambda request: reply(submit(sql)), [{"question": "How many?", "query": COUNT}], *ferries
    )
    assert (row["stop_reason"], row["score"]["value"]) == ("answered", 1.0)


@pytest.mark.parametrize("message", CALLS.values(), ids=CALLS)
def test_an_own_agent_runs_a_call_in_every_form(tmp_path, message):
    (tmp_path / "mine.py").write_text(AGENT)
    flags = ["--agent", f"{tmp_path}/mine.py:agent", "--reward", f"{tmp_path}/mine.py:reward"]
    answer = looking({"content": None, **message}, {"content": "done"})
    (row,) = evaluate(tmp_path, answer, [{"prompt": "How many?"}], *flags)
    assert (row["stop_reason"], row["score"]["value"], row["error"]) == ("answered", 1.0, None)


def test_an_own_agent_is_not_judged_for_a_reply_that_cannot_be_read(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(AGENT)
    flags = ["--agent", f"{tmp_path}/mine.py:agent", "--reward", f"{tmp_path}/mine.py:reward"]
    (row,) = evaluate(tmp_path, lambda request: UNREADABLE["a_picture"], [{"prompt": "How many?"}], *flags)
    assert row["score"] == {"value": None, "reason": "model_unavailable", "parts": {}}
    assert "content[0] is no text" in capsys.readouterr().out


def test_an_own_agent_whose_server_numbers_its_calls_anew_runs_each_of_them(tmp_path):
    (tmp_path / "mine.py").write_text(AGENT.replace('["execute_sql"]', '["execute_sql"] * 2'))
    flags = ["--agent", f"{tmp_path}/mine.py:agent", "--reward", f"{tmp_path}/mine.py:reward"]

    def answer(request):
        return reply({"content": "done"} if results(request) == 2 else {"tool_calls": [call(id="call_0")]})

    (row,) = evaluate(tmp_path, answer, [{"prompt": "How many?"}], *flags)
    ids = [m["tool_call_id"] for m in row["messages"] if m["role"] == "tool"]
    assert (row["score"]["value"], row["num_turns"], len({*ids})) == (1.0, 3, 2)


def test_an_agent_of_agent_lightning_may_pass_its_own_limit_beside_the_sampling_parameters(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import agentlightning as agl\nfrom openai import OpenAI\n\n@agl.rollout\ndef play(task, llm):\n"
        "    client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key)\n"
        "    said = client.chat.completions.create(model=llm.model, max_tokens=task['limit'],\n"
        "        messages=[{'role': 'user', 'content': task['prompt']}], **llm.sampling_parameters)\n"
        "    return float(said.choices[0].message.content == 'Eve')\n"
    )
    asked, rows = [], [{"prompt": "Who?", "limit": limit} for limit in (50, 100_000)]

    def answer(request):
        asked.append((request["max_tokens"], request["temperature"]))
        return reply({"content": "Eve"})

    played = evaluate(tmp_path, answer, rows, "--agent", f"{tmp_path}/mine.py:play")
    assert [row["score"]["value"] for row in played] == [1.0, 1.0]
    assert sorted(asked) == [(50, 0.0), (512, 0.0)]  # never more than the command's own


@pytest.mark.parametrize(
    ("content", "score"),
    [([{"type": "text", "text": '{"score": 0.5}'}], 0.5), ({"score": 0.5}, 0.5), ('{"score": 0.5}', 0.5)],
)
async def test_the_judge_reads_content_in_every_form(tmp_path, content, score):
    with serving(lambda request: reply({"content": content}, usage=None)) as url:
        assert await judge(url, tmp_path)(record()) == score


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_judges_reply_that_cannot_be_read_is_no_score(tmp_path, answer):
    with serving(lambda request: answer) as url:
        reason, words = await judge_failure(judge(url, tmp_path)(record()))
    assert reason == "judge_refused" and "answered what cannot be read: " in words


def optimiser(url):
    """The client that APO's search gives to agent-lightning, which reads `choices[0].message.content`."""
    return AsyncOpenAI(base_url=url, api_key="-", max_retries=0, http_client=ChatClient())


async def critique(url):
    said = await optimiser(url).chat.completions.create(model="m", messages=[{"role": "user", "content": "Edit."}])
    return said.choices[0].message.content


@pytest.mark.parametrize(("content", "text"), CONTENTS.values(), ids=CONTENTS)
async def test_the_optimiser_of_apo_reads_content_in_every_form(content, text):
    with serving(lambda request: reply({"content": content}, usage={"prompt_tokens": None})) as url:
        assert await critique(url) == text


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_reply_to_the_optimiser_that_cannot_be_read_is_an_error_of_openais_package(answer):
    with serving(lambda request: answer) as url, pytest.raises(InternalServerError, match="cannot be read"):
        await critique(url)


# histories that servers refuse --------------------------------------------------------------------------------------


def picky(words, refuses, first=None, status=400):
    """A server that refuses requests with a message of which `refuses` is true, and remembers what it was asked."""
    asked = []

    def answer(request):
        asked.append(request)
        if any(refuses(message) for message in request["messages"]):
            return refusal(words, status)
        return looking({"content": None, "tool_calls": [call()], **(first or {})})(request)

    return answer, asked


NULL = ("invalid message content type: <nil>", lambda message: message["content"] is None, {})
REASONING = (
    "'messages.2' : for 'role:assistant' property 'reasoning' is unsupported",
    lambda message: "reasoning" in message, {"reasoning": "I look first."},
)  # fmt: skip
UNNAMED = ("Extra inputs are not permitted", lambda m: "reasoning_content" in m, {"reasoning_content": "Hm."})
BOTH = (
    "content and reasoning are not like this",
    lambda m: m["content"] is None or "reasoning" in m, {"reasoning": "Hm."},
)  # fmt: skip


@pytest.mark.parametrize("status", [200, 400])
async def test_what_a_router_says_that_a_server_refused_is_left_out(play, status):
    asked, said = [], {"reasoning": "Hm.", "reasoning_content": "Hm."}
    inner = {"error": {"message": "property 'reasoning' is unsupported", "code": 400}}

    def answer(request):
        asked.append([{*message} & {*said} for message in request["messages"] if message["role"] == "assistant"])
        if asked[-1] and "reasoning" in asked[-1][0]:
            return status, wrapped(inner)
        return looking({"tool_calls": [call()], **said})(request)

    assert (await play(answer)).score.value == 1.0
    assert asked == [[], [{"reasoning", "reasoning_content"}], [{"reasoning_content"}]]


async def test_a_refusal_under_status_200_that_helps_nobody_is_told_with_its_words(play):
    played = await play(lambda request: wrapped("temperature does not support 0.0"))
    assert (played.stop_reason, played.score.value) == ("model_unavailable", None)
    assert "Provider returned error; temperature does not support 0.0; DeepInfra" in played.error


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((500, b"out of cards"), "InternalServerError: Error code: 500 - out of cards"),
        ((401, {"detail": "No key."}), "AuthenticationError: Error code: 401 - No key."),
        ((429, {"error": {"message": "No more.", "code": "insufficient_quota"}}),
         "RateLimitError: Error code: 429 - No more.; insufficient_quota"),
        ((404, {"error": "Not Found", "message": "no model qwen-7"}),
         "NotFoundError: Error code: 404 - no model qwen-7; Not Found"),
        ((500, {"error": {"message": "half \ud83d \x1b[2J"}}),
         r"InternalServerError: Error code: 500 - half \ud83d \x1b[2J"),
        ((500, b""), "InternalServerError: Error code: 500"),
    ],
    ids=["text", "detail", "code", "beside", "unprintable", "empty"],
)  # fmt: skip
async def test_a_rollout_that_a_server_fails_has_the_texts_that_the_server_sent(play, answer, told):
    assert (await play(lambda request: answer)).error == told


async def test_a_server_that_takes_content_or_calls_gets_calls_without_content(play):
    """As those of Mistral's models; a reply without a call keeps its content."""
    answer, asked = picky(
        "Assistant message must have either content or tool_calls, but not both.",
        lambda m: bool(m.get("content")) and bool(m.get("tool_calls")), {"content": "I look."},
    )  # fmt: skip
    played = await play(answer)
    assert (played.score.value, len(asked)) == (1.0, 3)
    assert [m["content"] for m in played.messages if m["role"] == "assistant"] == ["I look.", None]


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("manner", [NULL, REASONING, UNNAMED, BOTH], ids=["null", "reasoning", "unnamed", "both"])
async def test_a_refused_history_is_sent_once_more_without_what_was_refused(play, manner, status):
    answer, asked = picky(*manner, status=status)
    played = await play(answer)
    assert (played.stop_reason, played.score.value, len(asked)) == ("answered", 1.0, 3)


async def test_what_no_request_has_is_not_sent_at_all(play):
    answer, asked = picky("no", lambda m: "prefix" in m or "annotations" in m, {"prefix": False, "annotations": []})
    assert (await play(answer)).score.value == 1.0
    assert len(asked) == 2


async def test_a_history_that_is_refused_all_the_same_is_not_sent_for_ever(play):
    answer, asked = picky("content is wrong", lambda m: m["role"] == "assistant", {"reasoning": "Hm."})
    played = await play(answer)
    assert (played.stop_reason, played.num_turns, "content is wrong" in played.error) == ("model_unavailable", 1, True)
    assert len(asked) == 4  # as it was, without a null, without reasoning


def test_an_own_agents_history_is_sent_without_what_was_refused_and_its_later_calls_too(tmp_path):
    (tmp_path / "mine.py").write_text(AGENT.replace('["execute_sql"]', '["execute_sql"] * 2'))
    asked = []

    def answer(request):
        asked.append(results(request))
        if not ok(request):
            return refusal("content may not be null")
        return reply({"content": "done"} if results(request) == 2 else {"content": None, "tool_calls": [call()]})

    flags = ["--agent", f"{tmp_path}/mine.py:agent", "--reward", f"{tmp_path}/mine.py:reward", "--concurrency", "1"]
    played = evaluate(tmp_path, answer, [{"prompt": "How many?"}, {"prompt": "How much?"}], *flags)
    assert [row["score"]["value"] for row in played] == [1.0, 1.0]
    assert asked == [0, 1, 1, 2] * 2  # one refusal in each rollout


async def test_what_one_rollout_had_refused_is_sent_for_all_others(monkeypatch):
    monkeypatch.setenv(RUN_TOKEN, "the-token-of-this-run")
    asked = []

    def answer(request):
        asked.append([message.get("reasoning_content") for message in request["messages"]])
        odd = any(not isinstance(reason, str | None) for reason in asked[-1])
        return refusal("reasoning_content: expected a text") if odd else reply({"content": "done"})

    with serving(answer) as url:
        monkeypatch.setattr(RolloutRoute, "servers", {"policy-0": url})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(RolloutRoute(None)), base_url="http://x") as client:
            for rollout, reason in (("ro-1", 7), ("ro-2", "Hm.")):
                sampling = RolloutSampling(rollout, "at-1", "policy-0", 0.7, 64)
                prefix = signed_prefix(sampling, "the-token-of-this-run")
                said = {"role": "assistant", "content": "Hi.", "reasoning_content": reason}
                path = f"{prefix}/rollout/{rollout}/attempt/at-1/v1/chat/completions"
                assert (await client.post(path, json={"messages": [said]})).status_code == 200
    assert asked == [[7], [None], ["Hm."]]


async def test_a_call_that_new_weights_ended_is_asked_again_and_its_turn_says_so(monkeypatch):
    """As vLLM answers an aborted request. The text of a reply spells the same in escaped quotes, and is no abort."""
    monkeypatch.setenv(RUN_TOKEN, "the-token-of-this-run")
    written, text = [], 'it said "finish_reason":"abort"'

    def answer(_):
        body = (
            reply({"content": "half a rep"}, choice={"finish_reason": aborted.pop()})
            if aborted
            else reply({"content": text})
        )
        return 200, json.dumps(body, separators=(",", ":")).encode()  # without spaces, as vLLM writes it

    async def write(turn):
        written.append((turn.answer["choices"][0]["message"]["content"], turn.asked_again))

    with serving(answer) as url:
        monkeypatch.setattr(RolloutRoute, "servers", {"policy-0": url})
        monkeypatch.setattr(RolloutRoute, "write", staticmethod(write))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(RolloutRoute(None)), base_url="http://x") as client:
            path = f"{signed_prefix(SAMPLED, 'the-token-of-this-run')}/rollout/ro-1/attempt/at-1/v1/chat/completions"
            asking = {"messages": [{"role": "user", "content": "Hi."}]}
            aborted = ["abort"] * 2
            assert (await client.post(path, json=asking)).status_code == 200
            aborted = ["abort"] * 40
            assert (await client.post(path, json=asking)).status_code == 502  # not for ever
    assert written == [(text, 2)]


SAMPLED = RolloutSampling("ro-1", "at-1", "policy-0", 0.7, 64)


def results(request):
    return sum(message["role"] == "tool" for message in request["messages"])


def ok(request):
    return all(message.get("content") is not None for message in request["messages"])


OVERFLOWS = [
    refusal("the request exceeds the available context size, try increasing it"),
    refusal("Context size has been exceeded.", 500),
    refusal("Input validation error: `inputs` must have less than 4095 tokens. Given: 4100", 422),
    refusal("prompt is too long: 4100 tokens > 4096 maximum"),
    refusal("The input token count (4100) exceeds the maximum number of tokens allowed (4096)."),
    (413, b"<html>Request Entity Too Large</html>"),
    (400, {"error": {"message": "Please shorten it.", "code": "context_length_exceeded"}}),
    (400, wrapped({"error": {"message": "This model's maximum context length is 4096 tokens."}})),
    (200, wrapped({"error": {"message": "This model's maximum context length is 4096 tokens."}})),
]
SERVERS = [
    "llama.cpp", "llama.cpp_in_a_reply", "TGI", "Anthropic", "Gemini", "413", "a_code", "a_router", "a_router_with_200",
]  # fmt: skip


@pytest.mark.parametrize("full", OVERFLOWS, ids=SERVERS)
async def test_a_full_context_is_the_end_max_tokens_in_the_words_of_each_server(play, full):
    played = await play(lambda request: full if looked(request) else reply({"tool_calls": [call()]}))
    assert (played.stop_reason, played.score.value, played.num_turns) == ("max_tokens", 0.0, 1)


async def test_what_our_own_servers_do_not_read_is_not_sent_again_and_out_of_limits_as_a_full_context_is(play):
    """A policy under protocol lab was lost by 36 tokens, `SELECT REPEAT('x',60000) FROM t a, t b LIMIT 40`."""
    error = {"message": "the request is too large for the context length", "code": "request_too_large"}
    asked = []

    def answer(request):
        asked.append(request)
        return (400, {"error": error}) if looked(request) else reply({"tool_calls": [call()]})

    played = await play(answer)
    assert (played.stop_reason, played.score.value, played.num_turns) == ("max_tokens", 0.0, 1)
    assert "too large for the context length" in played.error and len(asked) == 2


@pytest.mark.parametrize("full", OVERFLOWS, ids=SERVERS)
def test_a_full_context_ends_an_own_agents_rollout_as_max_tokens(tmp_path, full):
    (tmp_path / "mine.py").write_text(AGENT)
    flags = ["--agent", f"{tmp_path}/mine.py:agent", "--reward", f"{tmp_path}/mine.py:reward"]
    answer = lambda request: full if looked(request) else reply({"tool_calls": [call()]})  # noqa: E731
    (row,) = evaluate(tmp_path, answer, [{"prompt": "How many?"}], *flags)
    assert (row["stop_reason"], row["score"]["value"], row["num_turns"]) == ("max_tokens", 0.0, 1)


# calls that a server cannot parse ------------------------------------------------------------------------------------

UNREAD = [
    refusal("Failed to parse tool call arguments as JSON: [json.exception.parse_error.101] parse error", 500),
    refusal("Failed to parse input at pos 0: <tool_call>", 500),
    refusal("error parsing tool call: raw='{', err=unexpected end of JSON input", 500),
    (400, {"error": {"message": "Failed to call a function.", "code": "tool_use_failed", "failed_generation": "<f"}}),
    (400, wrapped({"error": {"message": "Please adjust your prompt.", "code": "tool_use_failed"}})),
]
PARSERS = ["llama.cpp", "llama.cpp_text", "Ollama", "Groq", "a_router"]


@pytest.mark.parametrize("unread", UNREAD, ids=PARSERS)
@pytest.mark.parametrize("first", [True, False])
async def test_a_call_that_the_server_cannot_parse_ends_its_rollout_as_malformed(play, monkeypatch, unread, first):
    monkeypatch.setattr("sql_agent.play.served.MAX_RETRIES", 2)  # the policy gets no second try either
    asked = []

    def answer(request):
        asked.append(request)
        return unread if first or looked(request) else reply({"tool_calls": [call()]})

    played = await play(answer)
    assert (played.stop_reason, played.score.value, len(asked)) == ("malformed", 0.0, 1 if first else 2)
    assert "unreadable_tool_call" in played.error


@pytest.mark.parametrize("unread", UNREAD, ids=PARSERS)
def test_an_own_agent_is_told_that_its_call_could_not_be_parsed(tmp_path, unread):
    (tmp_path / "mine.py").write_text(AGENT)
    flags = ["--agent", f"{tmp_path}/mine.py:agent", "--reward", f"{tmp_path}/mine.py:reward"]
    (row,) = evaluate(tmp_path, lambda request: unread, [{"prompt": "How many?"}], *flags)
    assert (row["stop_reason"], row["score"]["value"]) == ("malformed", 0.0)


# servers that never finish ------------------------------------------------------------------------------------------


async def test_a_turn_has_one_deadline_whatever_arrives(backend, monkeypatch):
    monkeypatch.setattr("sql_agent.play.served.MAX_RETRIES", 0)
    with dripping() as url:
        played = await run_rollout(
            QUESTION, environment=DbBench("fc", backend=backend), base_url=url, model="m",
            config=AgentConfig(statement_timeout_s=0.1, turn_timeout_s=0.2, rollout_timeout_s=20),
        )  # fmt: skip
    assert (played.stop_reason, played.error) == ("model_unavailable", "APITimeoutError: Request timed out.")


def test_a_call_of_an_own_agent_has_one_deadline_whatever_arrives():
    with dripping() as url, policy_served(url, "m", "-", timeout_s=0.2) as address:
        prefix = signed_prefix(RolloutSampling("ro", "1", SERVER, 0.0, 16), os.environ[RUN_TOKEN])
        answer = httpx.post(
            f"{address}{prefix}/rollout/ro/attempt/1/v1/chat/completions",
            json={"model": SERVER, "messages": [{"role": "user", "content": "Who?"}]}, timeout=20,
        )  # fmt: skip
    assert answer.status_code == 502 and "did not answer: TimeoutError" in answer.text


async def test_a_call_of_apos_optimiser_has_one_deadline_whatever_arrives():
    asked = {"model": "m", "messages": [{"role": "user", "content": "Edit."}]}
    with dripping() as url, pytest.raises(APITimeoutError):
        await optimiser(url).with_options(timeout=1.0).chat.completions.create(**asked)  # no byte is so late


async def test_a_judge_has_one_deadline_whatever_arrives(tmp_path):
    with dripping() as url:
        reason, words = await judge_failure(judge(url, tmp_path, timeout_s=0.2)(record()))
    assert (reason, "judge.timeout_s=0.2" in words) == ("judge_unavailable", True)


def test_the_check_has_one_deadline_whatever_arrives():
    with dripping(models=True) as url, DeadlineClient("-") as client:
        with pytest.raises(httpx.ReadTimeout, match=r"models gave no whole answer within 0\.2 s"):
            client.get(f"{url}/models", timeout_s=0.2)
        with pytest.raises(httpx.ReadTimeout, match="no whole answer"):
            client.post(f"{url}/chat/completions", {}, timeout_s=0.2)


# calls as text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offered", [True, False])
def test_an_evaluation_says_once_that_the_server_reads_no_calls(tmp_path, ferries, capsys, offered):
    text = '<tool_call>\n{"name": "submit_sql", "arguments": {"sql": "SELECT 2"}}\n</tool_call>'
    rows = [{"question": f"How many, {n}?", "query": COUNT} for n in range(3)]
    answer = lambda request: reply({"content": text} if offered else submit(COUNT))  # noqa: E731
    evaluate(tmp_path, answer, rows, *ferries)
    assert capsys.readouterr().out.count("--enable-auto-tool-choice --tool-call-parser hermes") == offered


# the check before the first rollout ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "models"),
    [
        ("m", {"data": [{"id": "m:latest"}, {"id": "n:7b"}]}),
        ("m", {"data": [{"id": "models/m"}]}),
        ("openai/m", {"data": [{"id": "openai/*"}, {"id": "anthropic/*"}]}),
        ("m", {"data": [{"id": "openai/*"}]}),
        ("m", {"models": [{"name": "m"}]}),
        ("m", {"data": [{"id": None}, {"id": "m"}]}),
        ("m", {"data": None}),
        ("m", []),
        ("m", 404),
        ("m", 405),
    ],
)
def test_a_server_that_lists_its_models_in_its_own_way_or_not_at_all_is_evaluated(tmp_path, ferries, model, models):
    rows = [{"question": "How many?", "query": COUNT}]
    (row,) = evaluate(tmp_path, lambda request: reply(submit(COUNT)), rows, *ferries, models=models, model=model)
    assert row["score"]["value"] == 1.0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refusal("no model m", 404), r"no model server at .*it does not list 'm', and .*answers 404: no model m"),
        (refusal("bad key", 401), r"answers 401: bad key"),
        ({"hello": "world"}, r"it is no chat completion: .*hello"),
    ],
)
def test_a_server_without_a_list_that_gives_no_reply_is_refused_in_its_own_words(tmp_path, ferries, answer, words):
    with pytest.raises(SystemExit, match=words):
        evaluate(tmp_path, lambda request: answer, [{"question": "How many?", "query": COUNT}], *ferries, models=404)
