"""JSON that Python lets pass and the standard does not is refused, and the field is named."""

import json
import time

import pytest

from reward_model.service import strict_json
from reward_model.service.strict_json import UnreadableError, read_json


def test_what_is_json_is_read():
    assert read_json(b'{"a": [1, 2.5, null, "\xc3\xa9", {"b": true}]}') == {"a": [1, 2.5, None, "é", {"b": True}]}


def test_numbers_are_read_to_the_last_bit():
    numbers = "[0.1, 1e23, 5e-324, 1e-400, 2.2250738585072011e-308, 9007199254740993.0, 1e298, 123456789012345678901]"
    expected = [0.1, 1e23, 5e-324, 0.0, 2.2250738585072011e-308, 9007199254740992.0, 1e298, 123456789012345678901]
    assert read_json(numbers.encode()) == expected


def test_both_halves_of_a_surrogate_pair_are_a_character():
    assert read_json('["\\ud83d\\ude00"]') == ["😀"]


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        pytest.param('{"a": NaN}', "a", "NaN", id="nan"),
        pytest.param('{"a": [0, -Infinity]}', "a.1", "Infinity", id="infinity"),
        pytest.param('{"a": 1e999}', "a", "Infinity", id="a_float_that_overflows"),
        pytest.param('{"a": 1E+999}', "a", "Infinity", id="the_same_with_a_sign"),
        pytest.param('{"a": 12345e307}', "a", "Infinity", id="digits_and_a_power_of_ten_that_overflow"),
        pytest.param('{"a": ' + "9" * 250 + "e99}", "a", "Infinity", id="many_digits_and_a_small_power_of_ten"),
        pytest.param('{"a": ' + "9" * 310 + ".0}", "a", "Infinity", id="digits_alone_that_overflow"),
        pytest.param('{"a": 1, "a": 2}', "a", "twice", id="key_twice"),
        pytest.param('{"a": {"b": "\\ud800"}}', "a.b", "surrogate", id="half_a_surrogate_pair"),
        pytest.param('{"b": ["\\ud83d\\ude00", 1, "\\\\\\udc00"]}', "b.2", "surrogate", id="half_a_pair_beside_a_pair"),
        pytest.param('{"a": ' + "[" * 100 + "]" * 100 + "}", "a.0.0.0.0.0.0.0", "nested", id="deep"),
        pytest.param("[" * 100_000, "", "nested", id="so_deep_that_the_parser_gives_up"),
        pytest.param("1" * 5000, "", "digits", id="a_number_of_5000_digits"),
        pytest.param('{"a b": NaN}', "?", "NaN", id="a_name_that_may_be_a_text"),
        pytest.param(b'{"a": "\xff"}', "", "byte 7 is not UTF-8", id="no_utf8"),
        pytest.param("", "", "not JSON at character 0", id="empty"),
        pytest.param('{"a": 1} x', "", "not JSON at character 9", id="more_behind"),
    ],
)
def test_what_is_no_json_is_refused_by_field(text, field, message):
    """Each is read as a body, which another reader tries first, and as a text inside one."""
    for given in {text, text if isinstance(text, bytes) else text.encode()}:
        with pytest.raises(UnreadableError, match=message) as caught:
            read_json(given)
        assert caught.value.field == field


def test_a_key_said_twice_among_100_000_is_found_in_one_pass():
    keys = [f'"{number}": 0' for number in range(100_000)]
    began = time.monotonic()
    with pytest.raises(UnreadableError, match="twice") as caught:
        read_json("{" + ",".join([*keys, '"99999": 1']) + "}")
    assert caught.value.field == "99999"
    assert time.monotonic() - began < 2


def test_an_object_has_a_thousand_keys_at_most():
    assert len(read_json(json.dumps(dict.fromkeys(map(str, range(1000)), 0)).encode())) == 1000
    for inside in ("", "[" * 64):
        with pytest.raises(UnreadableError, match="an object of 1001 keys"):
            read_json((inside + json.dumps(dict.fromkeys(map(str, range(1001)), 0)) + "]" * len(inside)).encode())


def test_more_objects_than_any_list_of_conversations_has_are_refused():
    assert len(read_json(b"[" + b"{}," * 9_999 + b"{}]")) == 10_000
    with pytest.raises(UnreadableError, match="more than 10000 objects"):
        read_json(b"[" + b"{}," * 10_000 + b"{}]")


def test_more_lists_than_any_list_of_conversations_has_are_refused():
    assert len(read_json(b"[" + b"[]," * 9_998 + b"[]]")) == 9_999
    with pytest.raises(UnreadableError, match="more than 10000 lists"):
        read_json(b"[" + b"[]," * 9_999 + b"[]]")


@pytest.mark.parametrize("text", ["{" * 20_000, "[" * 20_000, '\\"{[' * 21_000, "\\" * 9_999 + "[" * 20_000])
def test_brackets_in_texts_are_no_objects_or_lists(text):
    assert read_json(json.dumps({"a": text, "b": [1]}).encode()) == {"a": text, "b": [1]}


def test_the_deepest_value_may_be_64_deep():
    deepest = b"[" * 65 + b"]" * 65
    assert read_json(deepest)
    with pytest.raises(UnreadableError, match="nested deeper than 64"):
        read_json(b"[" + deepest + b"]")


def test_no_loop_goes_over_the_values_of_a_body_without_fault(monkeypatch):
    """33,000 numbers held Python's lock for 3 ms, in which nothing was scored."""
    monkeypatch.setattr(strict_json, "_name_the_fault", None)
    monkeypatch.setattr(strict_json, "_is_deep_or_wide", None)
    body = {"text_1": "a", "text_2": [1, -2.5, "1e400", "\U0001f600"] * 8_000}
    assert read_json(json.dumps(body).encode()) == body
    assert read_json(b'{"a": 1e300}') == {"a": 1e300}


def test_a_body_without_fault_is_read_by_the_fast_reader_alone(monkeypatch):
    monkeypatch.setattr(strict_json, "_read_or_name_the_fault", None)
    many = [{"prompt": "a: 1e99", "response": "b"}] * 2_000
    assert read_json(json.dumps(many).encode()) == many
