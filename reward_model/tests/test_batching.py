"""The queue: bounded, oldest first, fair to those who wait and blind to those who left."""

import asyncio
import threading
import time

import pytest

from reward_model.datatypes import Encoded, RewardScore
from reward_model.service.batching import Batcher, BusyError


class Scripted:
    """Scores a conversation by its first token; waits for `go` before each round and notes what it was given."""

    def __init__(self, *, waits: bool = False) -> None:
        self.rounds: list[list[int]] = []
        self.go = threading.Event()
        if not waits:
            self.go.set()

    def score(self, round_):
        self.rounds.append([encoded.ids[0] for encoded in round_])
        assert self.go.wait(10)
        if any(encoded.ids[0] == 13 for encoded in round_):
            raise ValueError("a secret text")
        for index in reversed(range(len(round_))):
            yield [(index, RewardScore(float(round_[index].ids[0])))]


def said(*numbers):
    return len(numbers), lambda: [Encoded((number,)) for number in numbers]


async def until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def values(batcher, *numbers):
    return [score.value for score in await batcher.score(*said(*numbers))]


async def test_each_request_gets_its_own_scores_in_its_order():
    batcher = Batcher(Scripted(), max_queue=10)
    assert await asyncio.gather(values(batcher, 1, 2, 3), values(batcher, 4)) == [[1.0, 2.0, 3.0], [4.0]]
    batcher.close()


async def test_what_gathers_during_a_round_is_the_next_round():
    model = Scripted(waits=True)
    batcher = Batcher(model, max_queue=10)
    tasks = [asyncio.create_task(values(batcher, 1))]
    await until(lambda: model.rounds == [[1]])
    tasks += [asyncio.create_task(values(batcher, number)) for number in (2, 3)]
    await until(lambda: len(batcher._waiting) == 2)
    model.go.set()
    assert await asyncio.gather(*tasks) == [[1.0], [2.0], [3.0]]
    assert model.rounds == [[1], [2, 3]]
    batcher.close()


async def test_past_the_last_place_a_request_is_refused_and_takes_none():
    model = Scripted(waits=True)
    batcher = Batcher(model, max_queue=3)
    first = asyncio.create_task(values(batcher, 1, 2))
    await until(lambda: model.rounds)
    with pytest.raises(BusyError, match="2 of 3 places are taken, 2 were asked for") as caught:
        await batcher.score(*said(3, 4))
    assert caught.value.reason == "queue_full"
    third = asyncio.create_task(values(batcher, 5))
    model.go.set()
    assert (await first, await third) == ([1.0, 2.0], [5.0])
    batcher.close()


async def test_a_request_that_gave_up_is_not_scored_and_frees_its_place():
    model = Scripted(waits=True)
    batcher = Batcher(model, max_queue=3)
    first = asyncio.create_task(values(batcher, 1))
    await until(lambda: model.rounds == [[1]])
    given_up = asyncio.create_task(values(batcher, 2))
    last = asyncio.create_task(values(batcher, 3))
    await until(lambda: len(batcher._waiting) == 2)
    given_up.cancel()
    await until(lambda: batcher._places == 2)
    model.go.set()
    assert (await first, await last) == ([1.0], [3.0])
    assert model.rounds == [[1], [3]]
    batcher.close()


async def test_one_conversation_that_fails_fails_alone_and_leaves_no_text_in_the_log(caplog):
    model = Scripted(waits=True)
    batcher = Batcher(model, max_queue=10)
    tasks = [asyncio.create_task(values(batcher, 1))]
    await until(lambda: model.rounds == [[1]])
    tasks += [asyncio.create_task(values(batcher, number)) for number in (2, 13, 3)]
    await until(lambda: len(batcher._waiting) == 3)
    model.go.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [found[0], found[1], found[3]] == [[1.0], [2.0], [3.0]]
    assert isinstance(found[2], ValueError)
    assert "ValueError" in caplog.text and "secret" not in caplog.text
    batcher.close()


async def test_a_drain_answers_what_was_accepted_and_accepts_nothing_more():
    model = Scripted(waits=True)
    batcher = Batcher(model, max_queue=10)
    accepted = asyncio.create_task(values(batcher, 1))
    await until(lambda: model.rounds)
    drained = asyncio.create_task(batcher.drain(5))
    await asyncio.sleep(0)
    with pytest.raises(BusyError, match="ending"):
        await batcher.score(*said(2))
    model.go.set()
    assert (await accepted, await drained) == ([1.0], True)
    batcher.close()


async def test_a_drain_that_takes_too_long_says_so():
    model = Scripted(waits=True)
    batcher = Batcher(model, max_queue=10)
    accepted = asyncio.create_task(values(batcher, 1))
    await until(lambda: model.rounds)
    assert await batcher.drain(0.05) is False
    model.go.set()
    await accepted
    batcher.close()
