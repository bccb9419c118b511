"""How a round of conversations goes through the model: shared beginnings once, the rest in batches of like length.

On a CPU a forward pass costs what its tokens cost, so the gain is in computing fewer of them: a batch alone gains
little. On a GPU the launches cost more than the tokens at these sizes, so nothing is shared there.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


CPU = Pace(batch_tokens=4096, max_waste=64, min_saved=64)
GPU = Pace(batch_tokens=32768, max_waste=8192, min_saved=None)


class Rounds:
    """Scores many conversations at a time; for one thread."""

    def __init__(self, scorer: Scorer, pace: Pace) -> None:
        self.scorer, self.pace = scorer, pace
        self._pad: Any = scorer.tokenizer.pad_token_id

    @torch.inference_mode()
    def score(self, round_: Sequence[Encoded]) -> Iterator[list[tuple[int, Score]]]:
        """Scores with their indices in `round_`, as soon as each forward pass ends. Equal conversations cost one."""
        same: dict[tuple[int, ...], list[int]] = {}
        for index, encoded in enumerate(round_):
            same.setdefault(encoded.ids, []).append(index)
        rows = sorted(same)
        for scored in self._all(rows):
            yield [(index, Score(value, round_[index].truncated)) for row, value in scored for index in same[rows[row]]]

    def _all(self, rows: list[tuple[int, ...]]) -> Iterator[list[tuple[int, float]]]:
        if self.pace.min_saved is None:
            root = Node(0, 0, rows=list(range(len(rows))))
        else:
            root = plan_shared(rows, [_scored_at(row, self._pad) for row in rows], self.pace.min_saved)
            metrics.SHARED.inc(sum(map(len, rows)) - _planned(root, rows))
        yield from self._node(root, rows, None)

    def _node(self, node: Node, rows: list[tuple[int, ...]], cache: Any) -> Iterator[list[tuple[int, float]]]:
        if node.end > node.start:
            cache = self._extended(cache, _first(node, rows)[node.start : node.end], node.end)
        lengths = [len(rows[row]) - node.end for row in node.rows]
        for batch in plan_padded(lengths, self.pace.batch_tokens, self.pace.max_waste):
            taken = [node.rows[place] for place in batch]
            yield list(zip(taken, self._scores([rows[row][node.end :] for row in taken], cache, node.end), strict=True))
        for child in node.children:
            yield from self._node(child, rows, cache)

    def _extended(self, cache: Any, ids: Sequence[int], end: int) -> Any:
        """Keys and values of a beginning, `cache` being those of its own beginning, which is left as it is."""
        metrics.COMPUTED.inc(len(ids))
        return self._model(
            torch.tensor([ids]), torch.ones(1, end, dtype=torch.long), copy.deepcopy(cache), keep=True
        ).past_key_values

    def _scores(self, rests: list[Sequence[int]], cache: Any, start: int) -> list[float]:
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

    def _model(self, ids: torch.Tensor, mask: torch.Tensor, cache: Any, *, keep: bool) -> Any:
        device = self.scorer.model.device
        return self.scorer.model(
            input_ids=ids.to(device), attention_mask=mask.to(device), past_key_values=cache, use_cache=keep
        )


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
