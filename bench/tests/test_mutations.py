"""`bench.mutations` and `bench.house`, on modules of a few lines."""

import ast

from bench.house import Module, code_lines, guard_lines, signatures_naming
from bench.mutations import Mutation, swaps

TEXT = '''"""A docstring."""


def check_size(size: int, given: Any) -> None:
    # a comment
    if size > 3 and not given:
        raise ValueError(size + 1)


def both(first: "TrainConfig") -> Any:
    return first
'''
MODULE = Module("one.py", TEXT, ast.parse(TEXT))


def test_an_operator_or_a_number_is_exchanged_at_a_time():
    assert set(swaps(TEXT)) == {
        Mutation("if size > 3 and not given:", "if size > 3 or not given:"),
        Mutation("if size > 3 and not given:", "if size >= 3 and not given:"),
        Mutation("if size > 3 and not given:", "if size > 4 and not given:"),
        Mutation("raise ValueError(size + 1)", "raise ValueError(size - 1)"),
        Mutation("raise ValueError(size + 1)", "raise ValueError(size + 2)"),
    }


def test_lines_and_signatures_are_counted_without_docstrings_and_comments():
    assert (code_lines(MODULE), guard_lines(MODULE)) == (5, 4)
    assert signatures_naming("Any", [MODULE], returned=False) == ["one.py:check_size"]
    assert signatures_naming("Any", [MODULE], returned=True) == ["one.py:check_size", "one.py:both"]
    assert signatures_naming("TrainConfig", [MODULE], returned=False) == ["one.py:both"]
