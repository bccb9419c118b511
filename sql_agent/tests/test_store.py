"""The store's client, before a real store that fails as it is told to."""

import time

import aiohttp
import pytest

from agentgrpo.agl_without_litellm import agl
from agentgrpo.machine import free_port
from sql_agent.lightning import store as module
from sql_agent.lightning.store import UNFINISHED, RetryingStore, StoreUnavailableError
from sql_agent.tests.faults.proxy import Fault, FaultProxy

pytestmark = pytest.mark.slow


@pytest.fixture
async def client(store_url):
    """A patient client behind a proxy; yields both."""
    with FaultProxy(store_url).serving() as proxy:
        store = RetryingStore(proxy.url)
        yield store, proxy
        for rollout in await store.query_rollouts(status_in=UNFINISHED):
            await store.update_rollout(rollout.rollout_id, status="cancelled")
        await store.close()


def requests(run_id, count=3):
    return [agl.EnqueueRolloutRequest(input={"number": n}, metadata={"run_id": run_id}) for n in range(count)]


@pytest.mark.parametrize("kind", ["500", "lost", "half", "outage"])
async def test_rollouts_are_queued_once_whatever_becomes_of_the_answer(client, kind):
    store, proxy = client
    proxy.inject(Fault(kind, requests=2, seconds=0.5, path="enqueue"))
    queued = await store.enqueue_many_rollouts(requests(kind))
    assert [rollout.input for rollout in queued] == [{"number": 0}, {"number": 1}, {"number": 2}]
    there = [r.rollout_id for r in await store.query_rollouts() if (r.metadata or {}).get("run_id") == kind]
    assert there == [rollout.rollout_id for rollout in queued]


@pytest.mark.parametrize("kind", ["500", "lost", "half", "outage"])
async def test_one_rollout_is_queued_once_too(client, kind):
    store, proxy = client
    fault = proxy.inject(Fault(kind, requests=2, seconds=0.5, path="enqueue"))
    config, metadata = agl.RolloutConfig(max_attempts=2), {"one": kind, "sent": "mine", "number": 7}
    queued = await store.enqueue_rollout({"number": 0}, "val", config=config, metadata=metadata)
    assert (queued.input, queued.mode, queued.config, queued.metadata) == ({"number": 0}, "val", config, metadata)
    assert fault.hits >= 1
    there = [r.rollout_id for r in await store.query_rollouts() if (r.metadata or {}).get("one") == kind]
    assert there == [queued.rollout_id]


@pytest.mark.parametrize("metadata", [None, {}, {"sent": "mine"}], ids=["none", "empty", "a_key_of_ours_of_old"])
async def test_metadata_is_what_the_caller_gave_wherever_a_rollout_is_read(client, metadata):
    store, proxy = client
    for fault in (None, Fault("lost", requests=1, path="enqueue")):
        if fault is not None:
            proxy.inject(fault)
        (queued,) = await store.enqueue_many_rollouts([agl.EnqueueRolloutRequest(input="x", metadata=metadata)])
        id = queued.rollout_id
        (asked,) = await store.query_rollouts(rollout_id_in=[id])
        played = await store.dequeue_rollout()
        changed = await store.update_rollout(id, status="cancelled")
        (ended,) = await store.wait_for_rollouts(rollout_ids=[id], timeout=0)
        seen = [queued, asked, await store.get_rollout_by_id(id), played, changed, ended]
        assert [(each.rollout_id, each.metadata) for each in seen] == [(id, metadata or {})] * 6


async def test_a_request_that_arrived_twice_gives_each_place_its_own_rollout(client, monkeypatch):
    store, _ = client
    enqueue = agl.LightningStoreClient.enqueue_many_rollouts

    async def arrive_twice(self, rollouts):  # and mixed, after the client has given both up
        await enqueue(self, [rollout for rollout in rollouts for _ in range(2)])
        raise TimeoutError

    monkeypatch.setattr(agl.LightningStoreClient, "enqueue_many_rollouts", arrive_twice)
    queued = await store.enqueue_many_rollouts(requests("twice"))
    assert [rollout.input for rollout in queued] == [{"number": 0}, {"number": 1}, {"number": 2}]


@pytest.mark.parametrize("kind", ["500", "half", "outage"])
async def test_a_call_is_made_again_until_it_is_answered(client, kind):
    store, proxy = client
    fault = proxy.inject(Fault(kind, requests=4, seconds=1.0))
    assert await store.query_rollouts(status_in=["running"]) is not None
    assert fault.hits >= 3


async def test_what_the_store_refuses_is_not_asked_again(client):
    store, _ = client
    started = time.monotonic()
    with pytest.raises(aiohttp.ClientResponseError, match="422"):
        await store.query_rollouts(status_in=["no such state"])
    assert time.monotonic() - started < 1


async def test_a_store_that_stays_away_is_named(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    address = f"http://127.0.0.1:{free_port()}"
    store = RetryingStore(address)
    with pytest.raises(StoreUnavailableError, match=f"{address} failed for 1 s, the last time with ClientConnector"):
        await store.query_rollouts()
    await store.close()
