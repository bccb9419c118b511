"""Whether the trainer is alive, told by the heartbeats that it sends to the store.

The store stamps a heartbeat with its own clock, which may be another machine's and minutes off. So its time is compared
with that of the heartbeat before and with nothing else, and the watcher's own clock says for how long none has come.
"""

from __future__ import annotations

from dataclasses import dataclass

TRAINER_WORKER = "trainer"
"""The worker name under which the algorithm sends heartbeats to the store; runners watch it."""
HEARTBEAT_S = 5.0
"""The pause between two heartbeats, and the longest that one may take to reach the store."""
TRAINER_GONE_S = 60.0


@dataclass(frozen=True)
class Heartbeat:
    """What has been learnt of a worker by looking at its heartbeats."""

    beat: float | None
    """Time of the newest heartbeat, on the store's clock; None before the first one."""
    since: float
    """When it was first looked at, on the watcher's monotonic clock."""
    seen: bool = False
    """Whether it came while the watcher looked; the heartbeat of the first look may be that of an earlier run."""

    def is_silent(self, now: float) -> bool:
        return self.seen and now - self.since > TRAINER_GONE_S


def look(heartbeat: Heartbeat | None, beat: float | None, now: float) -> Heartbeat:
    """What is known after one more look.

    Args:
        heartbeat: what was known before; None at the first look.
        beat: `last_heartbeat_time` in the store; None if the store has no heartbeat, as one that was started again.
        now: on the watcher's monotonic clock.
    """
    if heartbeat is None:
        return Heartbeat(beat, now)
    return heartbeat if beat in (None, heartbeat.beat) else Heartbeat(beat, now, seen=True)
