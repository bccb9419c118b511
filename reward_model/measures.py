"""What a file of pairs shows before training, and what a reward model is measured by: rules that it has to beat, bad
answers, and calibration.

A rule prefers one side of a pair by a single feature. Bad answers are made from a pair and its neighbours, and the
chosen answer should score higher than each: they are not in the training data, and a policy may try them once the score
is its reward. In a dialogue with tools only the last answer is replaced.

By the Bradley-Terry model, which the loss fits, the chosen answer is better with probability p = sigmoid(margin). The
model does not know which answer was chosen, so its confidence is max(p, 1 - p), and it is right if margin > 0.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentgrpo.chat.messages import Message, num_chars, num_tool_calls
from reward_model.datatypes import Preference

# Rules ----------------------------------------------------------------------------------------------------------------


_FAULT = re.compile(r"error|exception|traceback|fail|unknown|invalid|no such|not found|denied", re.IGNORECASE)


def has_answer(side: Sequence[Message]) -> int:
    # A text with `<tool_call>` in it, and a call whose arguments are not JSON, could not be parsed as a call.
    # `{"answers": []}` is no answer.
    last = side[-1]
    if last.tool_calls:
        return int(any(_says_something(call.function.arguments) for call in last.tool_calls))
    return int(bool(last.content.strip()) and "<tool_call>" not in last.content)


def _says_something(arguments: str) -> bool:
    try:
        said = json.loads(arguments)
    except ValueError:
        return False
    values = said.values() if isinstance(said, dict) else [said]
    return any(value not in (None, "", [], {}) for value in values)


def num_faults(side: Sequence[Message]) -> int:
    return sum(message.role == "tool" and bool(_FAULT.search(message.content)) for message in side)


# The features of a side by name; the evaluation adds the length in tokens.
FEATURES: dict[str, Callable[[Sequence[Message]], int]] = {
    "messages": len,
    "tool calls": num_tool_calls,
    "has an answer": has_answer,
    "tool errors": num_faults,
}


def wins(chosen: Sequence[float], rejected: Sequence[float]) -> list[float]:
    """Result of the rule "more is better" on each pair: 1 if it is right, 0 if it is wrong, 0.5 for a tie.

    The rule "fewer is better" gets 1 minus that.
    """
    return [(a > b) + 0.5 * (a == b) for a, b in zip(chosen, rejected, strict=True)]


# Bad answers ----------------------------------------------------------------------------------------------------------


FLUENT = (
    "I have looked at everything carefully and double-checked each step. The answer is complete, correct and exactly "
    "what you asked for."
)
REPEATS = 40


def adversarial_sides(row: Preference, other: Preference | None) -> dict[str, tuple[Message, ...]]:
    """Bad sides by name.

    Args:
        other: a row with another prompt; with None no answer to another task is made.
    """
    questions = [message.content for message in row.prompt if message.role == "user"]
    before, last = row.chosen[:-1], row.chosen[-1]
    words = last.content or " ".join(call.function.arguments for call in last.tool_calls)
    texts = {
        "empty": "",
        "question repeated": questions[-1] if questions else row.prompt[-1].content,
        "very long": " ".join([words] * REPEATS),
        "fluent and wrong": FLUENT,
    }
    sides = {name: (*before, Message(role="assistant", content=text)) for name, text in texts.items()}
    sides["no work, fluent"] = (Message(role="assistant", content=FLUENT),)
    if other:
        sides["another task's answer"] = (*before, other.chosen[-1])
    return sides


def neighbours(rows: Sequence[Preference]) -> list[Preference | None]:
    found: list[Preference | None] = []
    for i, row in enumerate(rows):
        later = (rows[(i + step) % len(rows)] for step in range(1, len(rows)))
        found.append(next((o for o in later if o.prompt != row.prompt and _answer(o) != _answer(row)), None))
    return found


def _answer(row: Preference) -> tuple[str, ...]:
    last = row.chosen[-1]
    return (last.content, *(call.function.arguments for call in last.tool_calls))


# Calibration ----------------------------------------------------------------------------------------------------------


BINS = 10


@dataclass(frozen=True)
class Bin:
    low: float
    high: float
    pairs: int
    confidence: float
    """The mean of max(p, 1 - p)."""
    accuracy: float


def calibration_bins(margins: Sequence[float], *, bins: int = BINS) -> list[Bin]:
    """Bins of equal width over [0.5, 1]; empty bins are left out.

    Args:
        margins: chosen score minus rejected score, shape (N,).
    """
    import numpy as np

    margins_N = np.asarray(margins, dtype=float)
    confidence_N = 1 / (1 + np.exp(-np.abs(margins_N)))
    right_N = (np.sign(margins_N) + 1) / 2
    edges = np.linspace(0.5, 1.0, bins + 1)
    index_N = np.minimum(((confidence_N - 0.5) * 2 * bins).astype(int), bins - 1)
    return [
        Bin(
            float(edges[i]),
            float(edges[i + 1]),
            int((index_N == i).sum()),
            float(confidence_N[index_N == i].mean()),
            float(right_N[index_N == i].mean()),
        )
        for i in range(bins)
        if (index_N == i).any()
    ]


def expected_calibration_error(margins: Sequence[float], *, bins: int = BINS) -> float:
    """The mean distance between confidence and accuracy over the bins, weighted by pairs; 0 means calibrated.

    Source:
        Guo et al. (2017), "On Calibration of Modern Neural Networks", arXiv:1706.04599, eq. 3.
    """
    found = calibration_bins(margins, bins=bins)
    return sum(b.pairs * abs(b.accuracy - b.confidence) for b in found) / sum(b.pairs for b in found)


# A file of pairs ------------------------------------------------------------------------------------------------------

# Lengths of the two sides, and pairs that occur twice or in both orders. A digest per distinct pair and prompt is kept
# (about 250 bytes per row), never the texts.

# A list in a report names at most this many rows; the others are only counted.
MAX_NAMED = 20
# Measures of a side's size. The rule "the side with more wins" should be right for half of the pairs.
SIZES = {"characters": num_chars, "messages": len, "tool calls": num_tool_calls}


def pair_digest(*conversations: Sequence[Message]) -> bytes:
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
class PairSummary:
    pairs: int = 0
    balances: dict[str, Balance] = field(default_factory=lambda: {name: Balance() for name in SIZES})
    prompts: Counter[bytes] = field(default_factory=Counter)
    """The number of pairs of a prompt, by its digest."""
    duplicates: list[tuple[int, int]] = field(default_factory=list)
    """Rows that repeat an earlier row, each with the number of that row."""
    contradictions: list[tuple[int, int]] = field(default_factory=list)
    """Rows that prefer the other side of an earlier row's pair, each with the number of that row."""
    _seen: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)

    def add(self, preference: Preference, row: int) -> None:
        self.pairs += 1
        for name, measure in SIZES.items():
            self.balances[name].add(measure(preference.chosen), measure(preference.rejected))
        prompt, chosen, rejected = (pair_digest(getattr(preference, n)) for n in ("prompt", "chosen", "rejected"))
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
            lines.append(f"{name:14}{means}  {split:>29}  {format_percent(balance.rule_accuracy):>20}")
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


def format_percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
