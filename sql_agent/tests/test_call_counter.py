"""The numbers of an attempt's calls."""

import tracemalloc
import uuid

from sql_agent.model_address.call_log import KEPT, CallCounter


def test_an_attempt_that_goes_on_is_counted_however_many_come_and_go_meanwhile():
    counter = CallCounter(kept=3)
    for number in range(1, 100):
        assert counter.next("long", "a") == number
        assert counter.next(f"short {number}", "a") == 1
    assert len(counter) == 3
    assert counter.next("short 98", "a") == 2  # the last but one is still remembered
    assert counter.next("short 1", "a") == 1


def test_attempts_of_one_rollout_are_counted_apart():
    counter = CallCounter()
    assert [counter.next("r", "first"), counter.next("r", "first"), counter.next("r", "second")] == [1, 2, 1]


def test_three_times_as_many_attempts_as_are_kept_take_a_few_megabytes():
    counter = CallCounter()
    tracemalloc.start()
    for _ in range(3 * KEPT):
        counter.next(f"ro-{uuid.uuid4().hex[:12]}", f"at-{uuid.uuid4().hex[:8]}")
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(counter) == KEPT
    assert taken < 4 * 2**20  # about 250 bytes each: two texts, their tuple, a place in the dict
