from agentgrpo.durations import format_time, left


def test_seconds_are_written_with_two_digits():
    seconds = (0.4, 99.4, 99.6, 5969, 5971, 35819, 35821)
    assert list(map(format_time, seconds)) == ["0 s", "99 s", "2 min", "99 min", "1.7 h", "9.9 h", "10 h"]


def test_what_is_left_goes_on_at_the_speed_so_far():
    assert left(30.0, 2, 10) == "2 min left"  # 15 s a step, eight of them
    assert [left(30.0, 0, 10), left(30.0, 10, 10)] == [None, None]
