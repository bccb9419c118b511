"""How a round of conversations goes through the model: shared beginnings once, the rest in batches of like length.

On a CPU a forward pass costs what its tokens cost, so a batch alone gains little. Gained is by computing fewer tokens,
and by computing parts of a round side by side with one thread each rather than one after the other with all threads
(13.7 against 22.4 ms a conversation on two cores). On a GPU launches cost more than tokens at these sizes: it has one
lane, and nothing is shared.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch

from reward_model.scorer import Scorer
from reward_model.service import metrics
from reward_model.service.plan import Node, plan_padded, plan_shared
from reward_model.types import Encoded, Score


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


Scored = list[tuple[int, float]]


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

    def score(self, round_: Sequence[Encoded]) -> Iterator[list[tuple[int, Score]]]:
        """Scores with their indices in `round_`, as soon as each forward pass ends. Equal conversations cost one."""
        same: dict[tuple[int, ...], list[int]] = {}
        for index, encoded in enumerate(round_):
            same.setdefault(encoded.ids, []).append(index)
        rows = sorted(same)
        root = self._plan(rows)
        done: SimpleQueue[Scored | Exception] = SimpleQueue()
        _Run(self, rows, done, 1 if len(rows) > 1 else self._lanes).start(root)
        left = len(rows)
        while left:
            part = done.get()
            if isinstance(part, Exception):
                raise part
            left -= len(part)
            yield [(index, Score(value, round_[index].truncated)) for row, value in part for index in same[rows[row]]]

    def _plan(self, rows: list[tuple[int, ...]]) -> Node:
        if self.pace.min_saved is None:
            return Node(0, 0, rows=list(range(len(rows))))
        root = plan_shared(rows, [_scored_at(row, self._pad) for row in rows], self.pace.min_saved)
        metrics.SHARED.inc(sum(map(len, rows)) - _planned(root, rows))
        return root

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
    rows: list[tuple[int, ...]]
    done: SimpleQueue[Scored | Exception]
    lanes: int
    """Lanes that one task takes the threads of: 1, or all for a conversation that is alone."""

    def start(self, node: Node, cache: Any = None) -> None:
        self._submit(lambda: self._node(node, cache))

    def _node(self, node: Node, cache: Any) -> None:
        if node.end > node.start:
            cache = self.rounds.extended(cache, _first(node, self.rows)[node.start : node.end], node.end)
        for child in node.children:
            self.start(child, cache)
        lengths = [len(self.rows[row]) - node.end for row in node.rows]
        for batch in plan_padded(lengths, self.rounds.pace.batch_tokens, self.rounds.pace.max_waste):
            taken = [node.rows[place] for place in batch]
            self._submit(lambda taken=taken: self._batch(taken, cache, node.end))

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


def _first(node: Node, rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    while not node.rows:
        node = node.children[0]
    return rows[node.rows[0]]


def _planned(node: Node, rows: Sequence[tuple[int, ...]]) -> int:
    own = node.end - node.start + sum(len(rows[row]) - node.end for row in node.rows)
    return own + sum(_planned(child, rows) for child in node.children)
