"""Counts the connections that the HTTP protocol refuses before any request (`agentgrpo.http_protocol`)."""

from __future__ import annotations

from agentgrpo.http_protocol import GuardedHttpProtocol
from reward_model.service import metrics


class CountedHttpProtocol(GuardedHttpProtocol):
    def refuse(self, reason: str) -> None:
        metrics.REJECTED.labels(reason).inc()
        super().refuse(reason)
