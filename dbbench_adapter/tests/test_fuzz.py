"""Seeded nonsense against everything that reads what a model wrote: no exception, no hang, no dishonest verdict.

A fortieth of the strings by default; `--full` plays all of them.
"""

import contextlib
import json
import random
import time
from functools import partial

import pytest

from dbbench_adapter.datatypes import Column, Gold, Table, Task
from dbbench_adapter.judges import fc, lab, strict, text
from dbbench_adapter.judges.strict import readings
from dbbench_adapter.protocols import open_episode
from dbbench_adapter.protocols.base import fenced_sql, final_answer
from dbbench_adapter.protocols.lab import parse_action
from dbbench_adapter.tasks.literals import parse_literal, parse_rows

pytestmark = pytest.mark.slow

NUM_STRINGS = 100_000
LIMIT_S = 2.0
PIECES = [
    *("Action: ", "Operation", "Answer", "\nFinal Answer:", "```sql\n", "\n```", "```", "\n", " ", "\t", "\r", "\x00"),
    *("SELECT * FROM T", "DROP TABLE T;", *"'\"`\\;#()[]{}", "--", "/*", "*/"),
    *(",", ":", "%", "Decimal('1.5')", "Decimal(", "('a', 1)", "[('a',)]", "None", "nan", "-inf", "1e400", "1_0"),
    *("9" * 50, "9" * 5000, "2**", "-", "+", "1", "5%", "1,234", "é", "\ud800", "\u2028", "😀", "execute_sql", "0x1"),
    *('{"query": "SELECT 1"}', '{"answers": ["a"]}', '{"answers": 5}', "null", "true", "commit_final_answer", "\\u00"),
]
TASK = Task(
    id="t",
    question="?",
    kind="other",
    tables=(Table("T", (Column("a"),), (("1",), ("2",))),),
    gold=Gold(answers=("5", "6")),
)


@pytest.fixture
def strings(request):
    """Seeded strings of protocol fragments: mostly short, a few very long."""
    rng = random.Random(0)
    count = NUM_STRINGS if request.config.getoption("--full", default=False) else NUM_STRINGS // 40

    def string():
        size = rng.choice([0, 1, 2, 3, 5, 8, 13, 40])
        piece = "".join(rng.choice(PIECES) for _ in range(size))
        return piece * 1000 if rng.random() < 0.002 else piece

    return [string() for _ in range(count)]


def in_time(function, *arguments):
    """Call it, and find that it took no longer than `LIMIT_S`."""
    started = time.process_time()
    result = function(*arguments)
    assert time.process_time() - started < LIMIT_S, (function, arguments)
    return result


def refused_or_read(function, said):
    with contextlib.suppress(ValueError):
        in_time(function, said)


def test_parsers_of_replies_and_literals(strings):
    for said in strings:
        for parser in (fenced_sql, final_answer, parse_action, parse_rows):
            in_time(parser, said)
        refused_or_read(parse_literal, said)


def test_judges(strings):
    for said in strings:
        # no string says 6 or b: nothing may be held for right
        assert in_time(text.same_answers, said, ["5", "6"]) is False
        assert in_time(fc.same_answers, said, ["5", "66"]) is False
        assert in_time(fc.same_answers, [said, "6"], ["5", "66"]) is False
        assert in_time(lab.same_rows, said, [["a", 1], ["b", 2.5]]) is False
        for answers in ([said, 10**400], [[said, said]], said):
            assert in_time(partial(strict.same_answers, ordered=False), answers, (("b", 1.5), ("b", 6))) is False
        in_time(list, readings(said, 2))


@pytest.mark.parametrize("protocol", ["text", "lab"])
def test_replies_in_plain_text(sqlite, strings, protocol):
    episode = open_episode(TASK, sqlite, protocol)
    for said in strings:
        if episode.done:
            assert episode.judge(protocol).value in (0.0, 1.0)
            episode.close()
            episode = open_episode(TASK, sqlite, protocol)
        for message in in_time(list, episode.answer({"content": said})):
            json.dumps(message).encode()
    episode.close()


def test_tool_calls(sqlite, strings):
    rng = random.Random(1)
    episode = open_episode(TASK, sqlite)
    for said in strings:
        if episode.done:
            assert episode.judge("fc").value in (0.0, 1.0)
            episode.close()
            episode = open_episode(TASK, sqlite)
        name = rng.choice(["execute_sql", "commit_final_answer", said])
        arguments = rng.choice([said, json.dumps({"query": said}), json.dumps({"answers": [said]}), json.dumps(said)])
        call = rng.choice([{"id": said, "function": {"name": name, "arguments": arguments}}, {said: said}, said, None])
        for message in in_time(list, episode.answer({"tool_calls": rng.choice([[call], [call, call], said, None])})):
            json.dumps(message).encode()
    episode.close()
