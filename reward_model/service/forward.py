"""How a round of conversations goes through the model: shared beginnings once, the rest in batches of like length.

Beginnings are kept for rounds to come, since answers to one task seldom all arrive in one. On a CPU a forward pass
costs what its tokens cost, so a batch alone gains little. Gained is by computing fewer tokens, and by computing parts
of a round side by side with one thread each rather than one after the other with all threads (13.7 against 22.4 ms a
conversation on two cores). On a GPU launches cost more than tokens at these sizes: one lane, and nothing is shared.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, KeysView, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch

from reward_model.datatypes import Encoded, RewardScore
from reward_model.scorer import Scorer
from reward_model.service import metrics
from reward_model.service.plan import Node, plan_padded, plan_shared


@dataclass(frozen=True)
class Pace:
    """Sizes that fit a device."""

    batch_tokens: int
    """Of one forward pass, padding included."""
    max_waste: int
    """Padding of one forward pass, in tokens; about what another pass costs."""
    min_saved: int | None
    """Tokens that sharing a beginning has to save; None: never share."""
    lanes: int
    """Forward passes side by side, at most; Python's lock lets no more through."""


CPU = Pace(batch_tokens=4096, max_waste=16, min_saved=64, lanes=4)
GPU = Pace(batch_tokens=32768, max_waste=8192, min_saved=None, lanes=1)


KEPT_TOKENS = 8192
"""Of the beginnings kept between rounds, together: 6 KiB each for the benchmark's model, 24 for one of 0.5 B."""

Ids = tuple[int, ...]
Scored = list[tuple[int, float]]


class Beginnings:
    """Keys and values of beginnings that earlier rounds computed, least recently used first."""

    def __init__(self, max_tokens: int = KEPT_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._kept: OrderedDict[Ids, Any] = OrderedDict()

    def __iter__(self) -> Iterator[Ids]:
        return iter(self._kept)

    def __contains__(self, ids: Ids) -> bool:
        return ids in self._kept

    def cropped(self, ids: Ids, end: int) -> Any:
        """Keys and values of the first `end` tokens of a kept beginning."""
        cache = copy.deepcopy(self._kept[ids])
        cache.crop(end)
        return cache

    def update(self, used: Sequence[Ids], computed: Sequence[tuple[Ids, Any]]) -> None:
        for ids in used:
            self._kept.move_to_end(ids)
        self._kept.update(computed)
        while sum(map(len, self._kept)) > self._max_tokens:
            self._kept.popitem(last=False)


class Rounds:
    """Scores many conversations at a time; one caller at a time."""

    def __init__(self, scorer: Scorer, pace: Pace, *, threads: int) -> None:
        """
        Args:
            threads: of the CPU, for all lanes together.
        """
        self.scorer, self.pace = scorer, pace
        self._pad: Any = scorer.tokenizer.pad_token_id
        self._threads = threads
        self._lanes = max(1, min(pace.lanes, threads))
        self._pool = ThreadPoolExecutor(self._lanes, thread_name_prefix="lane")
        self.kept = Beginnings()

    def score(self, round_: Sequence[Encoded]) -> Iterator[list[tuple[int, RewardScore]]]:
        """Scores with their indices in `round_`, as soon as each forward pass ends. Equal conversations cost one."""
        same: dict[Ids, list[int]] = {}
        for index, encoded in enumerate(round_):
            same.setdefault(encoded.ids, []).append(index)
        rows = sorted(same.keys() | set(self.kept))
        root = self._plan(rows, same.keys())
        done: SimpleQueue[Scored | Exception] = SimpleQueue()
        run = _Run(self, rows, same.keys(), done, 1 if len(same) > 1 else self._lanes)
        run.start(root)
        left = len(same)
        while left:
            part = done.get()
            if isinstance(part, Exception):
                raise part
            left -= len(part)
            yield [
                (index, RewardScore(value, round_[index].truncated)) for row, value in part for index in same[rows[row]]
            ]
        self.kept.update(run.used, run.computed)

    def _plan(self, rows: list[Ids], asked: KeysView[Ids]) -> Node:
        if self.pace.min_saved is None:
            return Node(0, 0, rows=list(range(len(rows))))
        limits = [_scored_at(row, self._pad) if row in asked else len(row) for row in rows]
        return plan_shared(rows, limits, self.pace.min_saved)

    @torch.inference_mode()
    def extended(self, cache: Any, ids: Sequence[int], end: int) -> Any:
        """Keys and values of a beginning, `cache` being those of its own beginning, which is left as it is."""
        metrics.COMPUTED.inc(len(ids))
        mask = torch.ones(1, end, dtype=torch.long)
        return self._model(torch.tensor([ids]), mask, copy.deepcopy(cache), keep=True).past_key_values

    @torch.inference_mode()
    def values(self, rests: list[Sequence[int]], cache: Any, start: int) -> list[float]:
        """What the head says at the end of each; `cache` holds the `start` tokens before all of them."""
        longest = max(map(len, rests))
        metrics.COMPUTED.inc(longest * len(rests))
        ids = torch.tensor([[*rest, *[self._pad] * (longest - len(rest))] for rest in rests])
        lengths = torch.tensor([start + len(rest) for rest in rests])
        mask = (torch.arange(start + longest) < lengths[:, None]).long()
        if cache is not None:
            cache = copy.deepcopy(cache)
            cache.batch_repeat_interleave(len(rests))
        values = self._model(ids, mask, cache, keep=False).logits.squeeze(-1).float().tolist()
        if not all(map(math.isfinite, values)):
            raise ValueError("the reward model gave a score that is not finite; its weights hold NaN or overflow")
        return values

    def submit(self, work: Callable[[], None], lanes: int) -> None:
        """Run in a lane, with the threads that are its own while `lanes` of them are one."""
        self._pool.submit(self._with_threads, work, max(1, self._threads * lanes // self._lanes))

    def _with_threads(self, work: Callable[[], None], threads: int) -> None:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        work()

    def _model(self, ids: torch.Tensor, mask: torch.Tensor, cache: Any, *, keep: bool) -> Any:
        device = self.scorer.model.device
        return self.scorer.model(
            input_ids=ids.to(device), attention_mask=mask.to(device), past_key_values=cache, use_cache=keep
        )


@dataclass(frozen=True)
class _Run:
    """One round under way: each node and each batch is a task of a lane."""

    rounds: Rounds
    rows: list[Ids]
    """What is asked for, and what is kept of earlier rounds."""
    asked: KeysView[Ids]
    done: SimpleQueue[Scored | Exception]
    lanes: int
    """Lanes that one task takes the threads of: 1, or all for a conversation that is alone."""
    used: list[Ids] = field(default_factory=list)
    computed: list[tuple[Ids, Any]] = field(default_factory=list)

    def start(self, node: Node, cache: Any = None) -> None:
        if any(self.rows[row] in self.asked for row in _below(node)):
            self._submit(lambda: self._node(node, cache))

    def _node(self, node: Node, cache: Any) -> None:
        if node.end > node.start:
            cache = self._beginning(node, cache)
        for child in node.children:
            self.start(child, cache)
        asked = [row for row in node.rows if self.rows[row] in self.asked]
        metrics.SHARED.inc(node.end * len(asked))
        lengths = [len(self.rows[row]) - node.end for row in asked]
        for batch in plan_padded(lengths, self.rounds.pace.batch_tokens, self.rounds.pace.max_waste):
            taken = [asked[place] for place in batch]
            self._submit(lambda taken=taken: self._batch(taken, cache, node.end))

    def _beginning(self, node: Node, cache: Any) -> Any:
        below = [self.rows[row] for row in _below(node)]
        for ids in below:
            if ids in self.rounds.kept and ids not in self.asked:
                self.used.append(ids)
                return self.rounds.kept.cropped(ids, node.end)
        cache = self.rounds.extended(cache, below[0][node.start : node.end], node.end)
        self.computed.append((below[0][: node.end], cache))
        return cache

    def _batch(self, taken: list[int], cache: Any, start: int) -> None:
        values = self.rounds.values([self.rows[row][start:] for row in taken], cache, start)
        self.done.put(list(zip(taken, values, strict=True)))

    def _submit(self, work: Callable[[], None]) -> None:
        def noted() -> None:
            try:
                work()
            except Exception as error:  # raised again where the round is waited for
                self.done.put(error)

        self.rounds.submit(noted, self.lanes)


def _scored_at(row: Sequence[int], pad: int | None) -> int:
    """The index of the token that the head reads: the last that is no padding (`GenericForSequenceClassification`)."""
    last = len(row) - 1
    while last > 0 and row[last] == pad:
        last -= 1
    return last


def _below(node: Node) -> list[int]:
    return node.rows + [row for child in node.children for row in _below(child)]
