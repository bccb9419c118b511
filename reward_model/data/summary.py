"""Lengths of the two sides, and pairs that occur twice or in both orders.

A digest per distinct pair and prompt is kept (about 250 bytes per row), never the texts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentgrpo.chat.messages import Message, num_chars, num_tool_calls
from reward_model.datatypes import Preference

# A list in a report names at most this many rows; the others are only counted.
MAX_NAMED = 20


# Measures of a side's size. The rule "the side with more wins" should be right for half of the pairs.
FEATURES = {"characters": num_chars, "messages": len, "tool calls": num_tool_calls}


def digest(*conversations: Sequence[Message]) -> bytes:
    # 16 bytes; unlike `hash`, the same in every process.
    text = json.dumps([[m.to_dict() for m in messages] for messages in conversations], ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


@dataclass
class Balance:
    more: int = 0
    same: int = 0
    less: int = 0
    chosen_sum: int = 0
    rejected_sum: int = 0

    def add(self, chosen: int, rejected: int) -> None:
        self.more += chosen > rejected
        self.same += chosen == rejected
        self.less += chosen < rejected
        self.chosen_sum += chosen
        self.rejected_sum += rejected

    @property
    def rule_accuracy(self) -> float | None:
        """Share of pairs on which "more wins" is right, in [0, 1]; a tie counts half. None without pairs."""
        pairs = self.more + self.same + self.less
        return (self.more + self.same / 2) / pairs if pairs else None


@dataclass
class Summary:
    pairs: int = 0
    balances: dict[str, Balance] = field(default_factory=lambda: {name: Balance() for name in FEATURES})
    prompts: Counter[bytes] = field(default_factory=Counter)
    """The number of pairs of a prompt, by its digest."""
    duplicates: list[tuple[int, int]] = field(default_factory=list)
    """Rows that repeat an earlier row, each with the number of that row."""
    contradictions: list[tuple[int, int]] = field(default_factory=list)
    """Rows that prefer the other side of an earlier row's pair, each with the number of that row."""
    _seen: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)

    def add(self, preference: Preference, row: int) -> None:
        self.pairs += 1
        for name, measure in FEATURES.items():
            self.balances[name].add(measure(preference.chosen), measure(preference.rejected))
        prompt, chosen, rejected = (digest(getattr(preference, n)) for n in ("prompt", "chosen", "rejected"))
        self.prompts[prompt] += 1
        pair = hashlib.blake2b(b"".join((prompt, *sorted((chosen, rejected)))), digest_size=16).digest()
        first, preferred = self._seen.setdefault(pair, (row, chosen[:4]))
        if first != row:
            (self.duplicates if preferred == chosen[:4] else self.contradictions).append((row, first))

    def lines(self) -> list[str]:
        if not self.pairs:
            return ["no pairs"]
        repeated = self.pairs - len(self.prompts)
        lines = [
            f"{self.pairs} pairs over {len(self.prompts)} prompts; {repeated} pairs share the prompt of an earlier one",
            f"{'mean per side':14}{'chosen':>10}{'rejected':>10}  chosen has more / same / less  'more wins' is right",
        ]
        for name, balance in self.balances.items():
            means = f"{balance.chosen_sum / self.pairs:10.1f}{balance.rejected_sum / self.pairs:10.1f}"
            split = f"{balance.more} / {balance.same} / {balance.less}"
            lines.append(f"{name:14}{means}  {split:>29}  {percent(balance.rule_accuracy):>20}")
        return [
            *lines,
            f"the same as an earlier row: {_list_rows(self.duplicates)}",
            f"the other way round than an earlier row: {_list_rows(self.contradictions)}",
        ]


def _list_rows(rows: Sequence[tuple[int, int]]) -> str:
    """Text such as `2 (row 7 as row 3, row 9 as row 3)`."""
    examples = [f"row {row} as row {first}" for row, first in rows[:MAX_NAMED]]
    more = ["..."] if len(rows) > MAX_NAMED else []
    return f"{len(rows)} ({', '.join(examples + more)})" if rows else "0"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
