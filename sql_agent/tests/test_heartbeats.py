"""When a trainer is silent, by what its watcher saw and by no other machine's clock."""

import pytest

from sql_agent.lightning.heartbeats import Heartbeat, look

AHEAD, BEHIND = 1_700_000_600.0, 1_699_999_400.0
"""What the clocks of two stores say, 600 s before and after the watcher's."""


def heartbeat_after(*looks):
    heartbeat = None
    for beat, now in looks:
        heartbeat = look(heartbeat, beat, now)
    return heartbeat


@pytest.mark.parametrize("clock", [AHEAD, BEHIND, 0.0], ids=["ahead", "behind", "of_1970"])
def test_silence_is_counted_from_the_look_that_found_the_newest_heartbeat(clock):
    heartbeat = heartbeat_after((clock, 100.0), (clock + 5.0, 106.0), (clock + 5.0, 108.0))
    assert heartbeat == Heartbeat(clock + 5.0, 106.0, seen=True)
    # the limit is 60 s
    assert [heartbeat.is_silent(now) for now in (108.0, 166.0, 166.1)] == [False, False, True]


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        pytest.param([(50.0, 100.0)], Heartbeat(50.0, 100.0), id="may_be_of_an_earlier_run"),
        pytest.param([(50.0, 100.0), (50.0, 999.0)], Heartbeat(50.0, 100.0), id="is_of_an_earlier_run"),
        pytest.param([(None, 100.0), (None, 999.0)], Heartbeat(None, 100.0), id="not_there_yet"),
        pytest.param([(None, 100.0), (50.0, 102.0)], Heartbeat(50.0, 102.0, seen=True), id="the_first_one_came"),
        pytest.param(
            [(50.0, 100.0), (20.0, 102.0)], Heartbeat(20.0, 102.0, seen=True), id="the_stores_clock_was_set_back"
        ),
        pytest.param(
            [(50.0, 100.0), (55.0, 105.0), (None, 107.0)], Heartbeat(55.0, 105.0, seen=True), id="the_store_forgot_it"
        ),
        pytest.param(
            [(50.0, 100.0), (55.0, 105.0), (None, 107.0), (60.0, 110.0)],
            Heartbeat(60.0, 110.0, seen=True),
            id="and_heard_of_it_again",
        ),
    ],
)
def test_a_trainer_is_seen_once_a_heartbeat_comes_while_somebody_looks(looks, expected):
    assert heartbeat_after(*looks) == expected


def test_who_was_never_seen_is_not_silent():
    assert not Heartbeat(50.0, 100.0).is_silent(10_000.0)
