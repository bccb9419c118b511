"""The function-calling protocol: prompt, tools, and how an episode answers calls."""

import json

import pytest

from dbbench_adapter.datatypes import Column, Gold, Score, Table, Task
from dbbench_adapter.engines import Result, open_backend
from dbbench_adapter.protocols import open_episode
from dbbench_adapter.protocols.base import format_result
from dbbench_adapter.protocols.fc import ASK_FOR_A_CALL, RULES, TOOLS, messages

FRUIT = Table("Fruit", (Column("Name"), Column("Price", "INT")), (("Plum", 5), ("Pear", 4)))
TASK = Task(
    id="t-0",
    question="Set the price of Plum to 7.",
    kind="UPDATE",
    tables=(FRUIT,),
    gold=Gold(sql="UPDATE Fruit SET Price = 7 WHERE Name = 'Plum'"),
    table_note="The table is called Fruit.",
    typed=True,
)


@pytest.fixture
def episode(backend):
    with open_episode(TASK, backend) as episode:
        yield episode


def sql(episode, query):
    return episode.call_tool("execute_sql", json.dumps({"query": query}))


# prompt and tools ---------------------------------------------------------------------------------------------------


def test_the_prompt_has_rules_then_note_and_question():
    assert messages(TASK) == [
        {"role": "system", "content": RULES},
        {
            "role": "user",
            "content": "Additional table information about the question: The table is called Fruit.\n"
            "Question: Set the price of Plum to 7.\n",
        },
    ]


def test_evidence_comes_first_and_empty_parts_are_left_out():
    task = Task(id="t", question="Why?", kind="other", tables=(), gold=Gold(answers=("1",)), evidence="A hint.")
    assert messages(task)[1]["content"] == "Evidence about the question: A hint.\nQuestion: Why?\n"


def test_the_tools_take_exactly_their_argument():
    functions = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    assert {name: schema["properties"] for name, schema in functions.items()} == {
        "execute_sql": {"query": {"type": "string", "description": "The SQL statement."}},
        "commit_final_answer": {
            "answers": {"type": "array", "items": {"type": "string"}, "description": "The answer values."}
        },
    }
    assert all(schema["required"] == list(schema["properties"]) for schema in functions.values())
    assert all(schema["additionalProperties"] is False for schema in functions.values())


# results ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "text"),
    [
        pytest.param(Result(rows=(("Plum", 5), (None, 4))), "[('Plum', 5), (None, 4)]", id="rows"),
        pytest.param(Result(rows=()), "[]", id="no_row"),
        pytest.param(Result(), "[]", id="a_change"),
        pytest.param(Result(error="1064 (42000): no"), "1064 (42000): no", id="error"),
        # "[('" + 796 x + "',)]" is 803 characters
        pytest.param(Result(rows=(("x" * 796,),)), "[('" + "x" * 796 + "'[TRUNCATED]", id="cut_at_800"),
        pytest.param(Result(rows=(("x" * 793,),)), "[('" + "x" * 793 + "',)]", id="800_are_not_cut"),
        pytest.param(Result(error="near \ud800"), "near ?", id="half_a_surrogate_pair"),
    ],
)
def test_what_the_agent_reads(result, text):
    assert format_result(result) == text


def test_decimals_read_as_the_driver_prints_them(episode):
    assert sql(episode, "SELECT AVG(Price) FROM Fruit") == "[(Decimal('4.5000'),)]"


# calls --------------------------------------------------------------------------------------------------------------


def test_statements_run_one_after_another_on_one_database(episode):
    assert sql(episode, "UPDATE Fruit SET Price = Price + 1 WHERE Name = 'Pear'") == "[]"
    assert sql(episode, "SELECT Price FROM Fruit WHERE Name = 'Pear'") == "[(5,)]"
    assert sql(episode, "SELECT nothing").startswith("1054")
    assert (len(episode.sql_run), episode.malformed_calls) == (3, 0)


def test_what_sqlite_refuses_and_mariadb_runs_is_counted(episode):
    refused = "STDDEV(Price)" if type(episode._database).__name__ == "SqliteDatabase" else "NO_SUCH_FUNCTION(1)"
    for query in (f"SELECT {refused} FROM Fruit; SELECT {refused} FROM Fruit", "SELECT Price FROM Fruits"):
        sql(episode, query)
    assert episode.refused_statements == (1 if "STDDEV" in refused else 0)  # an error ends the call


def test_the_name_of_the_argument_does_not_matter(episode):
    assert episode.call_tool("execute_sql", '{"sql": "SELECT 1", "why": "?"}') == "[(1,)]"
    episode.call_tool("commit_final_answer", '{"answer": ["7"]}')
    assert (episode.committed, episode.answers, episode.malformed_calls) == (True, ["7"], 0)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("drop_everything", "{}", "unknown tool 'drop_everything'; call execute_sql or commit_final_answer"),
        ("drop_everything", "{", "do not parse"),
        ("execute_sql", "SELECT 1", "the arguments of execute_sql do not parse; they are a JSON object"),
        ("execute_sql", {"query": "SELECT 1"}, "do not parse"),
        ("execute_sql", "[" * 100_000, "do not parse"),
        ("execute_sql", '["SELECT 1"]', 'execute_sql takes {"query": "..."}'),
        ("execute_sql", "{}", 'execute_sql takes {"query": "..."}'),
        ("execute_sql", '{"query": 1}', 'execute_sql takes {"query": "..."}'),
    ],
)
def test_a_malformed_call_is_answered_and_counted_and_ends_nothing(sqlite, name, arguments, words):
    with open_episode(TASK, sqlite) as episode:
        assert words in episode.call_tool(name, arguments)
        assert (episode.malformed_calls, episode.sql_run, episode.status) == (1, [], "running")


@pytest.mark.parametrize("arguments", ["{}", "[]", '{"answers": 7}', '{"answers": true}', '{"answers": {"a": 1}}'])
def test_a_commit_without_a_list_or_text_ends_the_episode_as_an_error(sqlite, arguments):
    with open_episode(TASK, sqlite) as episode:
        assert 'commit_final_answer takes {"answers": ["..."]}' in episode.call_tool("commit_final_answer", arguments)
        assert (episode.status, episode.malformed_calls) == ("task error", 1)
        assert episode.judge("fc") == Score(0.0, "not_committed")


@pytest.mark.parametrize("answer", ["null", "0", '""', "[]", "false", "{}"])
def test_an_empty_commit_of_any_kind_is_an_answer(sqlite, answer):
    with open_episode(TASK, sqlite) as episode:
        episode.call_tool("commit_final_answer", f'{{"answers": {answer}}}')
        assert episode.status == "completed"


@pytest.mark.parametrize(
    ("query", "text", "left"),
    [
        # measured with the original and its driver
        pytest.param("UPDATE Fruit SET Price = 9; SELECT * FROM Fruit", "[]", [9, 9], id="the_first_result_is_shown"),
        pytest.param("SELECT 1; UPDATE Fruit SET Price = 9", "[(1,)]", [9, 9], id="and_all_run"),
        pytest.param("SELECT ';'; SELECT 2", "[(';',)]", [5, 4], id="a_semicolon_in_a_text_ends_nothing"),
        pytest.param("BEGIN; UPDATE Fruit SET Price = 9; ROLLBACK", "[]", [5, 4], id="one_transaction"),
        pytest.param("SELECT 1 +; UPDATE Fruit SET Price = 9", "1064", [5, 4], id="nothing_runs_after_an_error"),
        pytest.param(
            "UPDATE Fruit SET Price = 9; SELECT 1 +", "1064", [9, 9], id="a_second_one_that_fails_shows_its_error"
        ),
        pytest.param("SELECT 1; SELECT 2; SELECT 1 +", "[(1,)]", [5, 4], id="a_third_does_not"),
        pytest.param("", "[]", [5, 4], id="no_statement"),
        pytest.param(";", "1065 (42000): Query was empty", [5, 4], id="a_lone_semicolon"),
    ],
)
def test_several_statements_in_one_call(episode, query, text, left):
    assert sql(episode, query).startswith(text)
    assert sql(episode, "SELECT Price FROM Fruit") == str([(price,) for price in left])


def test_every_call_is_committed_so_that_a_later_rollback_undoes_nothing(episode):
    for statement in ("BEGIN", "UPDATE Fruit SET Price = 9", "ROLLBACK"):
        sql(episode, statement)
    assert sql(episode, "SELECT Price FROM Fruit") == "[(9,), (9,)]"


def test_a_missing_cell_becomes_the_text_none(sqlite):
    table = Table("T", (Column("a"),), ((None,), (12.0,)))
    with open_episode(
        Task(id="t", question="?", kind="other", tables=(table,), gold=Gold(answers=())), sqlite
    ) as episode:
        assert sql(episode, "SELECT a FROM T") == "[('None',), ('12.0',)]"


# replies ------------------------------------------------------------------------------------------------------------


def calling(*calls):
    tool_calls = [
        {"id": f"c{k}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for k, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": tool_calls}


LOOK = ("execute_sql", {"query": "SELECT 1"})
COMMIT = ("commit_final_answer", {"answers": []})


def test_the_calls_of_a_reply_are_handled_in_order_up_to_the_commit(sqlite):
    with open_episode(TASK, sqlite) as episode:
        assert list(episode.answer(calling(LOOK, ("nothing", {}), COMMIT, LOOK))) == [
            {"role": "tool", "tool_call_id": "c0", "content": "[(1,)]"},
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": "Error: unknown tool 'nothing'; call execute_sql or commit_final_answer.",
            },
            {"role": "tool", "tool_call_id": "c2", "content": "Committed."},
        ]
        assert (episode.status, episode.replies_used, episode.sql_run) == ("completed", 1, ["SELECT 1"])


def test_a_reply_without_a_call_is_asked_for_one_and_counts(sqlite):
    with open_episode(TASK, sqlite, max_rounds=2) as episode:
        assert list(episode.answer({"role": "assistant", "content": "Hm."})) == [
            {"role": "user", "content": ASK_FOR_A_CALL}
        ]
        list(episode.answer(calling(LOOK)))
        assert (episode.status, episode.replies_used) == ("task limit reached", 2)
        with pytest.raises(RuntimeError, match="'t-0': the episode has ended"):
            list(episode.answer(calling(COMMIT)))


@pytest.mark.parametrize("calls", [5, "abc", ["abc"]])
def test_calls_that_are_no_list_of_objects_end_the_episode_as_an_error(sqlite, calls):
    with open_episode(TASK, sqlite) as episode:
        assert list(episode.answer({"tool_calls": calls})) == []
        assert episode.status == "task error"


@pytest.mark.parametrize("call", [{}, {"function": None}, {"id": "x", "function": {"arguments": "{}"}}])
def test_a_call_without_its_parts_is_a_malformed_one(sqlite, call):
    with open_episode(TASK, sqlite) as episode:
        [answer] = list(episode.answer({"tool_calls": [call]}))
        assert (answer["role"], episode.malformed_calls, episode.status) == ("tool", 1, "running")


def test_no_call_follows_a_commit(sqlite):
    with open_episode(TASK, sqlite) as episode:
        episode.call_tool("commit_final_answer", '{"answers": []}')
        with pytest.raises(RuntimeError, match="'t-0': the episode has ended"):
            sql(episode, "SELECT 1")


# verdicts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", ["fc", "strict"])
@pytest.mark.parametrize(
    ("statements", "commits", "score"),
    [
        pytest.param(["UPDATE Fruit SET Price = '7' WHERE Price = 5"], True, Score(1.0, "match"), id="another_way"),
        pytest.param([], True, Score(0.0, "wrong_state"), id="nothing_done"),
        pytest.param(["UPDATE Fruit SET Price = 7"], True, Score(0.0, "wrong_state"), id="too_much_done"),
        pytest.param(["DROP TABLE Fruit"], True, Score(0.0, "wrong_state"), id="table_gone"),
        pytest.param([TASK.gold.sql], False, Score(0.0, "not_committed"), id="done_but_not_committed"),
        pytest.param(["BEGIN", TASK.gold.sql], True, Score(1.0, "match"), id="transaction_left_open"),
    ],
)
def test_a_change_is_judged_by_what_it_leaves_behind(episode, statements, commits, score, judge):
    for statement in statements:
        sql(episode, statement)
    if commits:
        episode.call_tool("commit_final_answer", '{"answers": []}')
    assert episode.judge(judge) == score


def test_without_a_reference_that_runs_a_change_is_not_judged(sqlite):
    task = Task(id="t", question="?", kind="UPDATE", tables=(FRUIT,), gold=Gold(sql="UPDATE Nothing SET a = 1"))
    with open_episode(task, sqlite) as episode:
        episode.call_tool("commit_final_answer", '{"answers": []}')
        assert episode.judge("fc") == episode.judge("strict") == Score(None, "reference_failed")


def test_judging_and_closing_leave_no_database():
    with open_backend("sqlite") as backend:
        with open_episode(TASK, backend) as episode:
            episode.call_tool("commit_final_answer", '{"answers": []}')
            episode.judge("strict")
        assert backend.live_databases() == 0
