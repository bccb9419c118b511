"""The queue: bounded, oldest first, fair to those who wait and blind to those who left."""

import asyncio
import threading
import time

import pytest

from reward_model.datatypes import EncodedConversation, RewardScore
from reward_model.service.request_queue import BusyError, RequestQueue


class Scripted:
    """Scores a conversation by its first token; waits for `go` before each batch and notes what it was given."""

    def __init__(self, *, waits: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        if not waits:
            self.go.set()

    def score(self, batch):
        self.batches.append([encoded.ids[0] for encoded in batch])
        assert self.go.wait(10)
        if any(encoded.ids[0] == 13 for encoded in batch):
            raise ValueError("a secret text")
        for index in reversed(range(len(batch))):
            yield [(index, RewardScore(float(batch[index].ids[0])))]


def said(*numbers):
    return len(numbers), lambda: [EncodedConversation((number,)) for number in numbers]


async def until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def values(queue, *numbers):
    return [score.value for score in (await queue.score(*said(*numbers)))[1]]


async def test_each_request_gets_its_own_scores_in_its_order():
    queue = RequestQueue(Scripted(), max_queue=10)
    assert await asyncio.gather(values(queue, 1, 2, 3), values(queue, 4)) == [[1.0, 2.0, 3.0], [4.0]]
    queue.close()


async def test_what_gathers_during_a_batch_is_the_next_batch():
    model = Scripted(waits=True)
    queue = RequestQueue(model, max_queue=10)
    tasks = [asyncio.create_task(values(queue, 1))]
    await until(lambda: model.batches == [[1]])
    tasks += [asyncio.create_task(values(queue, number)) for number in (2, 3)]
    await until(lambda: len(queue._waiting) == 2)
    model.go.set()
    assert await asyncio.gather(*tasks) == [[1.0], [2.0], [3.0]]
    assert model.batches == [[1], [2, 3]]
    queue.close()


async def test_past_the_last_slot_a_request_is_refused_and_takes_none():
    model = Scripted(waits=True)
    queue = RequestQueue(model, max_queue=3)
    first = asyncio.create_task(values(queue, 1, 2))
    await until(lambda: model.batches)
    with pytest.raises(BusyError, match="2 of 3 queue slots are taken, 2 were asked for") as caught:
        await queue.score(*said(3, 4))
    assert caught.value.reason == "queue_full"
    third = asyncio.create_task(values(queue, 5))
    model.go.set()
    assert (await first, await third) == ([1.0, 2.0], [5.0])
    queue.close()


async def test_a_request_that_gave_up_is_not_scored_and_frees_its_slot():
    model = Scripted(waits=True)
    queue = RequestQueue(model, max_queue=3)
    first = asyncio.create_task(values(queue, 1))
    await until(lambda: model.batches == [[1]])
    given_up = asyncio.create_task(values(queue, 2))
    last = asyncio.create_task(values(queue, 3))
    await until(lambda: len(queue._waiting) == 2)
    given_up.cancel()
    await until(lambda: queue._taken == 2)
    model.go.set()
    assert (await first, await last) == ([1.0], [3.0])
    assert model.batches == [[1], [3]]
    queue.close()


async def test_one_conversation_that_fails_fails_alone_and_leaves_no_text_in_the_log(caplog):
    model = Scripted(waits=True)
    queue = RequestQueue(model, max_queue=10)
    tasks = [asyncio.create_task(values(queue, 1))]
    await until(lambda: model.batches == [[1]])
    tasks += [asyncio.create_task(values(queue, number)) for number in (2, 13, 3)]
    await until(lambda: len(queue._waiting) == 3)
    model.go.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [found[0], found[1], found[3]] == [[1.0], [2.0], [3.0]]
    assert isinstance(found[2], ValueError)
    assert "ValueError" in caplog.text and "secret" not in caplog.text
    queue.close()


async def test_a_drain_answers_what_was_accepted_and_accepts_nothing_more():
    model = Scripted(waits=True)
    queue = RequestQueue(model, max_queue=10)
    accepted = asyncio.create_task(values(queue, 1))
    await until(lambda: model.batches)
    drained = asyncio.create_task(queue.drain(5))
    await asyncio.sleep(0)
    with pytest.raises(BusyError, match="ending"):
        await queue.score(*said(2))
    model.go.set()
    assert (await accepted, await drained) == ([1.0], True)
    queue.close()


async def test_a_drain_that_takes_too_long_says_so():
    model = Scripted(waits=True)
    queue = RequestQueue(model, max_queue=10)
    accepted = asyncio.create_task(values(queue, 1))
    await until(lambda: model.batches)
    assert await queue.drain(0.05) is False
    model.go.set()
    await accepted
    queue.close()
