"""`play.served`: every end of a rollout and every rule of the protocol, against a scripted endpoint over HTTP."""

import json
import time
from types import SimpleNamespace

import pytest

from dbbench_adapter.datatypes import Column, Gold, Score, Table, Task
from dbbench_adapter.engines import BackendUnavailable, open_backend
from dbbench_adapter.protocols import PROTOCOLS
from sql_agent.environments.dbbench import DbBench
from sql_agent.oracle import app, call, calls, recite, serve
from sql_agent.play.served import run_rollout
from sql_agent.settings.groups import AgentConfig

FRUIT = Table("Fruit", (Column("Name"), Column("Price")), (("Plum", "5"), ("Pear", "4")))
CHEAPEST = Task(
    id="t-0", question="Which fruit is cheapest?", kind="other", tables=(FRUIT,), gold=Gold(answers=("Pear",)),
    table_note="The table is called Fruit and has these headers: Name, Price.",
)  # fmt: skip
SET_PRICE = Task(
    id="t-1", question="Set the price of Plum to 7.", kind="UPDATE", tables=(FRUIT,),
    gold=Gold(sql="UPDATE Fruit SET Price = '7' WHERE Name = 'Plum'"),
)  # fmt: skip
LOOK = "SELECT Name FROM Fruit ORDER BY Price LIMIT 1"
GREEDY = AgentConfig(temperature=0.0)


def sql(query, call_id="sql"):
    return call("execute_sql", {"query": query}, call_id)


def commit(*answers):
    return call("commit_final_answer", {"answers": list(answers)}, "commit")


def say(text, **more):
    return {"role": "assistant", "content": text, **more}


@pytest.fixture(scope="module")
def backend():
    with open_backend("sqlite") as sqlite:
        yield sqlite


@pytest.fixture
def play(backend):
    """Plays a task against fixed replies and returns the record; `play.requests` holds what went over the wire."""

    async def play(
        *replies, task=CHEAPEST, config=GREEDY, backend=backend, judge="fc", seed=None, hangs_from_turn=None, **endpoint
    ):
        play.requests = []

        def seen(request):
            play.requests.append(request)
            if len(play.requests) == hangs_from_turn:
                time.sleep(2.0)  # of the whole server

        with serve(app(recite(replies), on_request=seen, **endpoint)) as url:
            where = {"base_url": url, "model": "oracle", "environment": DbBench(judge, config.protocol, backend)}
            return await run_rollout(task, **where, config=config, on_reply=play.replies.append, seed=seed)

    play.replies = []
    return play


def tool_results(record):
    return [message["content"] for message in record.messages if message["role"] == "tool"]


# ends ---------------------------------------------------------------------------------------------------------------


async def test_a_committed_answer_ends_the_rollout_and_is_judged(play):
    record = await play(calls(sql(LOOK)), calls(commit("Pear")))
    assert (record.stop_reason, record.score.value, record.num_turns) == ("answered", 1.0, 2)
    assert record.tools == PROTOCOLS["fc"].tools
    assert tool_results(record)[0] == "[('Pear',)]"
    assert [reply.choices[0].finish_reason for reply in play.replies] == ["tool_calls", "tool_calls"]


async def test_a_wrong_answer_scores_zero(play):
    record = await play(calls(commit("Plum")))
    assert (record.stop_reason, record.score.value, record.num_turns) == ("answered", 0.0, 1)


async def test_a_change_is_judged_by_what_it_left_behind(play):
    record = await play(calls(sql("UPDATE Fruit SET Price = 7 WHERE Name = 'Plum'")), calls(commit()), task=SET_PRICE)
    assert (record.stop_reason, record.score.value) == ("answered", 1.0)


async def test_turns_run_out(play):
    record = await play(calls(sql(LOOK)), config=AgentConfig(max_turns=3))
    assert (record.stop_reason, record.num_turns, len(play.requests)) == ("max_turns", 3, 3)
    assert record.score.value == 0.0  # nothing was committed


async def test_replies_without_a_call_use_up_turns_like_any_other(play):
    record = await play(say("Let me think."), calls(sql(LOOK)), config=AgentConfig(max_turns=4))
    assert (record.stop_reason, record.num_turns, len(play.requests)) == ("max_turns", 4, 4)


async def test_a_reply_cut_by_its_token_limit_ends_the_rollout(play):
    record = await play(calls(sql(LOOK)), say("SELECT Na", finish_reason="length"))
    assert (record.stop_reason, record.score.value, record.num_turns) == ("max_tokens", 0.0, 2)
    assert record.messages[-1] == {"role": "assistant", "content": "SELECT Na"}


async def test_a_full_context_ends_the_rollout_as_max_tokens(play):
    full = say("This model's maximum context length is 1024 tokens. However, you requested 1100.", status=400)
    record = await play(calls(sql(LOOK)), full)
    assert (record.stop_reason, record.score.value, record.num_turns) == ("max_tokens", 0.0, 1)
    assert "1024 tokens" in record.error


class SlowBackend:
    """Its first statement takes `seconds`, and the limit of a statement does not end it."""

    def __init__(self, backend, seconds):
        self._backend, self._seconds = backend, seconds
        self.closed_while_running = None

    def open(self, *args, **kwargs):
        database = self._backend.open(*args, **kwargs)
        run, close, running = database.run, database.close, []

        def slowly(query):
            running.append(True)
            time.sleep(self._seconds)
            running.pop()
            return run(query)

        def closing():
            self.closed_while_running = bool(running)
            close()

        database.run, database.close = slowly, closing
        return database


# three tries of a turn fit: 3 x 0.4 = 1.2 <= 1.25
DEADLINE = AgentConfig(statement_timeout_s=0.1, turn_timeout_s=0.4, rollout_timeout_s=1.25)


async def test_a_deadline_while_the_model_answers_is_nobodys_score(play):
    # replies end 0.35, 0.70 and 1.05 s after the start; at 1.25 s the fourth is on its way, unless other work is
    for _ in range(3):
        record = await play(calls(sql(LOOK)), config=DEADLINE, latency_s=0.35)
        if record.score.reason != "rollout_deadline":
            break
    assert (record.stop_reason, record.score) == ("timeout", Score(None, "model_deadline"))
    assert record.error == "its rollout_timeout_s=1.25 passed with a model call open"
    assert 1.25 <= record.seconds < 2.0


async def test_a_model_server_that_hangs_from_the_second_turn_on_is_nobodys_score(play):
    # tries of 0.4 s with pauses of 0.4 to 0.5 and 0.8 to 1 s between them: 2.4 s at least, beyond the rollout's 1.25
    record = await play(calls(sql(LOOK)), config=DEADLINE, hangs_from_turn=2)
    assert (record.stop_reason, record.score, record.num_turns) == ("timeout", Score(None, "model_deadline"), 1)


async def test_a_deadline_while_the_database_works_is_nobodys_score(play, backend):
    record = await play(calls(sql(LOOK)), config=DEADLINE, backend=SlowBackend(backend, 1.5))
    assert (record.stop_reason, record.score, record.num_turns) == ("timeout", Score(None, "db_deadline"), 1)


async def test_a_deadline_while_nothing_but_the_machine_is_slow_is_nobodys_score(play):
    def stand_still(_reply):
        time.sleep(1.3)

    play.replies = SimpleNamespace(append=stand_still)
    record = await play(say("Let me think."), config=DEADLINE)
    assert (record.stop_reason, record.score, record.num_turns) == ("timeout", Score(None, "rollout_deadline"), 1)


async def test_a_deadline_takes_the_score_of_a_right_change_too(play):
    """Otherwise a slow machine would pick which rollouts of a group are trained on by how they ended."""
    change = operate("UPDATE Fruit SET Price = 7 WHERE Name = 'Plum'")  # which the `text` judge takes uncommitted
    config = DEADLINE.model_copy(update={"protocol": "text"})
    record = await play(say(""), change, task=SET_PRICE, config=config, judge="text", hangs_from_turn=2)
    assert (record.score, record.num_turns) == (Score(None, "model_deadline"), 1)


async def test_a_reply_that_the_model_server_broke_off_is_not_the_policys_doing(play):
    record = await play(calls(sql(LOOK)), say("SELECT Na", finish_reason="abort"))
    assert (record.stop_reason, record.score) == ("model_unavailable", Score(None, "model_unavailable"))
    assert "finish_reason abort" in record.error


async def test_a_request_refused_for_malformed_calls_ends_as_malformed(play):
    refused = say("Can only get item pairs from a mapping", status=400)
    record = await play(calls(call("execute_sql", "SELECT 1")), refused)
    assert (record.stop_reason, record.score.value, record.malformed_calls) == ("malformed", 0.0, 1)


async def test_an_endpoint_that_fails_is_not_the_policys_doing(play, monkeypatch):
    monkeypatch.setattr("sql_agent.play.served.MAX_RETRIES", 0)
    record = await play(calls(sql(LOOK)), say("out of memory", status=500))
    assert (record.stop_reason, record.score) == ("model_unavailable", Score(None, "model_unavailable"))
    assert "out of memory" in record.error


async def test_no_endpoint_at_all(backend, monkeypatch):
    monkeypatch.setattr("sql_agent.play.served.MAX_RETRIES", 0)
    with serve(app(recite([calls(commit())]))) as url:
        pass  # gone again, its port free
    environment = DbBench("fc", backend=backend)
    record = await run_rollout(CHEAPEST, base_url=url, model="oracle", environment=environment, config=GREEDY)
    assert (record.stop_reason, record.score, record.num_turns) == (
        "model_unavailable", Score(None, "model_unavailable"), 0,
    )  # fmt: skip


class GoneBackend:
    """Stands in for a server that dies: `open` fails, or the first statement does."""

    def __init__(self, backend, at_once):
        self._backend, self._at_once = backend, at_once

    def open(self, *args, **kwargs):
        if self._at_once:
            raise BackendUnavailable("the server is gone")
        database = self._backend.open(*args, **kwargs)

        def run(_sql):
            raise BackendUnavailable("the server is gone")

        database.run = run
        return database


@pytest.mark.parametrize("at_once", [True, False], ids=["before_the_first_turn", "in_a_statement"])
async def test_a_database_that_is_gone_is_not_the_policys_doing(play, backend, at_once):
    record = await play(calls(sql(LOOK)), calls(commit("Pear")), backend=GoneBackend(backend, at_once))
    assert (record.stop_reason, record.score) == ("db_unavailable", Score(None, "db_unavailable"))
    assert "the server is gone" in record.error


async def test_a_table_that_cannot_be_made_is_the_tasks_fault(play):
    ragged = Task(
        id="t-2", question="?", kind="other", tables=(Table("T", (Column("a"),), (("1", "2"),)),),
        gold=Gold(answers=("1",)),
    )  # fmt: skip
    record = await play(calls(commit("1")), task=ragged)
    assert (record.stop_reason, record.score) == ("table_error", Score(None, "table_error"))
    assert "2 cells, expected 1" in record.error


# rules --------------------------------------------------------------------------------------------------------------


async def test_several_calls_of_a_reply_run_in_order(play):
    raise_twice = [sql("UPDATE Fruit SET Price = Price + 1 WHERE Name = 'Plum'", f"c{i}") for i in range(2)]
    record = await play(calls(*raise_twice, sql("SELECT Price FROM Fruit WHERE Name = 'Plum'", "c2")), calls(commit()))
    assert tool_results(record)[2] in ("[('7',)]", "[('7.0',)]")


async def test_calls_after_a_commit_in_the_same_reply_are_ignored(play):
    late = sql("UPDATE Fruit SET Price = '9'", "late")
    change = sql("UPDATE Fruit SET Price = '7' WHERE Name = 'Plum'")
    record = await play(calls(change, commit(), late), task=SET_PRICE)
    assert (record.stop_reason, record.score.value, record.num_turns) == ("answered", 1.0, 1)
    assert "late" not in [message.get("tool_call_id") for message in record.messages]


@pytest.mark.parametrize("depth", [None, 65, 500, 990, 100_000])
async def test_arguments_that_nobody_can_read_are_answered_and_the_rollout_goes_on(play, depth):
    """500 brackets were a RecursionError of openai-agents, which lost the rollout; vLLM's parser takes 990."""
    arguments = '{"query": ' if depth is None else '{"query": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"
    record = await play(calls(call("execute_sql", arguments, "broken")), calls(commit("Pear")))
    assert (record.stop_reason, record.score.value, record.malformed_calls) == ("answered", 1.0, 1)
    assert record.messages[3]["tool_call_id"] == "broken"


async def test_a_malformed_commit_does_not_end_the_rollout(play):
    record = await play(calls(call("commit_final_answer", "Pear", "broken")), calls(commit("Pear")))
    assert (record.stop_reason, record.num_turns, record.malformed_calls) == ("answered", 2, 1)


async def test_an_unknown_tool_is_answered_in_its_place_between_the_others(play):
    first = calls(sql(LOOK, "a"), call("drop_everything", {}, "b"), sql("SELECT 1", "c"))
    record = await play(first, calls(commit("Pear")))
    assert (record.stop_reason, record.malformed_calls) == ("answered", 1)
    sent = play.requests[1]["messages"]
    assert [message["tool_call_id"] for message in sent if message["role"] == "tool"] == ["a", "b", "c"]


async def test_a_lone_unknown_tool_does_not_end_the_rollout(play):
    record = await play(calls(call("drop_everything", {}, "b")), calls(commit("Pear")))
    assert (record.stop_reason, record.num_turns, record.malformed_calls) == ("answered", 2, 1)


WITHHELD = {"role": "assistant", "content": None, "finish_reason": "content_filter"}


@pytest.mark.parametrize(
    "reply", [say("It is Pear."), say(""), say(None), WITHHELD], ids=["text", "empty", "null", "withheld_by_a_filter"]
)
async def test_a_reply_without_a_call_is_asked_for_one(play, reply):
    record = await play(reply, calls(commit("Pear")))
    assert (record.stop_reason, record.num_turns, record.malformed_calls) == ("answered", 2, 0)
    assert [message["role"] for message in play.requests[1]["messages"]] == ["system", "user", "assistant", "user"]


async def test_a_call_that_repeats_an_earlier_one_with_its_id_runs_again(play):
    raise_price = calls(sql("UPDATE Fruit SET Price = Price + 1 WHERE Name = 'Plum'", "same"))
    look = calls(sql("SELECT Price FROM Fruit WHERE Name = 'Plum'", "same"))
    record = await play(raise_price, raise_price, look, calls(commit()))
    assert tool_results(record)[2] in ("[('7',)]", "[('7.0',)]")


# records and requests -----------------------------------------------------------------------------------------------


async def test_the_record_holds_what_went_over_the_wire(play):
    think_and_look = {**calls(sql(LOOK, "a"), call("nope", {}, "b")), "content": "Let me look."}
    record = await play(think_and_look, say("Hm."), say(""), calls(commit("Pear")))
    assert play.requests[-1]["messages"] == record.messages[:-2]  # then the last reply and its result
    assert json.loads(json.dumps(record.to_dict())) == record.to_dict()


async def test_assistant_turns_go_back_as_they_came(play):
    odd = {
        "role": "assistant",
        "content": "  Let me look.\n",
        "reasoning_content": "The fruit table.",
        "tool_calls": [call("execute_sql", '{"query":  "SELECT 1" }', "a"), call("execute_sql", "", "b")],
    }
    await play(odd, calls(commit("Pear")))
    assert play.requests[1]["messages"][2] == odd


async def test_an_end_before_the_first_reply_is_not_the_policys_doing(play):
    too_long = say("This model's maximum context length is 16 tokens. However, you requested 1100.", status=400)
    record = await play(too_long)
    assert (record.stop_reason, record.score) == ("max_tokens", Score(None, "no_reply"))


async def test_rollouts_share_connections_whatever_their_url(backend):
    endpoint, client_ports = app(recite([calls(sql(LOOK)), calls(commit("Pear"))])), set()

    async def proxy(scope, receive, send):
        if scope["type"] == "http":
            client_ports.add(scope["client"][1])
            scope["path"] = scope["path"][len("/rollout/0") :]
        await endpoint(scope, receive, send)

    with serve(proxy) as url:
        for rollout in range(3):
            own_url = url.replace("/v1", f"/rollout/{rollout}/v1")
            where = {"base_url": own_url, "model": "oracle", "environment": DbBench("fc", backend=backend)}
            record = await run_rollout(CHEAPEST, **where, config=GREEDY)
            assert record.score.value == 1.0
    assert len(client_ports) == 1


async def test_gold_is_in_no_request_and_no_message_but_only_in_what_the_judge_compared(play):
    secret = Task(
        id="t-3", question="Set the price.", kind="UPDATE", tables=(FRUIT,),
        gold=Gold(("GOLD-A",), rows=(("GOLD-R",),), sql="UPDATE Fruit SET Price = 'GOLD-S'", table_hash="0" * 32),
    )  # fmt: skip
    record = await play(calls(sql(LOOK)), say("Hm."), calls(commit("Pear")), task=secret)
    for text in (json.dumps(play.requests), json.dumps(record.to_dict() | {"comparison": None})):
        assert "GOLD" not in text and "0" * 32 not in text
    assert record.comparison["reference"] == secret.gold.sql


async def test_sampling_settings_and_both_tools_reach_the_endpoint(play):
    await play(calls(commit("Pear")), config=AgentConfig(temperature=0.7, top_p=0.9, max_tokens=99))
    body = play.requests[0]
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.7, 0.9, 99)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["execute_sql", "commit_final_answer"]


async def test_extra_fields_reach_the_endpoint_and_no_two_calls_share_an_id(backend):
    requests, replies = [], []
    script = recite([calls(sql(LOOK, "same")), calls(call("commit_final_answer", {"answers": ["Pear"]}, "same"))])
    with serve(app(script, on_request=requests.append)) as url:
        await run_rollout(
            CHEAPEST, base_url=url, model="oracle", environment=DbBench("fc", backend=backend), config=GREEDY,
            extra_body={"return_token_ids": True},
            on_reply=lambda reply: replies.append(reply.choices[0].message.tool_calls[0].id),
        )  # fmt: skip
    assert [body["return_token_ids"] for body in requests] == [True, True]
    assert replies[0] == "same" != replies[1]


async def test_from_the_second_turn_on_the_endpoint_is_told_where_the_row_ends(backend):
    requests, replies = [], []
    script = recite([calls(sql(LOOK)), calls(sql(LOOK)), calls(commit("Pear"))])
    with serve(app(script, on_request=requests.append)) as url:
        await run_rollout(
            CHEAPEST, base_url=url, model="oracle", environment=DbBench("fc", backend=backend), config=GREEDY,
            on_reply=replies.append, max_response_tokens=768,
        )  # fmt: skip
    end = replies[0].usage.prompt_tokens + 768  # of the first prompt, whatever the later ones have
    assert [body.get("vllm_xargs") for body in requests] == [None, {"row_end": end}, {"row_end": end}]
    assert [body["max_tokens"] for body in requests] == [512] * 3


async def test_every_turn_samples_with_a_seed_of_its_own_that_the_rollouts_seed_gives(play):
    seeds = []
    for seed in (7, 7, 8):
        await play(calls(sql(LOOK)), calls(commit("Pear")), seed=seed)
        seeds.append([request["seed"] for request in play.requests])
    assert seeds[0] == seeds[1]
    assert len({seed for pair in seeds for seed in pair}) == 4  # two turns, two rollouts
    await play(calls(commit("Pear")))
    assert "seed" not in play.requests[0]


async def test_tokens_add_up_over_the_turns(play):
    record = await play(calls(sql(LOOK)), calls(commit("Pear")))
    assert record.prompt_tokens > 0 < record.completion_tokens
    first = await play(calls(commit("Pear")))
    assert record.prompt_tokens > 2 * first.prompt_tokens  # the second prompt holds the first


def test_deadlines_have_to_nest():
    # 3 x 101 = 303 > 300: a hung model server would end the rollout before it counts as unavailable
    with pytest.raises(ValueError, match=r"3 tries of a turn have to fit into the rollout.*got 5, 101 and 300"):
        AgentConfig(turn_timeout_s=101.0)
    with pytest.raises(ValueError, match=r"statement_timeout_s <= turn_timeout_s.*got 91, 90 and 300"):
        AgentConfig(statement_timeout_s=91.0)
    assert AgentConfig(turn_timeout_s=100.0).rollout_timeout_s == 300.0


async def test_a_statement_still_running_at_the_deadline_is_waited_for_before_the_database_closes(play, backend):
    slow = SlowBackend(backend, 1.5)
    record = await play(calls(sql(LOOK)), config=DEADLINE, backend=slow)
    assert (record.stop_reason, slow.closed_while_running) == ("timeout", False)


# protocols in plain text --------------------------------------------------------------------------------------------


def operate(query):
    return say(f"I look.\nAction: Operation\n```sql\n{query}\n```")


def conclude(text):
    return say(f"I know.\nAction: Answer\nFinal Answer: {text}")


@pytest.mark.parametrize("protocol", ["text", "lab"])
async def test_text_and_lab_are_plain_chat(play, protocol):
    offered = say("I know.\nAction: Answer\nFinal Answer: [('Pear',)]")
    # a script counts the turns of an assistant, and a first prompt holds one
    record = await play(say(""), operate(LOOK), offered, config=AgentConfig(protocol=protocol, temperature=0.0))
    prompt = PROTOCOLS[protocol].messages(CHEAPEST)
    assert record.messages == [*prompt, operate(LOOK), {"role": "user", "content": "[('Pear',)]"}, offered]
    assert (record.stop_reason, record.num_turns) == ("answered", 2)
    assert all("tools" not in request for request in play.requests)


@pytest.mark.parametrize(
    ("protocol", "replies", "stop", "turns"),
    [
        pytest.param("text", [say("Hm.")], "malformed", 1, id="text_without_a_pattern"),
        pytest.param("lab", [operate(LOOK)], "max_turns", 3, id="lab_out_of_rounds"),
        # two statements and one more reply
        pytest.param("text", [operate(LOOK)], "max_turns", 3, id="text_out_of_rounds"),
        pytest.param("lab", [say("cut", finish_reason="length")], "max_tokens", 1, id="a_reply_that_was_cut"),
    ],
)
async def test_ends_of_plain_chat(play, protocol, replies, stop, turns):
    limit = 2 if protocol == "text" else None
    record = await play(*replies, config=AgentConfig(protocol=protocol, max_turns=limit))
    assert (record.stop_reason, record.num_turns, record.score.value) == (stop, turns, 0.0)


async def test_a_commit_that_holds_no_answers_ends_the_rollout_as_malformed(play):
    record = await play(calls(call("commit_final_answer", '{"answers": 7}')))
    assert (record.stop_reason, record.score.value, record.malformed_calls) == ("malformed", 0.0, 1)
