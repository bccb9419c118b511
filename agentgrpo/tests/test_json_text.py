import json

import pytest

from agentgrpo.json_text import parse_json


def test_it_reads_what_json_reads():
    assert parse_json('{"a": [1, NaN]}', parse_constant=lambda _: None) == {"a": [1, None]}
    assert parse_json(b"[1]") == [1]


@pytest.mark.parametrize(
    ("text", "words"),
    [("[" * 100_000, "nested too deep"), ('{"a":' * 100_000, "nested too deep"), ("9" * 5_000, "4300 digits")],
)
def test_what_is_nested_too_deep_or_has_too_many_digits_is_not_json(text, words):
    with pytest.raises(json.JSONDecodeError, match=words):
        parse_json(text)
