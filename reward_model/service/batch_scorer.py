"""Scores a batch of conversations: common prefixes are computed once, the rest in micro-batches of similar length.

Prefixes are kept for later batches, since the answers to one task seldom arrive together. On a CPU the time of a
forward pass depends on its tokens, so batching alone gains little. It is faster to compute fewer tokens, and to compute
parts of a batch in parallel with one thread each instead of one after the other with all threads (13.7 against 22.4 ms
per conversation on two cores). On a GPU launching a kernel takes longer than its tokens at these sizes, so there one
worker runs and nothing is shared.
"""

from __future__ import annotations

import copy
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, KeysView, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch
from transformers.cache_utils import Cache

from agentgrpo.micro_batches import return_freed_memory
from reward_model.datatypes import EncodedConversation, RewardScore
from reward_model.scorer import Scorer
from reward_model.service import metrics
from reward_model.service.prefix_tree import PrefixNode, build_prefix_tree, make_micro_batches


@dataclass(frozen=True)
class BatchLimits:
    batch_tokens: int
    """Tokens of one forward pass, padding included."""
    max_padding: int
    """Padding of one forward pass, in tokens; it takes about as long as one more pass."""
    min_saved: int | None
    """Sharing a prefix has to save this many tokens; None means that prefixes are never shared."""
    workers: int
    """The most forward passes in parallel; Python's lock allows no more."""


CPU = BatchLimits(batch_tokens=4096, max_padding=16, min_saved=64, workers=4)
GPU = BatchLimits(batch_tokens=32768, max_padding=8192, min_saved=None, workers=1)
# The most tokens of all kept prefixes; each takes 6 KiB for the benchmark's model, 24 KiB for one of 0.5 B weights.
CACHED_TOKENS = 8192
# Freed activations leave holes between the prefixes that are kept: 75 MiB after 800 conversations. It takes 4 ms to
# return them.
FREE_EVERY_S = 1.0

Ids = tuple[int, ...]
Scored = list[tuple[int, float]]


class PrefixCache:
    """Keys and values of prefixes that earlier batches computed, the least recently used first."""

    def __init__(self, max_tokens: int = CACHED_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._cached: OrderedDict[Ids, Cache] = OrderedDict()

    def __iter__(self) -> Iterator[Ids]:
        return iter(self._cached)

    def __contains__(self, ids: Ids) -> bool:
        return ids in self._cached

    def cropped(self, ids: Ids, end: int) -> Cache:
        """Keys and values of the first `end` tokens of a cached prefix."""
        cache = copy.deepcopy(self._cached[ids])
        cache.crop(end)
        return cache

    def update(self, used: Sequence[Ids], computed: Sequence[tuple[Ids, Cache]]) -> None:
        for ids in used:
            self._cached.move_to_end(ids)
        self._cached.update(computed)
        while sum(map(len, self._cached)) > self._max_tokens:
            self._cached.popitem(last=False)


class BatchScorer:
    def __init__(self, scorer: Scorer, limits: BatchLimits, *, threads: int) -> None:
        """
        Args:
            threads: CPU threads of all workers together.
        """
        self.limits, self._model = limits, scorer.model
        self._pad: Any = scorer.tokenizer.pad_token_id
        self._threads = threads
        self._workers = max(1, min(limits.workers, threads))
        self.pool = ThreadPoolExecutor(self._workers, thread_name_prefix="forward")
        self.cache = PrefixCache()
        self._freed_at = -math.inf

    def score(self, batch: Sequence[EncodedConversation]) -> Iterator[list[tuple[int, RewardScore]]]:
        """Yield scores with their indices in `batch` after each forward pass. Equal conversations are scored once."""
        indices: dict[Ids, list[int]] = {}
        for index, encoded in enumerate(batch):
            indices.setdefault(encoded.ids, []).append(index)
        rows = sorted(indices.keys() | set(self.cache))
        threads = self._threads if len(indices) == 1 else max(1, self._threads // self._workers)
        run = _Run(self, rows, indices.keys(), threads)
        run.start(self._plan(rows, indices.keys()))
        left = len(indices)
        while left:
            scored = run.done.get()
            if isinstance(scored, Exception):
                raise scored
            left -= len(scored)
            yield [(i, RewardScore(value, batch[i].truncated)) for row, value in scored for i in indices[rows[row]]]
        self.cache.update(run.used, run.computed)
        if time.monotonic() - self._freed_at > FREE_EVERY_S:
            return_freed_memory()
            self._freed_at = time.monotonic()

    def _plan(self, rows: list[Ids], requested: KeysView[Ids]) -> PrefixNode:
        if self.limits.min_saved is None:
            return PrefixNode(0, 0, rows=list(range(len(rows))))
        shareable = [_scored_index(row, self._pad) if row in requested else len(row) for row in rows]
        return build_prefix_tree(rows, shareable, self.limits.min_saved)

    @torch.inference_mode()
    def extend(self, cache: Cache | None, ids: Sequence[int], end: int) -> Cache:
        """Keys and values of a prefix of `end` tokens: a copy of `cache`, extended by `ids`."""
        metrics.COMPUTED.inc(len(ids))
        mask = torch.ones(1, end, dtype=torch.long)
        return self._forward(torch.tensor([ids]), mask, copy.deepcopy(cache), keep=True).past_key_values

    @torch.inference_mode()
    def values(self, rests: list[Sequence[int]], cache: Cache | None, start: int) -> list[float]:
        """The head's value at the end of each row; `cache` holds the first `start` tokens of all rows."""
        longest = max(map(len, rests))
        metrics.COMPUTED.inc(longest * len(rests))
        ids = torch.tensor([[*rest, *[self._pad] * (longest - len(rest))] for rest in rests])
        lengths = torch.tensor([start + len(rest) for rest in rests])
        mask = (torch.arange(start + longest) < lengths[:, None]).long()
        if cache is not None:
            cache = copy.deepcopy(cache)
            cache.batch_repeat_interleave(len(rests))
        values = self._forward(ids, mask, cache, keep=False).logits.squeeze(-1).float().tolist()
        if not all(map(math.isfinite, values)):
            raise ValueError("the reward model gave a score that is not finite; its weights hold NaN or overflow")
        return values

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, cache: Cache | None, *, keep: bool) -> Any:
        device = self._model.device
        return self._model(
            input_ids=ids.to(device), attention_mask=mask.to(device), past_key_values=cache, use_cache=keep
        )


@dataclass(frozen=True)
class _Run:
    scorer: BatchScorer
    rows: list[Ids]
    """The requested conversations and the cached prefixes, sorted."""
    requested: KeysView[Ids]
    threads: int
    """CPU threads of each task; a single conversation gets all of them."""
    done: SimpleQueue[Scored | Exception] = field(default_factory=SimpleQueue)
    used: list[Ids] = field(default_factory=list)
    computed: list[tuple[Ids, Cache]] = field(default_factory=list)

    def start(self, node: PrefixNode, cache: Cache | None = None) -> None:
        if any(self.rows[row] in self.requested for row in node.all_rows()):
            self._submit(lambda: self._compute_node(node, cache))

    def _compute_node(self, node: PrefixNode, cache: Cache | None) -> None:
        if node.end > node.start:
            cache = self._prefix(node, cache)
        for child in node.children:
            self.start(child, cache)
        requested = [row for row in node.rows if self.rows[row] in self.requested]
        metrics.SHARED.inc(node.end * len(requested))
        lengths = [len(self.rows[row]) - node.end for row in requested]
        limits = self.scorer.limits
        for micro_batch in make_micro_batches(lengths, limits.batch_tokens, limits.max_padding):
            taken = [requested[position] for position in micro_batch]
            self._submit(lambda taken=taken: self._compute_scores(taken, cache, node.end))

    def _prefix(self, node: PrefixNode, cache: Cache | None) -> Cache:
        below = [self.rows[row] for row in node.all_rows()]
        for ids in below:
            if ids in self.scorer.cache and ids not in self.requested:
                self.used.append(ids)
                return self.scorer.cache.cropped(ids, node.end)
        cache = self.scorer.extend(cache, below[0][node.start : node.end], node.end)
        self.computed.append((below[0][: node.end], cache))
        return cache

    def _compute_scores(self, taken: list[int], cache: Cache | None, start: int) -> None:
        values = self.scorer.values([self.rows[row][start:] for row in taken], cache, start)
        self.done.put(list(zip(taken, values, strict=True)))

    def _submit(self, task: Callable[[], None]) -> None:
        def run() -> None:
            try:
                if torch.get_num_threads() != self.threads:
                    torch.set_num_threads(self.threads)
                task()
            except Exception as error:  # `BatchScorer.score` raises it
                self.done.put(error)

        self.scorer.pool.submit(run)


def _scored_index(row: Sequence[int], pad: int | None) -> int:
    """The index of the token that the head reads: the last but padding (`GenericForSequenceClassification`)."""
    last = len(row) - 1
    while last > 0 and row[last] == pad:
        last -= 1
    return last
