"""What need not end is stopped, and what it answers comes back."""

import os
import resource
import signal
import time

import psutil
import pytest

from agentgrpo.limited_fork import LimitError, forked


def test_the_result_comes_back_from_another_process_which_leaves_nothing():
    here, before = os.getpid(), psutil.Process().children()
    assert forked(lambda: ("x" * 10**6, os.getpid() == here)) == ("x" * 10**6, False)
    assert psutil.Process().children() == before


def test_what_it_raises_comes_back_in_words():
    def fails() -> None:
        raise KeyError("gone")

    with pytest.raises(RuntimeError, match="KeyError: 'gone'"):
        forked(fails)


def forever() -> None:
    while True:
        pass


def in_one_instruction() -> int:
    return 10 ** (10**9)


@pytest.mark.parametrize("work", [forever, in_one_instruction, lambda: sum(1 for _ in iter(int, 1))])
def test_what_does_not_end_is_stopped(work):
    with pytest.raises(LimitError, match=r"took more than 0.2 s"):
        forked(work, cpu_s=0.2)  # rounded up to a whole second, the kernel's unit


def test_what_only_waits_is_stopped_too():
    begun = time.monotonic()
    with pytest.raises(LimitError, match=r"took more than 0.05 s"):
        forked(lambda: time.sleep(60), cpu_s=0.05)
    assert time.monotonic() - begun < 30


def test_what_takes_memory_gets_an_error_and_this_process_keeps_its_own_limits():
    limits = resource.getrlimit(resource.RLIMIT_DATA), resource.getrlimit(resource.RLIMIT_CPU)
    with pytest.raises(RuntimeError, match="MemoryError"):
        forked(lambda: len(bytearray(10**9)), memory_bytes=10**8)
    assert (resource.getrlimit(resource.RLIMIT_DATA), resource.getrlimit(resource.RLIMIT_CPU)) == limits


def test_a_process_that_dies_is_no_answer():
    with pytest.raises(LimitError, match=r"ended its process \(-9\)"):
        forked(lambda: os.kill(os.getpid(), signal.SIGKILL))
