"""The store that lets go of what has been read: what stays in it, and for how long."""

import sys
import time

import pytest

from agentgrpo.agl_without_litellm import agl
from sql_agent import store_server as module
from sql_agent.store_server import FIRST, READ, BoundedStore, span_bytes


def span(rollout, number=1):
    fields = agl.SpanCoreFields(
        name="litellm_request",
        attributes={"prompt_token_ids": [70_000] * 1_000, "response_token_ids": [70_001] * 100},
        start_time=1.0,
        end_time=2.0,
        status=agl.TraceStatus(status_code="OK"),
    )
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    return agl.Span.from_core_fields(fields, **ids, sequence_id=number)


async def played(store, count=1, status="succeeded"):
    """`count` rollouts of two turns each that a runner has ended."""
    request = agl.EnqueueRolloutRequest(input={"question": "how many?"}, metadata={"run_id": "run"})
    await store.enqueue_many_rollouts([request] * count)
    rollouts = await store.dequeue_many_rollouts(limit=count, worker_id="runner")
    for rollout in rollouts:
        for number in (1, 2):
            await store.add_span(span(rollout, number))
        if status is not None:
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)
    return rollouts


async def read(store, rollout):
    await store.update_rollout(rollout.rollout_id, metadata={**rollout.metadata, READ: [rollout.rollout_id]})


async def spans_left(store):
    """Spans and their bytes as the store counts them, and rollouts that have a place for spans."""
    statistics = await store.statistics()
    return statistics["total_spans"], statistics["total_span_bytes"], len(store.collections.spans._items)


async def test_spans_stay_until_they_are_marked_as_read_and_go_then():
    store = BoundedStore()
    one, other = await played(store, 2)
    assert len(await store.query_spans(one.rollout_id, attempt_id="latest")) == 2
    assert len(await store.query_spans(one.rollout_id, attempt_id="latest")) == 2  # read again while some are missing
    await read(store, one)
    assert list(await store.query_spans(one.rollout_id, attempt_id="latest")) == []
    assert await spans_left(store) == (2, 2 * span_bytes(span(other)), 1)
    await read(store, other)
    await read(store, other)  # the request was repeated
    assert await spans_left(store) == (0, 0, 0)
    assert [r.status for r in await store.query_rollouts()] == ["succeeded", "succeeded"]  # still listed


async def test_one_request_marks_many_rollouts_as_read():
    store = BoundedStore()
    one, two, three = await played(store, 3)
    await store.update_rollout(one.rollout_id, metadata={READ: [one.rollout_id, two.rollout_id]})
    left = [len(await store.query_spans(each.rollout_id, attempt_id="latest")) for each in (one, two, three)]
    assert left == [0, 0, 2]


async def test_who_asks_without_waiting_gets_those_that_have_ended_in_the_order_of_the_question():
    store = BoundedStore()
    ended, failed, plays = (
        *await played(store),
        *await played(store, status="failed"),
        *await played(store, status=None),
    )
    names = [rollout.rollout_id for rollout in (failed, plays, ended)]
    found = await store.wait_for_rollouts(rollout_ids=[*names, "ro-unknown"], timeout=0)
    assert [(each.rollout_id, each.status) for each in found] == [(names[0], "failed"), (names[2], "succeeded")]


async def test_a_question_notices_a_rollout_whose_time_is_over(monkeypatch):
    store = BoundedStore()
    config = agl.RolloutConfig(timeout_seconds=5.0)
    await store.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input={}, config=config)])
    (rollout,) = await store.dequeue_many_rollouts(limit=1, worker_id="runner")
    later = time.time() + 20.0
    monkeypatch.setattr(time, "time", lambda: later)
    (found,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0)
    assert found.status == "failed"


async def test_late_spans_of_a_cancelled_or_read_rollout_do_not_stay():
    store = BoundedStore()
    (cancelled,) = await played(store, status=None)
    await store.update_rollout(cancelled.rollout_id, status="cancelled")
    (done,) = await played(store)
    await read(store, done)
    for rollout in (cancelled, done):
        assert await store.add_span(span(rollout, 3)) is None
        assert list(await store.add_many_spans([span(rollout, 4)])) == []
    await store.update_attempt(cancelled.rollout_id, "latest", status="succeeded")  # its runner played on
    assert await store.add_span(span(cancelled, 5)) is None
    assert await spans_left(store) == (0, 0, 0)


@pytest.mark.parametrize("status", ["failed", "timeout", "succeeded"])
async def test_a_cancelled_rollout_stays_cancelled_however_its_attempt_ends(status):
    store = BoundedStore()
    retry = agl.RolloutConfig(max_attempts=3, retry_condition=["failed", "timeout"])
    await store.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input={}, config=retry)])
    (rollout,) = await store.dequeue_many_rollouts(limit=1, worker_id="runner")
    await store.update_rollout(rollout.rollout_id, status="cancelled")
    await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status=status)
    assert (await store.get_rollout_by_id(rollout.rollout_id)).status == "cancelled"
    assert list(await store.dequeue_many_rollouts(limit=1)) == []


async def test_a_span_that_was_let_in_just_before_its_rollout_was_read_goes_too(monkeypatch):
    store = BoundedStore()
    (rollout,) = await played(store)
    insert = store._insert_spans_with_fallback

    async def read_meanwhile(spans):
        await read(store, rollout)
        return await insert(spans)

    monkeypatch.setattr(store, "_insert_spans_with_fallback", read_meanwhile)
    await store.add_span(span(rollout, 3))
    assert await spans_left(store) == (0, 0, 0)


async def test_the_oldest_rollouts_are_forgotten_whole(monkeypatch):
    monkeypatch.setattr(module, "KEPT_ROLLOUTS", 3)
    store = BoundedStore()
    rollouts = await played(store, 10)
    for rollout in rollouts:
        await read(store, rollout)
    assert [r.rollout_id for r in await store.query_rollouts()] == [r.rollout_id for r in rollouts[7:]]
    for by_rollout in (
        store.collections.rollouts._items,
        store.collections.attempts._items,
        store.collections.span_sequence_ids._values,
        store._closed,
        store._completion_events,
        store._start_time_by_rollout,
    ):
        assert list(by_rollout) == [r.rollout_id for r in rollouts[7:]]
    assert await store.add_span(span(rollouts[0], 3)) is None  # taken, for nobody
    assert rollouts[0].rollout_id not in store.collections.span_sequence_ids._values
    statistics = await store.statistics()
    assert (statistics["total_rollouts"], statistics["total_attempts"]) == (3, 3)


async def test_a_rollout_that_was_cancelled_in_the_queue_and_forgotten_is_not_claimed(monkeypatch):
    monkeypatch.setattr(module, "KEPT_ROLLOUTS", 0)
    store = BoundedStore()
    request = agl.EnqueueRolloutRequest(input={})
    late, wanted = await store.enqueue_many_rollouts([request] * 2)
    await store.update_rollout(late.rollout_id, status="cancelled")
    assert [r.rollout_id for r in await store.dequeue_many_rollouts(limit=2)] == [wanted.rollout_id]


async def test_what_nobody_ever_reads_goes_an_hour_after_its_end(monkeypatch):
    store = BoundedStore()
    (unread,) = await played(store)
    (unfinished,) = await played(store, status=None)
    now = time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 3_590.0)
    await store.enqueue_many_rollouts([])
    assert (await spans_left(store))[0] == 4
    monkeypatch.setattr(module.time, "time", lambda: now + 3_610.0)
    await store.enqueue_many_rollouts([])
    assert list(await store.query_spans(unread.rollout_id)) == []
    assert len(await store.query_spans(unfinished.rollout_id)) == 2


async def test_unread_spans_may_take_a_quarter_of_what_the_container_may_use(monkeypatch, caplog):
    one = span_bytes(some_span())
    monkeypatch.setattr(module, "memory_limits", lambda: [4 * 5 * one])
    store = BoundedStore()  # room for 5 spans; beyond it the oldest rollouts go until 4 are left
    first, *_, last = await played(store, 3)
    assert len(await store.query_spans(last.rollout_id)) == 2
    assert list(await store.query_spans(first.rollout_id)) == []
    assert (await store.statistics())["eviction_threshold_bytes"] == 5 * one
    assert await spans_left(store) == (4, 4 * one, 2)
    assert "those of the oldest rollouts are dropped, and these rollouts are lost under missing_spans" in caplog.text


def some_span():
    """One like all the others."""
    rollout = agl.AttemptedRollout(
        rollout_id="ro",
        input={},
        start_time=0.0,
        attempt=agl.Attempt(rollout_id="ro", attempt_id="at", sequence_id=1, start_time=0.0),
    )
    return span(rollout)


def test_the_size_of_a_span_is_that_of_its_numbers():
    # a list of 1,000 has pointers of 8,000 bytes and integers of 32,000, one of 100 a tenth of that: 44,000 and headers
    assert span_bytes(some_span()) == pytest.approx(44_000, rel=0.1)
    assert sys.getsizeof(70_000) <= 32


async def test_what_may_pass_is_handed_out_before_what_came_earlier():
    store = BoundedStore()
    await store.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input=number) for number in (0, 1)])
    await store.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input=2, metadata={FIRST: True})] * 2)
    await store.enqueue_rollout(3, metadata={FIRST: True})  # the server queues a single one by this
    claimed = await store.dequeue_many_rollouts(limit=8, worker_id="runner")
    assert [rollout.input for rollout in claimed] == [3, 2, 2, 0, 1]
