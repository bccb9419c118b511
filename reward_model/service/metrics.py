"""Prometheus metrics. Labels are routes, statuses and reasons, never a request's text."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

REQUESTS = Counter("reward_requests_total", "Requests answered", ["route", "status"], registry=REGISTRY)
SECONDS = Histogram(
    "reward_request_seconds",
    "Seconds from the request's headers to its answer",
    ["route"],
    registry=REGISTRY,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
REJECTED = Counter("reward_rejected_total", "Requests refused or given up", ["reason"], registry=REGISTRY)
QUEUED = Gauge("reward_queue_conversations", "Conversations accepted and not yet answered", registry=REGISTRY)
SCORED = Counter("reward_scored_total", "Conversations scored", registry=REGISTRY)
TRUNCATED = Counter("reward_truncated_total", "Conversations that were cut before scoring", registry=REGISTRY)
BATCH_SIZE = Histogram(
    "reward_batch_conversations",
    "Conversations of one batch",
    registry=REGISTRY,
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
)
BATCH_SECONDS = Histogram(
    "reward_batch_seconds",
    "Seconds of one batch",
    registry=REGISTRY,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
COMPUTED = Counter("reward_computed_tokens_total", "Tokens through the model, padding included", registry=REGISTRY)
SHARED = Counter("reward_shared_tokens_total", "Tokens of conversations that a shared prefix held", registry=REGISTRY)
