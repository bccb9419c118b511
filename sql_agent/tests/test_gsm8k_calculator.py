"""What the calculator promises: exact values, words for everything else, and nothing that runs or hangs."""

import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgrpo.tests.seconds import seconds_here
from sql_agent.gsm8k.calculator import calculate

pytestmark = pytest.mark.usefixtures("few_objects")


@pytest.mark.parametrize(("expression", "value"), [
    ("48/2", "24"),
    ("0.1+0.2", "0.3"),
    ("0.3//0.1", "3"),  # 2 in floats
    ("1.1+2.2-3.3", "0"),
    ("2/3*3", "2"),
    ("18*.5", "9"),
    ("2*(3+4)-10/4", "11.5"),
    ("-3 + +5", "2"),
    ("7//2", "3"),
    ("-7//2", "-4"),  # towards minus infinity, as in Python
    ("17%5", "2"),
    ("17 % (2+3)", "2"),
    ("2**10", "1024"),
    ("2**-2", "0.25"),
    ("-2**2", "-4"),
    ("1,000,000/8", "125000"),
    ("$1,250.50 + $5", "1255.5"),
    ("20%*50", "10"),
    ("50*20%", "10"),
    ("50/20%", "250"),
    ("(5% + 15%)*40", "8"),
    ("3\n+ 4", "7"),
])  # fmt: skip
def test_arithmetic_is_exact_and_reads_numbers_as_gsm8k_has_them(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(("expression", "value"), [
    pytest.param("100/3", "33.3333333333", id="twelve_digits_in_all"),
    pytest.param("2/3", "0.666666666667", id="rounded"),
    pytest.param("1/70000", "0.0000142857142857", id="zeros_in_front_do_not_count"),
    pytest.param("12345678901234+1", "12345678901235", id="the_whole_part_in_full"),
    pytest.param("1234567890123.5", "1234567890124", id="and_nothing_behind_it"),
    pytest.param("999999999999.96", "1000000000000", id="carried"),
    pytest.param("2.5 + 1/10**13", "2.5", id="zeros_that_rounding_leaves"),
    pytest.param("1.50-1.50", "0", id="zero"),
])  # fmt: skip
def test_results_have_twelve_significant_digits_and_no_trailing_zeros(expression, value):
    assert calculate(expression) == value


NESTED = "Error: the expression is nested too deeply; calculate it in parts."
LARGE = "Error: a number becomes too large."
EXPONENT = "Error: an exponent has to be a whole number from -100 to 100."


@pytest.mark.parametrize(("expression", "words"), [
    ("", "Error: the expression is empty; write one such as 48/2."),
    ("1/0", "Error: division by zero."),
    ("5 % 0", "Error: division by zero."),
    ("0**-1", "Error: division by zero."),
    ("x + 1", "Error: 'x' is not allowed; write numbers, + - * / // % ** and parentheses."),
    ("2 ^ 3", "Error: '^' is not allowed; write numbers, + - * / // % ** and parentheses."),
    ("٣ + 1", "Error: '٣' is not allowed; write numbers, + - * / // % ** and parentheses."),
    ("2(3)", "Error: '2(3)' cannot be read as arithmetic; write an expression such as (3 + 4) * 2."),
    ("...", "Error: '...' cannot be read as arithmetic; write an expression such as (3 + 4) * 2."),
    ("1,00", "Error: a comma may only stand between thousands, as in 1,000."),
    ("1, 2", "Error: a comma may only stand between thousands, as in 1,000."),
    ("(1+1)%", "Error: $ stands in front of a number and a percent sign behind one, as in $5 and 20%."),
    ("5$", "Error: $ stands in front of a number and a percent sign behind one, as in $5 and 20%."),
    ("4**0.5", EXPONENT),
    ("9**9**9", EXPONENT),
    ("(9**90)**90", LARGE),
    ("9" * 200, LARGE),
    ("-" * 150 + "1", NESTED),
    ("1" + "+1" * 140, NESTED),
    ("1" * 400, "Error: the expression has 400 characters, at most 300 are read."),
])  # fmt: skip
def test_what_it_does_not_calculate_is_said_in_words(expression, words):
    assert calculate(expression) == words


@pytest.mark.parametrize("expression", [
    "__import__('os').system('true')", "().__class__", "print(1)", "lambda: 1", "[1]*9", "1 if 1 else 2", "1 < 2",
    "1_000", "0x10", "1e9", "1j", "'a'*3", "True", "1:=2", "1\x00", "#", "1\\\n", "@", "1<<9", "~1", "*1", "(", ")",
])  # fmt: skip
def test_no_name_call_or_other_syntax_gets_through(expression):
    assert calculate(expression).startswith("Error: ")


@pytest.mark.parametrize("expression", [
    "9**9**9", "9**100**100", "(((9**99)**99)**99)", "(" * 300, "((" * 70 + "1" + "))" * 70, "1" + "/3/7" * 70,
    "+".join(f"1/{n}" for n in range(1001, 1051)), "1" + "**1" * 99, "9" * 10_000_000,
])  # fmt: skip
def test_the_worst_is_refused_or_done_at_once(expression):
    started = time.process_time()
    calculate(expression)
    assert time.process_time() - started < seconds_here(0.05)


NOISE = st.text(alphabet="0123456789.,$%+-*/() ", max_size=40) | st.text(max_size=40)


@pytest.mark.slow
@given(NOISE)
@settings(max_examples=1000, deadline=1000)
def test_any_text_is_answered_with_a_number_or_in_words(text):
    result = calculate(text)
    assert result.startswith("Error: ") or Decimal(result).is_finite()


@given(st.recursive(
    st.integers(0, 999).map(str),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//"]), inner).map(lambda e: f"({''.join(e)})"),
    max_leaves=8,
))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_values_are_those_of_exact_fractions(expression):
    fractions = "".join(f"Fraction({part})" if part.isdigit() else part for part in _parts(expression))
    try:
        expected = Fraction(eval(fractions))  # of our own making: digits, signs and parentheses
    except ZeroDivisionError:
        assert calculate(expression) == "Error: division by zero."
        return
    result = Fraction(calculate(expression))
    assert abs(result - expected) <= abs(expected) / 10**11
    assert result == expected or expected.denominator != 1


def _parts(expression):
    for sign in "+-*/()":
        expression = expression.replace(sign, f" {sign} ")
    return expression.replace("/  /", "//").split()
