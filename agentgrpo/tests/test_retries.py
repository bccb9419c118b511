import pytest

from agentgrpo.durations import pause_s, retry_after_s


@pytest.mark.parametrize(("attempt", "after_s", "least", "most"), [
    (0, None, 0.25, 0.75),  # 0.5 s, half of it more or less
    (2, None, 1.0, 3.0),  # 0.5 s x 2 x 2
    (9, None, 4.0, 12.0),  # no more than 8 s
    (0, 20.0, 20.0, 20.0),  # the server asked for longer
    (2, 0.1, 1.0, 3.0),
])  # fmt: skip
def test_pauses_double_and_vary_and_are_no_shorter_than_the_server_asks(attempt, after_s, least, most):
    pauses = [pause_s(attempt, 0.5, 8.0, after_s=after_s) for _ in range(50)]
    assert least <= min(pauses) and max(pauses) <= most
    assert (len(set(pauses)) == 1) == (least == most)


@pytest.mark.parametrize(("header", "seconds"), [
    ("3", 3.0), ("0.5", 0.5), ("-1", 0.0), (None, None), ("", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None),
])  # fmt: skip
def test_a_date_is_no_number_of_seconds(header, seconds):
    assert retry_after_s(header) == seconds
