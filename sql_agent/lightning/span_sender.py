"""Sends spans to the store together: many spans of many rollouts in one request of OTLP, which agent-lightning's store
takes beside its own JSON.

A span by itself costs the store a request, its validation and its echo; sixteen together cost as much as three. Leaves
out the connection to the store and what happens while it is away (`store`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from agentgrpo.agl_without_litellm import agl

logger = logging.getLogger(__name__)

# Seconds that a span waits for others. A step's last rollout is read that much later at most.
HOLD_S = 0.01
# Spans of one request; the store does nothing else while it takes them.
MOST_SPANS = 64
_IDS = agl.semconv.LightningResourceAttributes


class SpanSender:
    """It belongs to one event loop.

    Args:
        send_many: sends the body of an OTLP request; what it raises is not repeated.
        send_one: sends one span, and tries again as long as that makes sense.
    """

    def __init__(
        self, send_many: Callable[[bytes], Awaitable[None]], send_one: Callable[[Any], Awaitable[Any]]
    ) -> None:
        self._send_many, self._send_one = send_many, send_one
        self._held: list[tuple[Any, asyncio.Future[None]]] = []
        self._at_work: set[asyncio.Task[None]] = set()
        self._sending = False

    async def send(self, span: Any) -> None:
        """Return when the store has the span; a rollout has ended when all of its spans have returned."""
        stored = asyncio.get_running_loop().create_future()
        self._held.append((span, stored))
        if not self._sending:
            self._sending = True
            self._begin(self._send_held())
        await stored

    async def _send_held(self) -> None:
        # One request at a time: what comes meanwhile is held, so the busier the store, the more goes together.
        try:
            await asyncio.sleep(HOLD_S)
            while self._held:
                batch, self._held = self._held[:MOST_SPANS], self._held[MOST_SPANS:]
                try:
                    await self._send_many(packed([span for span, _ in batch]))
                except Exception as error:  # one unknown rollout, for which a store refuses all, or no store at all
                    logger.info("%d spans go one by one: %s: %s", len(batch), type(error).__name__, error)
                    for of_rollout in _by_rollout(batch):
                        self._begin(self._one_by_one(of_rollout))
                else:
                    for _, stored in batch:
                        _settle(stored)
        finally:
            self._sending = False

    async def _one_by_one(self, batch: Iterable[tuple[Any, asyncio.Future[None]]]) -> None:
        failed: Exception | None = None
        for span, stored in batch:
            if failed is None:
                try:
                    await self._send_one(span)
                except Exception as error:  # its sender hears of it; the rest would wait for the same store again
                    failed = error
            _settle(stored, failed)

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)


def _settle(stored: asyncio.Future[None], error: Exception | None = None) -> None:
    if stored.done():  # its sender was cancelled
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)


def _by_rollout(batch: Sequence[tuple[Any, Any]]) -> Iterable[list[tuple[Any, Any]]]:
    found: dict[str, list[tuple[Any, Any]]] = {}
    for entry in batch:
        found.setdefault(entry[0].rollout_id, []).append(entry)
    return found.values()


def packed(spans: Iterable[Any]) -> bytes:
    """The body of a request with these spans, in their order.

    Raises:
        TypeError, ValueError: an attribute is nothing that OTLP can hold.
    """
    request = ExportTraceServiceRequest()
    for span in spans:
        entry = request.resource_spans.add()
        ids = {_IDS.ROLLOUT_ID: span.rollout_id, _IDS.ATTEMPT_ID: span.attempt_id}
        ids[_IDS.SPAN_SEQUENCE_ID] = span.sequence_id
        entry.resource.attributes.extend(_key_value(name.value, value) for name, value in ids.items())
        entry.scope_spans.add().spans.add(
            trace_id=bytes.fromhex(span.trace_id),
            span_id=bytes.fromhex(span.span_id),
            name=span.name,
            start_time_unix_nano=_nanoseconds(span.start_time),
            end_time_unix_nano=_nanoseconds(span.end_time),
            attributes=[_key_value(name, value) for name, value in span.attributes.items()],
            status=Status(code=Status.StatusCode.Value(f"STATUS_CODE_{span.status.status_code}")),
        )
    return request.SerializeToString()


def _key_value(name: str, value: Any) -> KeyValue:
    if isinstance(value, bool):
        return KeyValue(key=name, value=AnyValue(bool_value=value))
    if isinstance(value, int):
        return KeyValue(key=name, value=AnyValue(int_value=value))
    if isinstance(value, float):
        return KeyValue(key=name, value=AnyValue(double_value=value))
    if isinstance(value, str):
        return KeyValue(key=name, value=AnyValue(string_value=value))
    raise TypeError(f"attribute {name} is {type(value).__name__}; a span holds texts and numbers, lists as JSON")


def _nanoseconds(seconds: float | None) -> int:
    return int(1e9 * seconds) if seconds else 0
