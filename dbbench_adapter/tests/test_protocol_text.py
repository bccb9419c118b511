"""The two protocols in plain text, `text` (AgentBench v0.2) and `lab` (LifelongAgentBench), on both backends."""

import pytest

from dbbench_adapter.datatypes import Column, Gold, Score, Table, Task
from dbbench_adapter.protocols import PROTOCOLS, open_episode
from dbbench_adapter.protocols.lab import parse_action
from dbbench_adapter.protocols.text import OUT_OF_SYNC, RULES, segments, trimmed

FRUIT = Table("Fruit", (Column("Name"), Column("Price", "INT")), (("Plum", 5), ("Pear", 4)))
RAISE = Task(
    id="t-0",
    question="Set the price of Plum to 7.",
    kind="UPDATE",
    tables=(FRUIT,),
    gold=Gold(sql="UPDATE Fruit SET Price = 7 WHERE Name = 'Plum'"),
    table_note="The table is called Fruit.",
    typed=True,
)
LOOK = Task(
    id="t-1", question="What is cheap?", kind="SELECT", tables=(FRUIT,), gold=Gold(rows=(("Pear", 4),)), typed=True
)


def operation(sql):
    return f"I look.\nAction: Operation\n```sql\n{sql}\n```\nand wait"


def answer(text):
    return f"I know.\nAction: Answer\nFinal Answer: {text}"


def replied(episode, text):
    return list(episode.answer({"role": "assistant", "content": text}))


def say(content):
    return [{"role": "user", "content": content}]


def test_the_prompts():
    assert PROTOCOLS["text"].messages(RAISE) == [
        {"role": "user", "content": RULES},
        {"role": "assistant", "content": "Ok."},
        {"role": "user", "content": "Set the price of Plum to 7.\nThe table is called Fruit."},
    ]
    assert [message["role"] for message in PROTOCOLS["lab"].messages(RAISE)] == ["system", "user", "assistant", "user"]


# both ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["text", "lab"])
def test_an_episode_from_look_to_answer(backend, protocol):
    with open_episode(LOOK, backend, protocol) as episode:
        assert replied(episode, operation("SELECT *\nFROM Fruit;")) == say("[('Plum', 5), ('Pear', 4)]")
        assert replied(episode, operation("SELECT nothing"))[0]["content"].startswith("1054")
        assert replied(episode, answer("[('Pear', 4)]")) == []
        assert (episode.status, episode.replies_used) == ("completed", 3)
        assert episode.sql_run == ["SELECT * FROM Fruit;", "SELECT nothing"]
        assert episode.judge("lab") == episode.judge("strict") == Score(1.0, "match")


@pytest.mark.parametrize(
    ("protocol", "status"), [("text", "agent validation failed"), ("lab", "agent_validation_failed")]
)
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("Hello.", id="no_pattern"),
        pytest.param("Action: Operation\nSELECT 1", id="no_block"),
        pytest.param("Action: Operation\n```SQL\nSELECT 1\n```", id="the_fence_is_lower_case"),
        pytest.param("Action: Operation\n```sql\nSELECT 1```", id="and_closes_on_a_line_of_its_own"),
        pytest.param("Final Answer: [1]", id="an_answer_on_the_first_line"),
        pytest.param("", id="nothing"),
    ],
)
def test_a_reply_that_fits_no_pattern_ends_the_episode_and_the_state_counts_all_the_same(
    sqlite, protocol, status, reply
):
    with open_episode(RAISE, sqlite, protocol) as episode:
        replied(episode, operation(RAISE.gold.sql))
        assert replied(episode, reply) == []
        assert (episode.status, episode.malformed_calls) == (status, 1)
        assert episode.judge("text") == episode.judge("lab") == Score(1.0, "match")
        assert episode.judge("strict") == Score(0.0, "not_committed")


@pytest.mark.parametrize("protocol", ["text", "lab"])
def test_every_statement_has_a_session_of_its_own(backend, protocol):
    with open_episode(RAISE, backend, protocol, max_rounds=9) as episode:
        for statement in ("BEGIN", "UPDATE Fruit SET Price = 9", "ROLLBACK", "CREATE TEMPORARY TABLE Mine (a INT)"):
            assert replied(episode, operation(statement)) == say("[]")
        assert replied(episode, operation("SELECT Price FROM Fruit")) == say("[(9,), (9,)]")
        assert replied(episode, operation("SELECT * FROM Mine"))[0]["content"].startswith("1146 (42S02)")


@pytest.mark.parametrize("protocol", ["text", "lab"])
@pytest.mark.parametrize(
    ("table", "text"),
    [
        pytest.param(Table("T", (Column("a"), Column("a")), ()), "1146 (42S02)", id="a_repeated_column"),
        pytest.param(Table("T", (Column("a"),), (("1",), ("1", "2"))), "[]", id="a_row_too_long"),
        pytest.param(Table("T" * 65, (Column("a"),), ()), "1146 (42S02)", id="a_name_too_long"),
    ],
)
def test_a_table_that_cannot_be_made_is_missing_or_empty(backend, protocol, table, text):
    task = Task(id="t", question="?", kind="other", tables=(table,), gold=Gold(answers=("1",)))
    with open_episode(task, backend, protocol) as episode:
        assert replied(episode, operation("SELECT * FROM T"))[0]["content"].startswith(text)


# text ---------------------------------------------------------------------------------------------------------------


def test_text_reads_one_more_reply_after_its_last_statement_which_can_only_answer(sqlite):
    for last, status in [(answer("[1]"), "completed"), (operation("SELECT 1"), "task limit reached")]:
        with open_episode(LOOK, sqlite, "text", max_rounds=2) as episode:
            for _ in range(2):
                replied(episode, operation("SELECT 1"))
            replied(episode, last)
            assert (episode.status, episode.replies_used, len(episode.sql_run)) == (status, 3, 2)


@pytest.mark.parametrize(
    ("reply", "status", "answers"),
    [
        pytest.param(
            "Action: Operation \n```sql\nSELECT 1\n```", "agent validation failed", None, id="a_blank_after_it"
        ),
        pytest.param("Action: Look\nFinal Answer: [1]", "completed", " [1]", id="any_other_action_answers"),
        pytest.param("\nFinal Answer: [1]\nFinal Answer: [2]", "completed", " [1]", id="with_none_at_all_too"),
        pytest.param("\nFinal Answer:", "completed", "", id="an_empty_answer"),
    ],
)
def test_text_looks_at_the_first_action_only(sqlite, reply, status, answers):
    with open_episode(LOOK, sqlite, "text") as episode:
        replied(episode, reply)
        assert (episode.status, episode.answers) == (status, answers)


def test_text_cuts_results_at_800_characters(sqlite):
    with open_episode(LOOK, sqlite, "text") as episode:
        assert replied(episode, operation("SELECT REPEAT('x', 900)")) == say("[('" + "x" * 797 + "[TRUNCATED]")


@pytest.mark.parametrize(
    "block",
    [
        # measured with the original and its driver
        pytest.param("UPDATE Fruit SET Price = 9; SELECT 1", id="a_change_first"),
        pytest.param("SELECT 1; UPDATE Fruit SET Price = 9", id="or_last"),
    ],
)
def test_text_loses_a_block_of_several_statements(backend, block):
    with open_episode(LOOK, backend, "text") as episode:
        assert replied(episode, operation(block)) == say(OUT_OF_SYNC)
        assert replied(episode, operation("SELECT Price FROM Fruit")) == say("[(5,), (4,)]")


def test_text_joins_lines_so_that_a_comment_swallows_the_rest(sqlite):
    with open_episode(LOOK, sqlite, "text") as episode:
        assert replied(episode, operation("SELECT 1 -- one\n, 2")) == say("[(1,)]")
        assert episode.sql_run == ["SELECT 1 -- one , 2"]


def test_text_ends_as_unknown_on_a_reply_without_text(sqlite):
    with open_episode(LOOK, sqlite, "text") as episode:
        replied(episode, operation("SELECT 1"))
        assert replied(episode, None) == []
        assert episode.status == "unknown"


@pytest.mark.parametrize(
    ("words", "count"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("Plum and Pear", 3, id="words"),
        pytest.param("abcdefg abcdefgh", 3, id="of_up_to_seven_letters"),
        pytest.param("a1 2, b\n\t", 6, id="every_other_character_but_blanks_and_line_breaks"),
    ],
)
def test_segments(words, count):
    assert segments(words) == count


def test_a_long_history_keeps_its_first_message_and_the_newest():
    first, *later = [
        {"role": role, "content": f"{k} " + "! " * 998} for k, role in enumerate(["user", "assistant"] * 3)
    ]
    history = [first, *later, {"role": "user", "content": "and now?"}]
    kept = trimmed(history)
    # 999 segments each and 3 at the end: the first and the last four pass 3,500; of the three kept the oldest is a user
    assert kept[1:] == history[5:]
    assert kept[0]["content"].startswith(first["content"])
    assert kept[0]["content"].endswith("[NOTICE: 4 earlier messages are left out.]")
    assert trimmed(history[:3]) == history[:3]


# lab ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("Action: Answer, not Action: Operation", "Answer"),
        ("no\nAction: Operation", "Operation"),
        ("Action: Answering", "Answer"),
        ("action: Answer", None),
    ],
)
def test_lab_takes_the_action_that_is_named_first(reply, action):
    assert parse_action(reply) == action


def test_lab_ends_after_three_replies(sqlite):
    with open_episode(RAISE, sqlite, "lab") as episode:
        for _ in range(2):
            replied(episode, operation("SELECT 1"))
        assert replied(episode, operation(RAISE.gold.sql)) == say("[]")
        assert (episode.status, episode.replies_used) == ("task_limit_reached", 3)
        assert episode.judge("lab") == Score(1.0, "match")


@pytest.mark.parametrize(
    ("block", "text", "left"),
    [
        pytest.param("UPDATE Fruit SET Price = 9; SELECT 1", "[(1,)]", "[(9,), (9,)]", id="the_last_result_is_shown"),
        pytest.param("UPDATE Fruit SET Price = 9; SELECT 1 +; SELECT 1", "1064", "[(9,), (9,)]", id="up_to_an_error"),
        pytest.param("BEGIN; UPDATE Fruit SET Price = 9; ROLLBACK", "[]", "[(9,), (9,)]", id="each_committed"),
        pytest.param("SELECT 'a;b'", "1064", "[(5,), (4,)]", id="cut_inside_a_text_too"),
        pytest.param(";", "", "[(5,), (4,)]", id="no_statement"),
    ],
)
def test_lab_runs_what_stands_between_semicolons(backend, block, text, left):
    with open_episode(LOOK, backend, "lab") as episode:
        assert replied(episode, operation(block))[0]["content"].startswith(text)
        assert replied(episode, operation("SELECT Price FROM Fruit")) == say(left)


def test_lab_never_cuts_a_result(sqlite):
    with open_episode(LOOK, sqlite, "lab") as episode:
        assert replied(episode, operation("SELECT REPEAT('x', 2000)")) == say("[('" + "x" * 2000 + "',)]")


def test_lab_reports_a_table_that_is_gone_as_the_environments_error(sqlite):
    with open_episode(RAISE, sqlite, "lab") as episode:
        replied(episode, operation("DROP TABLE Fruit"))
        replied(episode, answer("done"))
        assert episode.status == "task_environment_error"
        assert episode.judge("lab") == Score(0.0, "wrong_state")
