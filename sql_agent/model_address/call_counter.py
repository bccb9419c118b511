"""Numbers the model calls of each attempt, in bounded memory."""

from __future__ import annotations

# Number of attempts to remember, about 2 MiB; runners have far fewer in flight.
KEPT = 8192


class CallCounter:
    """
    Args:
        kept: attempts to remember; an attempt is forgotten once this many others have called after its last call.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        # Number of calls of each attempt; the attempt that called last is at the end.
        self._calls: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def next(self, rollout_id: str, attempt_id: str) -> int:
        number = self._calls.pop((rollout_id, attempt_id), 0) + 1
        self._calls[rollout_id, attempt_id] = number
        if len(self._calls) > self._kept:
            del self._calls[next(iter(self._calls))]
        return number
