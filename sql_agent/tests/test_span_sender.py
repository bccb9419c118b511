"""Spans that go to the store together, before the store of a run and agent-lightning's own."""

import asyncio
import contextlib
import json
import math
from types import SimpleNamespace

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from agentgrpo.agl_without_litellm import agl
from agentgrpo.machine import free_port
from sql_agent.credit.row import Turn
from sql_agent.lightning import store as store_client
from sql_agent.lightning.agent import RolloutLostError
from sql_agent.lightning.runner import ConcurrentRunner, PassiveTracer
from sql_agent.lightning.spans import outcome_span, packed, read_turns, turn_span
from sql_agent.lightning.store import RetryingStore, SpanSender
from sql_agent.model_servers.turns import TURN, turn_of, with_turn
from sql_agent.store_server import BoundedStore, StoreServer
from sql_agent.tests.faults.proxy import Fault, FaultProxy
from sql_agent.tests.records import make_outcome, reported

KINDS = ["the store of a run", "agl store"]


@contextlib.asynccontextmanager
async def serving(kind):
    """Yields the store's address and the paths that it is asked for."""
    at = {"host": "127.0.0.1", "port": free_port()}
    if kind == "agl store":
        server = agl.LightningStoreServer(agl.InMemoryLightningStore(thread_safe=True), **at)
    else:
        server = StoreServer(BoundedStore(), **at)
    asked = []

    class Count:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            asked.append(scope.get("path"))
            await self.app(scope, receive, send)

    server.app.add_middleware(Count)
    await server.start()
    try:
        yield server.endpoint, asked
    finally:
        await server.stop()


@pytest.fixture(params=KINDS)
async def served(request):
    async with serving(request.param) as (url, asked):
        store = RetryingStore(url)
        yield store, asked
        await store.close()


ANSWER = {
    "id": "chatcmpl-1",
    "system_fingerprint": "7",
    "prompt_token_ids": [1, 2, 151_643],
    "choices": [
        {
            "message": {"content": None, "tool_calls": [{"id": "call-1"}]},
            "finish_reason": "tool_calls",
            "token_ids": [3, 4, 5],
            "logprobs": {"content": [{"logprob": -0.1 - 0.2}, {"logprob": -5e-324}, {"logprob": -math.inf}]},
        }
    ],
}
EXACT = Turn((1, 2, 151_643), (3, 4, 5), (-0.30000000000000004, -5e-324, -math.inf), True, "scout", 7, 2)


def turn(rollout, number, answer=ANSWER):
    attributes = turn_of(answer, agent="scout", asked_again=2)
    return turn_span(attributes, rollout.rollout_id, rollout.attempt.attempt_id, number, started=1_700_000_000.25)


def reward(rollout):
    outcome = make_outcome(0.75, verdict=1.0, reason="match")
    return outcome_span(outcome, rollout.rollout_id, rollout.attempt.attempt_id)


async def test_a_span_is_for_the_store_what_it_was():
    from agentlightning.utils.otlp import spans_from_proto

    (rollout,) = [agl.AttemptedRollout(rollout_id="ro-1", input={}, start_time=0.0, attempt=agl.Attempt(
        rollout_id="ro-1", attempt_id="at-1", sequence_id=1, start_time=0.0, status="running"))]  # fmt: skip
    sent = [turn(rollout, 1), reward(rollout)]
    request = ExportTraceServiceRequest()
    request.ParseFromString(packed(sent))

    async def nothing_to_number(asked):
        assert list(asked) == []
        return []

    ids = {"agentlightning.rollout_id": "ro-1", "agentlightning.attempt_id": "at-1"}
    for before, after in zip(sent, await spans_from_proto(request, nothing_to_number), strict=True):
        whole = before.model_dump()
        whole["resource"]["attributes"] = ids | {"agentlightning.span_sequence_id": before.sequence_id}
        times = {name: pytest.approx(whole[name], abs=1e-6) for name in ("start_time", "end_time")}
        assert after.model_dump() == whole | times
        assert after.attributes == before.attributes


async def test_ids_log_probs_and_rewards_come_back_to_the_last_bit(served):
    store, _ = served
    rollout = await store.start_rollout(input={})
    await asyncio.gather(store.add_span(turn(rollout, 1)), store.add_span(reward(rollout)))
    spans = await store.query_spans(rollout.rollout_id, attempt_id="latest")
    assert read_turns(spans) == [EXACT]
    assert reported(spans).reward == 0.75


async def test_spans_of_many_rollouts_go_in_one_request_and_a_reward_behind_its_turns(served):
    store, asked = served
    rollouts = [await store.start_rollout(input={}) for _ in range(8)]
    asked.clear()
    await asyncio.gather(
        *(store.add_span(span) for each in rollouts for span in (turn(each, 1), turn(each, 2), reward(each)))
    )
    assert asked == ["/v1/traces"]
    for rollout in rollouts:
        spans = await store.query_spans(rollout.rollout_id, attempt_id="latest", sort_by=None)
        assert [span.sequence_id for span in spans] == [1, 2, 1_000_000_000]
        assert [span.attempt_id for span in spans] == [rollout.attempt.attempt_id] * 3


async def test_what_comes_during_a_request_goes_with_the_next_one(served):
    store, asked = served
    rollout = await store.start_rollout(input={})
    asked.clear()
    writing = [asyncio.create_task(store.add_span(turn(rollout, 1)))]
    while "/v1/traces" not in asked:
        await asyncio.sleep(0.001)
    writing += [asyncio.create_task(store.add_span(turn(rollout, number))) for number in (2, 3, 4)]
    await asyncio.gather(*writing)
    assert asked.count("/v1/traces") == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_one_unknown_rollout_costs_the_others_nothing(kind, monkeypatch):
    monkeypatch.setattr(store_client, "PATIENCE_S", 0.5)
    async with serving(kind) as (url, _):
        store = RetryingStore(url)
        one, other = [await store.start_rollout(input={}) for _ in range(2)]
        unknown = one.model_copy(update={"rollout_id": "ro-unknown"})
        ends = await asyncio.gather(
            *(store.add_span(span) for span in (turn(one, 1), turn(unknown, 1), turn(other, 1), reward(other))),
            return_exceptions=True,
        )
        refused = [isinstance(end, ConnectionError) for end in ends]
        assert refused == [False, kind == "agl store", False, False]  # that of a run drops it: its rollout was read
        found = [await store.query_spans(each.rollout_id, sort_by=None) for each in (one, other)]
        assert [[span.sequence_id for span in spans] for spans in found] == [[1], [1, 1_000_000_000]]
        await store.close()


@pytest.mark.parametrize("kind", ["500", "lost", "half", "outage"])
@pytest.mark.parametrize("of_store", KINDS)
async def test_a_span_is_there_once_when_its_sender_goes_on_whatever_becomes_of_a_request(of_store, kind):
    async with serving(of_store) as (url, _):
        with FaultProxy(url).serving() as faulty:
            store = RetryingStore(faulty.url)
            rollout = await store.start_rollout(input={})
            fault = faulty.inject(Fault(kind, requests=1, seconds=0.3, path="traces"))
            await asyncio.gather(*(store.add_span(span) for span in (turn(rollout, 1), turn(rollout, 2))))
            assert fault.hits >= 1
            spans = await store.query_spans(rollout.rollout_id)
            await store.close()
    assert [span.sequence_id for span in spans] == [1, 2]


async def test_of_a_rollout_whose_first_span_fails_no_other_is_tried():
    asked = []

    async def refuse(what):
        asked.append(what)
        raise ConnectionError("away")

    span = SimpleNamespace(rollout_id="ro-1")  # which no request can hold, so each goes by itself
    sender = SpanSender(refuse, refuse)
    ends = await asyncio.gather(*(sender.send(span) for _ in range(3)), return_exceptions=True)
    assert (len(asked), [str(end) for end in ends]) == (1, ["away"] * 3)


async def test_a_rollout_whose_runner_is_told_to_end_before_the_store_has_its_spans_is_no_success():
    """agent-lightning would report one, and the rollout would be lost for want of a reward instead of played again."""
    silent = await asyncio.start_server(lambda *_: asyncio.sleep(60), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    runner = ConcurrentRunner(PassiveTracer(), concurrency=1, poll_s=0.02, store_url=url)
    runner._store = store = RetryingStore(url)
    rollout = SimpleNamespace(rollout_id="ro-1", attempt=SimpleNamespace(attempt_id="at-1"))
    sending = asyncio.create_task(runner._post_process_rollout_result(rollout, [turn(rollout, 1), reward(rollout)]))
    await asyncio.sleep(0.1)
    sending.cancel()
    with pytest.raises(RolloutLostError, match="told to end before the store had its spans"):
        await sending
    await store.close()
    silent.close()


async def test_a_sender_that_is_cancelled_takes_no_span_of_others_with_it(served):
    store, _ = served
    gone, stays = [await store.start_rollout(input={}) for _ in range(2)]
    leaving = asyncio.create_task(store.add_span(turn(gone, 1)))
    staying = asyncio.create_task(store.add_span(turn(stays, 1)))
    await asyncio.sleep(0)
    leaving.cancel()
    await staying
    assert leaving.cancelled()
    assert len(await store.query_spans(stays.rollout_id)) == 1


async def test_an_attribute_that_the_request_cannot_hold_goes_as_before(served):
    store, asked = served
    rollout = await store.start_rollout(input={})
    span = turn(rollout, 1)
    span.attributes["numbers"] = [1, 2]
    await store.add_span(span)
    (found,) = await store.query_spans(rollout.rollout_id)
    assert (found.attributes["numbers"], "/v1/traces" in asked) == ([1, 2], False)


def test_a_reply_whose_caller_writes_the_span_has_its_ids_as_one_text_each():
    packed_once = with_turn(ANSWER, asked_again=2)
    assert packed_once[TURN] == turn_of(ANSWER, asked_again=2)
    assert packed_once[TURN]["prompt_token_ids"] == "[1, 2, 151643]"
    (choice,) = packed_once["choices"]
    assert (choice["token_ids"], choice["logprobs"], packed_once["prompt_token_ids"]) == (None, None, None)
    assert with_turn(json.loads(json.dumps(packed_once))) == packed_once  # behind the LLM proxy, which did it
