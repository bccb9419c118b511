import pytest

from dbbench_adapter.literals import MAX_CHARS, parse_literal, parse_rows


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("[('a', 1), ('b', None)]", (("a", 1), ("b", None)), id="tuples"),
        pytest.param("[[1, 2.5]]", ((1, 2.5),), id="lists"),
        pytest.param("[(Decimal('2.50'),)]", ((2.5,),), id="decimal_is_float"),
        pytest.param("[(datetime.date(2024, 1, 31),)]", (("2024-01-31",),), id="date_is_iso_text"),
        pytest.param("[]", (), id="no_rows"),
        pytest.param("[('a',), 'b']", None, id="a_bare_value_is_no_row"),
        pytest.param("('a', 1)", None, id="one_row_is_no_list"),
        pytest.param("[(open('/etc/passwd'),)]", None, id="calls_are_not_made"),
        pytest.param("[(Decimal('x'),)]", None, id="no_decimal"),
    ],
)
def test_rows_as_a_driver_prints_them(text, expected):
    assert parse_rows(text) == expected


@pytest.mark.parametrize("text", ["1 +", "[nan]", "().__class__", "(" * 100_000, "9" * 5_000, "[" + "1," * MAX_CHARS])
def test_what_is_no_literal_is_refused_and_never_run(text):
    with pytest.raises(ValueError):
        parse_literal(text)
