"""A conversation with an agent: what is sampled and judged, what a question leaves to the next, what is shown."""

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoTokenizer

from dbbench_adapter.datatypes import Column, Score, Table
from dbbench_adapter.generator import generate_tasks
from sql_agent.environments.base import make_environment
from sql_agent.environments.dbbench import DbBench
from sql_agent.environments.rows import RowTask
from sql_agent.interactive.session import Chat, Line, OneDatabase, Tasks, read_line
from sql_agent.interactive.transcript import Transcript, call_start, visible
from sql_agent.interactive.user_database import read_database
from sql_agent.local.datatypes import GREEDY, Sample
from sql_agent.local.policy import load_policy
from sql_agent.local.rollouts import Player
from sql_agent.prompts.fit import PromptLimit
from sql_agent.settings.groups import AgentConfig, EnvironmentSettings
from sql_agent.settings.local import AdapterConfig
from sql_agent.text_to_sql.datatypes import Question

NO_LIMIT = PromptLimit(None, "the model names none", "--max_prompt_tokens")
TASKS = [task for task in generate_tasks(16, seed=5) if task.kind == "DELETE"]
PROBLEM = RowTask("p", "gsm8k", {"question": "Ann has 3 eggs and eats 1. How many are left?", "answer": "#### 2"})


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer(random_policy_folder):
    return AutoTokenizer.from_pretrained(random_policy_folder)


class Scripted:
    """Stands in for a policy: says its replies one after another, streamed; one that ends in `...` is cut off."""

    max_positions = 10_000

    def __init__(self, tokenizer, replies) -> None:
        self.tokenizer, self._left, self.prompts = tokenizer, list(replies), []
        self.while_writing = lambda: None

    def generate(self, prompts, sampling, *, max_new_tokens, streamer, stopping_criteria):
        self.prompts += map(list, prompts)
        text = self._left.pop(0)
        cut = text.endswith("...")
        ids = self.tokenizer.encode(text if cut else f"{text}<|im_end|>", add_special_tokens=False)
        streamer.put(torch.tensor(prompts))
        kept = []
        for place, token in enumerate(ids):
            kept.append(token)
            streamer.put(torch.tensor([token]))
            if place == 1:
                self.while_writing()
            if bool(stopping_criteria(torch.tensor([kept]), None).all()):
                cut = True
                break
        streamer.end()
        return [Sample(tuple(kept), tuple(-0.5 for _ in kept), "length" if cut else "stop")]


class Watcher:
    def __init__(self) -> None:
        self.events = []

    def writing(self, text):
        self.events.append(("writing", text))

    def reply(self, message):
        self.events.append(("reply", message["content"]))

    def answers(self, messages):
        self.events.append(("answers", [message["content"] for message in messages]))


def called(name, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def run(sql: str) -> str:
    return called("execute_sql", query=sql)


COMMIT = called("commit_final_answer", answers=["done"])


def word_problems(tasks):
    return Tasks(make_environment(EnvironmentSettings("gsm8k")), tasks)


@pytest.fixture
def bench():
    with DbBench("strict") as entered:
        yield entered


def talk(tokenizer, subject, *replies, watcher=None, **limits):
    policy = Scripted(tokenizer, replies)
    chat = Chat(policy, subject, AgentConfig(max_tokens=200, **limits), GREEDY, watcher or Watcher(), NO_LIMIT)
    return chat, policy


# Turns ----------------------------------------------------------------------------------------------------------------


def test_the_agents_turns_are_those_of_training(random_policy_folder):
    policy = load_policy(random_policy_folder, adapter=AdapterConfig(rank=2), device="cpu")
    limits = AgentConfig(max_turns=2, max_tokens=12)
    record = Player(policy, make_environment(EnvironmentSettings("gsm8k")), limits).play([PROBLEM], [GREEDY])[0][0]
    answered = Chat(policy, word_problems([PROBLEM]), limits, GREEDY, Watcher(), NO_LIMIT).ask(PROBLEM)
    assert answered.record.messages == record.messages
    assert (answered.record.stop_reason, answered.record.score) == (record.stop_reason, record.score)


def test_a_second_question_goes_on_with_the_ids_of_the_first(tokenizer):
    subject = word_problems([])
    call = called("calculator", expression="3-1")
    chat, policy = talk(tokenizer, subject, call, "two left\n#### 2", "#### 5", "#### 7")
    chat.ask(subject.own("Ann has 3 eggs and eats 1."))
    chat.ask(subject.own("And with 6?"))
    first, second, third = policy.prompts
    assert second[: len(first)] == first and third[: len(second)] == second
    between = tokenizer.decode(third[len(second) :])
    assert between == "two left\n#### 2<|im_end|>\n<|im_start|>user\nAnd with 6?<|im_end|>\n<|im_start|>assistant\n"
    chat.new()
    chat.ask(subject.own("And with 6?"))
    assert "eggs" not in tokenizer.decode(policy.prompts[3])


def test_an_answer_given_by_a_call_stands_before_the_next_question(tokenizer, bench):
    subject = OneDatabase(bench, [], TASKS[0])
    chat, policy = talk(tokenizer, subject, COMMIT, COMMIT)
    chat.ask(subject.own("How many rows?"))
    chat.ask(subject.own("And how many columns?"))
    between = tokenizer.decode(policy.prompts[1][len(policy.prompts[0]) :])
    assert between.startswith(f"{COMMIT}<|im_end|>\n<|im_start|>user\n<tool_response>\nCommitted.\n</tool_response>")
    assert "Question: And how many columns?" in between and between.endswith("<|im_start|>assistant\n")


def test_a_task_is_judged_and_a_persons_own_question_is_not(tokenizer, bench):
    subject = OneDatabase(bench, TASKS, TASKS[0])
    chat, _ = talk(tokenizer, subject, run(TASKS[0].gold.sql), COMMIT, COMMIT, COMMIT)
    assert chat.ask(TASKS[0]).record.score == Score(1.0, "match")
    assert chat.ask(subject.own("Is it gone?")).record.score == Score(None, "no_judge")
    chat.new()
    assert chat.ask(TASKS[0]).record.score.value == 0.0
    problems = word_problems([PROBLEM])
    chat, _ = talk(tokenizer, problems, "#### 2", "#### 2")
    assert chat.ask(PROBLEM).record.score == Score(1.0, "match")
    assert chat.ask(problems.own(PROBLEM.question)).record.score == Score(None, "no_judge")


@pytest.fixture
def shop(tmp_path):
    """A database of fish as text2sql plays it, and a question about it."""
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE fish (name TEXT, weight INT)")
        connection.execute("INSERT INTO fish VALUES ('carp', 3), ('pike', 9)")
        connection.execute(f"CREATE TABLE pond ({', '.join(f'depth_{n} INT' for n in range(30))})")
    with make_environment(EnvironmentSettings("text2sql", database=tmp_path / "shop.sqlite")) as entered:
        yield entered, Question("q", "How heavy is a pike?", "shop", "SELECT weight FROM fish WHERE name = 'pike'")


def test_ones_own_database_is_asked_about_as_text2sql_trains_it(tokenizer, shop):
    environment, question = shop
    subject = Tasks(environment, [question])
    hand_in = called("submit_sql", sql="SELECT weight FROM fish WHERE name = 'pike'")
    chat, policy = talk(tokenizer, subject, hand_in, called("execute_sql", sql="SELECT name FROM fish"), hand_in)
    assert chat.ask(question).record.score == Score(1.0, "match")
    chat.new()
    record = chat.ask(subject.own("Which fish are there?")).record
    assert (record.score, record.messages[3]["content"]) == (Score(None, "no_judge"), '["name"]\n["carp"]\n["pike"]')
    assert record.messages[5]["content"] == '["weight"]\n[9]'  # what is handed in is shown to the person who asked
    assert "\nfish(" in tokenizer.decode(policy.prompts[1])


def test_a_long_schema_is_shortened_as_in_training(tokenizer, shop):
    environment, question = shop
    subject = Tasks(environment, [question])
    policy = Scripted(tokenizer, ["I do not know.", "I do not know."])
    for tokens in (1024, 16):
        limit = PromptLimit(tokens, "as given", "--max_prompt_tokens", True)
        chat = Chat(policy, subject, AgentConfig(), GREEDY, Watcher(), limit)
        chat.ask(question)
    whole, short = map(tokenizer.decode, policy.prompts)
    assert "depth_29" in whole and "More tables" not in whole
    assert "depth_29" not in short and "More tables, by DESCRIBE: pond" in short


def test_tasks_of_an_environment_of_ones_own_show_its_reward_and_it_takes_no_typed_questions(tokenizer):
    examples = Path(__file__).parents[2] / "examples" / "own_environment"
    with make_environment(EnvironmentSettings(f"{examples}/orders.py:Orders")) as environment:
        tasks = environment.read_tasks(examples / "rows.jsonl")
        subject = Tasks(environment, tasks)
        assert subject.question(tasks[2]).endswith("Question: How many orders are there?\n")
        committed = called("commit_final_answer", answers=["10"])
        assert "reward 1, solved  1 reply" in shown(tokenizer, subject, tasks[2], committed)
        subject.renew()
        with pytest.raises(ValueError, match="takes no questions of your own; ask its tasks, :task N"):
            subject.own("How many?")


def test_what_one_question_changes_the_next_one_meets_until_a_new_conversation(tokenizer, bench):
    subject = OneDatabase(bench, TASKS, TASKS[0])
    (table,) = TASKS[0].tables
    chat, _ = talk(tokenizer, subject, run(f"DELETE FROM `{table.name}`"), COMMIT, run("SELECT 1"), COMMIT)
    chat.ask(subject.own("Empty it."))
    assert [found.rows for found in subject.tables()] == [()]
    assert chat.ask(subject.own("Well?")).record.messages[-1]["content"] == "Committed."
    assert [found.rows for found in subject.tables()] == [()]
    chat.new()
    assert subject.tables() == [table]
    subject.choose(TASKS[1])
    assert subject.tables() == list(TASKS[1].tables)


@pytest.mark.parametrize("protocol", ["text", "lab"])
def test_plain_text_protocols_are_talked_with_too(tokenizer, protocol):
    with DbBench("strict", protocol) as entered:
        subject = OneDatabase(entered, TASKS, TASKS[0])
        act = f"I look.\nAction: Operation\n```sql\n{TASKS[0].gold.sql}\n```"
        answer = "Done.\nAction: Answer\nFinal Answer: []"
        chat, _ = talk(tokenizer, subject, act, answer, answer, protocol=protocol)
        assert chat.ask(TASKS[0]).record.score == Score(1.0, "match")
        assert chat.ask(subject.own("Sure?")).record.stop_reason == "answered"


def test_a_reply_that_is_stopped_stays_in_the_conversation(tokenizer):
    subject = word_problems([])
    chat, policy = talk(tokenizer, subject, "one two three four", "#### 1")
    policy.while_writing = chat.stop
    answered = chat.ask(subject.own("Count."))
    assert (answered.stopped, answered.cut, answered.record.completion_tokens) == (True, True, 2)
    policy.while_writing = lambda: None
    assert not chat.ask(subject.own("Go on.")).stopped
    said = tokenizer.decode(policy.prompts[1][len(policy.prompts[0]) :])
    assert said.endswith("<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n")


def test_stopping_twice_in_one_question_interrupts(tokenizer):
    subject = word_problems([])
    chat, policy = talk(tokenizer, subject, "one two three")

    def twice():
        chat.stop()
        chat.stop()

    policy.while_writing = twice
    with pytest.raises(KeyboardInterrupt):
        chat.ask(subject.own("Count."))


def test_a_full_context_is_said_and_the_conversation_is_kept(tokenizer):
    subject, watcher = word_problems([]), Watcher()
    chat, policy = talk(tokenizer, subject, "#### 1", watcher=watcher)
    chat.ask(subject.own("One?"))
    policy.max_positions = len(policy.prompts[0]) + 5
    answered = chat.ask(subject.own("Two?"))
    assert (answered.record.num_turns, answered.record.stop_reason, answered.cut) == (0, "max_tokens", False)


def test_text_is_shown_with_every_token_one_late_and_without_the_end_token(tokenizer):
    subject, watcher = word_problems([]), Watcher()
    chat, _ = talk(tokenizer, subject, "say é now\n#### 2", watcher=watcher)
    chat.ask(subject.own("What?"))
    written = [text for kind, text in watcher.events if kind == "writing"]
    assert written[0] == "" and all("say é now\n#### 2".startswith(text) for text in written)
    assert len(written) > 4
    assert watcher.events[-2:] == [("reply", "say é now\n#### 2"), ("answers", [])]


# Lines ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("How many?", Line(None, "How many?")),
        ("   ", Line(None, "")),
        (":task 3", Line(":task", "3")),
        (" :new ", Line(":new")),
        (":quit", Line(":quit")),
    ],
)
def test_a_line_is_a_command_or_a_question(text, line):
    assert read_line(text, 3) == line


@pytest.mark.parametrize(
    ("text", "num_tasks", "words"),
    [
        (":nwe", 3, ":nwe is no command; known: :help, :new, :tables, :tasks, :task, :quit"),
        (":task", 3, ":task: expected :task N with N from 1 to 3"),
        (":task 4", 3, "N from 1 to 3"),
        (":task 0", 3, "N from 1 to 3"),
        (":task x", 3, "N from 1 to 3"),
        (":task ²", 3, "N from 1 to 3"),
        (":task 1", 0, "there are no tasks at hand"),
        (":new now", 3, ":new takes nothing after it; type :new alone"),
    ],
)
def test_a_command_that_cannot_be_followed_says_what_can(text, num_tasks, words):
    with pytest.raises(ValueError, match=words):
        read_line(text, num_tasks)


# What is shown --------------------------------------------------------------------------------------------------------


def shown(tokenizer, subject, task, *replies, terminal=False, **limits) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80, highlight=False, color_system=None)
    show = Transcript(console, max_new_tokens=200)
    chat, _ = talk(tokenizer, subject, *replies, watcher=show, **limits)
    show.ended(chat.ask(task))
    return console.file.getvalue()


def test_thoughts_calls_results_and_the_verdict_stand_in_their_order(tokenizer, bench):
    sql = TASKS[0].gold.sql
    text = shown(
        tokenizer, OneDatabase(bench, TASKS, TASKS[0]), TASKS[0], f"<think>so</think>I try.\n{run(sql)}", COMMIT
    )
    *lines, last = text.splitlines()
    assert lines == [
        "<think>so</think>I try.",
        f"  execute_sql  {sql}",
        "  → []",
        '  commit_final_answer  ["done"]',
        "  → Committed.",
    ]
    assert last.startswith("judge: correct  2 replies, ") and last.endswith(" s")


def test_a_tool_that_answers_nothing_leaves_no_line():
    console = Console(file=io.StringIO(), width=80)
    answers = [{"role": "tool", "content": text} for text in ("", "[2]")]
    Transcript(console, max_new_tokens=200).answers(answers)
    assert console.file.getvalue() == "  → [2]\n"


def test_an_answer_in_words_is_shown_once_and_a_wrong_one_named(tokenizer):
    call = called("calculator", expression="3+1")
    text = shown(tokenizer, word_problems([PROBLEM]), PROBLEM, call, "Four.\n#### 4")
    assert text.splitlines()[:4] == ["  calculator  3+1", "  → 4", "Four.", "#### 4"]
    assert "judge: wrong (wrong_answer)  2 replies" in text


def test_after_a_wrong_answer_it_stands_why(tokenizer, bench, tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        connection.executescript("CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2);")
    question = Question("q-0", "Which?", "shop", "SELECT a FROM t ORDER BY a")
    made = make_environment(EnvironmentSettings("text2sql", database=tmp_path / "shop.sqlite"))
    with made as environment:
        said = {
            sql: shown(tokenizer, Tasks(environment, [question]), question, called("submit_sql", sql=sql)).splitlines()
            for sql in ("SELECT a FROM t WHERE a = 2", "SELECT b FROM t", "SELECT a FROM t")
        }
        typed = shown(
            tokenizer, (subject := Tasks(environment, [])), subject.own("Why?"), called("submit_sql", sql="?")
        )
    reference = ["  expected 2 rows: [1], [2], in this order", "  reference: SELECT a FROM t ORDER BY a"]
    wrong, failed, right = said.values()
    assert wrong[-4].startswith("judge: wrong (wrong_result)")
    assert wrong[-3:] == [reference[0], "  got 1 row: [2]", reference[1]]
    assert failed[-3:] == ["  no such column: b", *reference]
    assert right[-1].startswith("judge: correct") and typed.splitlines()[-1].startswith("no judge")
    task = TASKS[0]
    text = shown(tokenizer, OneDatabase(bench, TASKS, task), task, COMMIT)
    assert "  the agent alone leaves " in text and f"  reference: {task.gold.sql}" in text


def test_the_statement_of_a_text_protocol_stands_by_itself(tokenizer):
    with DbBench("strict", "text") as entered:
        subject = OneDatabase(entered, TASKS, TASKS[0])
        act = f"I look.\nAction: Operation\n```sql\n{TASKS[0].gold.sql}\n```\nSo."
        answer = "Done.\nAction: Answer\nFinal Answer: []"
        text = shown(tokenizer, subject, TASKS[0], act, answer, protocol="text")
    lines = text.splitlines()
    assert lines[:5] == ["I look.", "Action: Operation", f"  {TASKS[0].gold.sql}", "So.", "  → []"]
    assert "Final Answer: []" in lines


@pytest.mark.parametrize(
    ("replies", "limits", "words"),
    [
        (["and so on ..."], {}, "cut off: a reply has at most 200 tokens (--max-tokens) and has to fit"),
        ([called("calculator", expression="1")] * 2, {"max_turns": 2}, "no answer: out of replies"),
    ],
)
def test_an_end_without_an_answer_says_why(tokenizer, replies, limits, words):
    text = shown(tokenizer, word_problems([]), word_problems([]).own("?"), *replies, **limits)
    assert words in text and "no judge: the question is your own" in text


def test_a_call_that_cannot_be_read_is_shown_as_it_was_said(tokenizer):
    broken = '<tool_call>\n{"name": "calculator", "arg'
    assert broken in shown(tokenizer, word_problems([]), word_problems([]).own("?"), broken)


def test_on_a_terminal_the_call_under_way_passes_and_the_whole_call_stays(tokenizer):
    call = called("calculator", expression="3+1")
    text = shown(tokenizer, word_problems([]), word_problems([]).own("?"), call, "#### 4", terminal=True)
    passing, erased, stays = text.rpartition("\x1b[2K")
    assert '{"name": "calculator", "arguments": {"expression": "3+1"}}' in passing and erased
    assert stays.startswith("  calculator  3+1\n  → 4\n#### 4\n")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("I think", 7),
        ("I think<tool_call>x", 7),
        ("I think <tool_", 8),  # may become one
        ("I think <tools", 14),
        ("a ```sql\nSELECT", 2),
        ("a ```s", 2),
    ],
)
def test_what_may_become_a_call_is_held_back(text, start):
    assert call_start(text) == start


def test_nothing_that_is_said_controls_the_terminal():
    assert visible("a\x1b[31mb\x07\n\tc\x9b") == "a␛[31mb␇\n\tc␡"


# One's own database ---------------------------------------------------------------------------------------------------


def test_a_persons_own_database_is_copied_with_types_read_off_its_cells(tmp_path):
    path = tmp_path / "my file?.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, height REAL, mixed, photo BLOB)")
        connection.execute("INSERT INTO people VALUES (1, 'Ann', 1.7, 3, x'ff00'), (2, NULL, 2, 'x', NULL)")
        connection.execute("CREATE TABLE blank (a)")
        connection.execute("CREATE VIEW tall AS SELECT * FROM people")
    before = path.read_bytes()
    found = read_database(path)
    people, blank = found.task.tables
    assert people == Table(
        "people",
        (
            Column("id", "BIGINT"),
            Column("name", "TEXT"),
            Column("height", "DOUBLE"),
            Column("mixed", "TEXT"),
            Column("photo", "TEXT"),
        ),
        ((1, "Ann", 1.7, "3", "ff00"), (2, None, 2.0, "x", None)),
    )
    assert blank == Table("blank", (Column("a", "TEXT"),), ())
    assert found.left_out == ("not copied: view tall", "binary cells shown as hex digits: 1")
    assert "The table `people` has the columns `id`, `name`, `height`, `mixed`, `photo`." in found.task.table_note
    assert path.read_bytes() == before


def test_what_is_no_database_with_tables_is_refused(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("not a database, " * 100)
    sqlite3.connect(tmp_path / "empty.sqlite").close()
    for name, words in [
        ("gone.sqlite", "gone.sqlite: no such file; expected a SQLite database"),
        ("text.txt", "text.txt: file is not a database"),
        ("empty.sqlite", "empty.sqlite: there is no table in it"),
    ]:
        with pytest.raises(ValueError, match=words):
            read_database(tmp_path / name)
    with sqlite3.connect(tmp_path / "big.sqlite") as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("INSERT INTO t VALUES (1), (2)")
    monkeypatch.setattr("sql_agent.interactive.user_database.MAX_ROWS", 1)
    with pytest.raises(ValueError, match="2 rows, at most 1 are copied; give a smaller database"):
        read_database(tmp_path / "big.sqlite")
