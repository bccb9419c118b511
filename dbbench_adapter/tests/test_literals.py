import pytest

from dbbench_adapter.tasks.literals import MAX_CHARS, parse_literal, parse_rows


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("[('a', 1), ('b', None)]", (("a", 1), ("b", None)), id="tuples"),
        pytest.param("[[1, 2.5]]", ((1, 2.5),), id="lists"),
        pytest.param("[(Decimal('2.50'),)]", ((2.5,),), id="decimal_is_float"),
        pytest.param("[(Decimal('1000000000001'),)]", ((1000000000001,),), id="without_a_point_it_is_whole"),
        pytest.param("[(Decimal('1E+400'),)]", None, id="larger_than_a_database_has"),
        pytest.param("[(Decimal('NaN'),)]", None, id="not_a_number"),
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1 + 2 * 3, -4, 7 // 2, 2 ** 10, ~1]", [7, -4, 3, 1024, -2]),
        ("{'a': 1, 'b': (2,)}", {"a": 1, "b": (2,)}),
        ("[max]", [max]),
    ],
)
def test_constant_expressions_are_calculated(text, value):
    assert parse_literal(text) == value


@pytest.mark.parametrize(
    "text", ["9 ** 9 ** 9", "1 << 99999999", "'a' * 999", "'%999d' % 1", "[*'ab']", "f'{1}'", "1 / 0"]
)
def test_what_is_large_or_has_to_run_is_refused(text):
    with pytest.raises(ValueError):
        parse_literal(text)
