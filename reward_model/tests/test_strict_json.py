"""JSON that Python lets pass and the standard does not is refused, and the field is named."""

import json
import time

import pytest

from reward_model.service import strict_json
from reward_model.service.strict_json import UnreadableError, read_strict_json


def test_what_is_json_is_read():
    assert read_strict_json(b'{"a": [1, 2.5, null, "\xc3\xa9", {"b": true}]}') == {
        "a": [1, 2.5, None, "é", {"b": True}]
    }


def test_numbers_are_read_to_the_last_bit():
    numbers = "[0.1, 1e23, 5e-324, 1e-400, 2.2250738585072011e-308, 9007199254740993.0, 1e298, 123456789012345678901]"
    expected = [0.1, 1e23, 5e-324, 0.0, 2.2250738585072011e-308, 9007199254740992.0, 1e298, 123456789012345678901]
    assert read_strict_json(numbers.encode()) == expected


def test_both_halves_of_a_surrogate_pair_are_a_character():
    assert read_strict_json('["\\ud83d\\ude00"]') == ["😀"]


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        pytest.param('{"a": NaN}', "a", "finite", id="nan"),
        pytest.param('{"a": [0, -Infinity]}', "a.1", "finite", id="infinity"),
        pytest.param('{"a": 1, "a": 2}', "a", "twice", id="key_twice"),
        pytest.param('{"a": 1, "my secret": 2, "my secret": 2}', "?", "twice", id="a_private_key_twice"),
        pytest.param('{"a": {"b": "\\ud800"}}', "a.b", "unicode", id="half_a_surrogate_pair"),
        pytest.param('{"b": ["\\ud83d\\ude00", 1, "\\\\\\udc00"]}', "b.2", "unicode", id="half_a_pair_beside_a_pair"),
        pytest.param("[" * 100_000, "", "recursion limit", id="so_deep_that_a_parser_gives_up"),
        pytest.param('{"a": ' + "[" * 250 + "]" * 250 + "}", "", "recursion limit", id="deep"),
        pytest.param("1" * 5000, "", "out of range", id="a_number_of_5000_digits"),
        pytest.param('{"a b": NaN}', "?", "finite", id="a_name_that_may_be_a_text"),
        pytest.param("[" + "NaN," * 2000 + "1]", "", "not JSON", id="more_faults_than_are_named"),
        pytest.param(b'{"a": "\xff"}', "", "line 1 column 8", id="no_utf8"),
        pytest.param("", "", "not JSON: EOF", id="empty"),
        pytest.param('{"a": 1} x', "", "line 1 column 10", id="more_behind"),
    ],
)
def test_what_is_no_json_is_refused_by_field(text, field, message):
    """Each is read as a body, and as a text inside one."""
    for given in {text, text if isinstance(text, bytes) else text.encode()}:
        with pytest.raises(UnreadableError, match=message) as caught:
            read_strict_json(given)
        assert caught.value.field == field


def test_a_key_said_twice_among_100_000_is_found_in_one_pass():
    keys = [f'"{number}": 0' for number in range(100_000)]
    began = time.monotonic()
    with pytest.raises(UnreadableError, match="twice") as caught:
        read_strict_json("{" + ",".join([*keys, '"99999": 1']) + "}")
    assert caught.value.field == "99999"
    assert time.monotonic() - began < 2


def test_an_object_has_a_thousand_keys_at_most():
    assert len(read_strict_json(json.dumps(dict.fromkeys(map(str, range(1000)), 0)).encode())) == 1000
    for inside in ("", "[" * 64):
        with pytest.raises(UnreadableError, match="an object of more than 1000 keys"):
            read_strict_json(
                (inside + json.dumps(dict.fromkeys(map(str, range(1001)), 0)) + "]" * len(inside)).encode()
            )


@pytest.mark.parametrize("text", ["{" * 20_000, "[" * 20_000, '\\"{[' * 21_000, "\\" * 9_999 + "[" * 20_000])
def test_brackets_in_texts_are_no_objects_or_lists(text):
    assert read_strict_json(json.dumps({"a": text, "b": [1]}).encode()) == {"a": text, "b": [1]}


def test_no_loop_goes_over_the_values_of_a_body_without_fault(monkeypatch):
    """33,000 numbers held Python's lock for 3 ms, in which nothing was scored."""
    monkeypatch.setattr(strict_json, "_has_many_keys", None)
    monkeypatch.setattr(strict_json, "_unreadable", None)
    body = {"text_1": "a", "text_2": [1, -2.5, "1e400", "\U0001f600"] * 8_000}
    assert read_strict_json(json.dumps(body).encode()) == body
