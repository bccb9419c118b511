"""Makes preference pairs for a medical scorer: an answer from the right field is preferred to another answer.

Both sides have one call of the tool, its real result and an answer, in the form in which rollouts are scored
(`sql_agent.source.scoring.conversation`). The worse side looks at another entry (`wrong_row`), at another field of
the same entry (`wrong_field`), or at the right field and then declines to answer (`refusal`). Within each of these
kinds the better side is the longer one in half of the pairs.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentgrpo.chat.calls import numbered_id
from agentgrpo.chat.messages import Message, num_chars
from dbbench_adapter.engines.sqlite.read_only import connect
from dbbench_adapter.engines.sqlite.sandbox import Watchdog
from reward_model.datatypes import Preference
from sql_agent.medical.database import MedicalDatabase, format_result
from sql_agent.medical.datatypes import TABLES, Question, Schema
from sql_agent.medical.environment import TOOL_NAME, messages
from sql_agent.medical.questions import Entry, askable, entries, label, text_of
from sql_agent.medical.words import ANSWER, REFUSALS
from sql_agent.oracle import call, calls
from sql_agent.source.scoring import conversation

Kind = Literal["wrong_row", "wrong_field", "refusal"]
KINDS: tuple[Kind, ...] = ("wrong_row", "wrong_field", "refusal")
# Number of other entries that are tried for one pair.
CANDIDATES = 12


@dataclass(frozen=True)
class Pair:
    kind: Kind
    preference: Preference

    @property
    def longer(self) -> int:
        """Characters by which the better side is longer; negative if it is shorter."""
        return num_chars(self.preference.chosen) - num_chars(self.preference.rejected)


def make_pairs(path: Path, schema: Schema, questions: Sequence[Question], *, seed: int = 0) -> list[Pair]:
    """Make at most one pair of each kind per question; questions that name no field are skipped."""
    draw = random.Random(f"{seed}/pairs")
    with closing(_Sides(path, schema)) as sides:
        balance: Counter[Kind] = Counter()
        pairs: list[Pair] = []
        for question in questions:
            for kind in KINDS if question.column else ():
                longer = -1 if balance[kind] > 0 else 1
                made = [pair for pair in sides.pairs(question, kind, draw) if pair.longer]
                if made:  # takes the smallest difference in length, with the wanted sign if possible
                    pairs.append(min(made, key=lambda pair: (pair.longer * longer < 0, abs(pair.longer))))
                    balance[kind] += 1 if pairs[-1].longer > 0 else -1
    return _even(pairs, draw)


def _even(pairs: Sequence[Pair], draw: random.Random) -> list[Pair]:
    # The length of a side must not show which one is better.
    left: list[Pair] = []
    for kind in KINDS:
        longer = [pair for pair in pairs if pair.kind == kind and pair.longer > 0]
        shorter = [pair for pair in pairs if pair.kind == kind and pair.longer < 0]
        count = min(len(longer), len(shorter))
        left += draw.sample(longer, count) + draw.sample(shorter, count)
    draw.shuffle(left)
    return left


class _Sides:
    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema, self._watchdog = schema, Watchdog()
        self._watchdog.ensure_alive()
        self._as_agent = MedicalDatabase(path, schema, self._watchdog, statement_timeout_s=5.0)
        self._connection = connect(path)
        self._entries = {(entry.table, entry.id): entry for entry in entries(self._connection, schema)}
        self._peers: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
        for entry in self._entries.values():
            self._peers[entry.table, entry.language].append(entry)

    def close(self) -> None:
        self._watchdog.stop()
        self._as_agent.close()
        self._connection.close()

    def pairs(self, question: Question, kind: Kind, draw: random.Random) -> Iterator[Pair]:
        entry = self._entries.get((question.table, question.row_id))  # pyright: ignore[reportArgumentType]
        column = question.column or ""
        if entry is None or column not in self._schema[entry.table]:
            return
        right = text_of(self._connection, entry, column)
        if right is None:
            return
        prompt = messages(question, self._schema)
        said = {"label": label(column, entry.language), "name": entry.name}
        answer = ANSWER[entry.language]

        def side(looked_at: Entry, field: str, text: str) -> tuple[Message, ...]:
            name = f"{TABLES[entry.table].name_column} = {_quoted(looked_at.name)}"
            sql = f"SELECT {field} FROM {entry.table} WHERE {name}"
            result = {"role": "tool", "tool_call_id": numbered_id(0), "content": format_result(self._as_agent.run(sql))}
            turns = [calls(call(TOOL_NAME, {"sql": sql})), result, {"role": "assistant", "content": text}]
            return tuple(conversation([*prompt, *turns]))

        def worse() -> Iterator[tuple[Message, ...]]:
            if kind == "refusal":
                for text in REFUSALS[entry.language]:
                    yield side(entry, column, text.format(**said))
                return
            for other, field in self._elsewhere(entry, column, kind, draw):
                value = text_of(self._connection, other, field)
                if value is not None and value != right:
                    yield side(other, field, answer.format(**said, value=value))

        chosen = side(entry, column, answer.format(**said, value=right))
        metadata = {"task_id": question.id, "kind": kind, "language": entry.language}
        for rejected in worse():
            yield Pair(
                kind,
                Preference(
                    prompt=chosen[: len(prompt)],
                    chosen=chosen[len(prompt) :],
                    rejected=rejected[len(prompt) :],
                    metadata=metadata,
                ),
            )

    def _elsewhere(self, entry: Entry, column: str, kind: Kind, draw: random.Random) -> Iterator[tuple[Entry, str]]:
        if kind == "wrong_field":
            yield from ((entry, other) for other in askable(entry.table, self._schema) if other != column)
        else:
            peers = self._peers[entry.table, entry.language]
            drawn = draw.sample(peers, min(CANDIDATES, len(peers)))
            yield from ((other, column) for other in drawn if other != entry)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
