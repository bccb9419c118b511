"""The judges on hand-worked cases; `fc` with the quirks of the original, `strict` with ours."""

from dataclasses import dataclass, replace

import pytest

from dbbench_adapter.backends import TableState
from dbbench_adapter.judges import JUDGES
from dbbench_adapter.judges.fc import clean, same_answers
from dbbench_adapter.judges.strict import readings, same_rows, same_state
from dbbench_adapter.types import Gold, Score, Task

RIGHT, WRONG = Score(1.0, "match"), Score(0.0, "wrong_answer")


@dataclass
class End:
    """An episode's end without a database: enough for tasks judged by their answer."""

    task: Task
    answers: object
    committed: bool = True


def verdict(judge, given, *, ordered=False, **gold):
    task = Task(id="t", question="?", kind="other", tables=(), gold=Gold(**gold), ordered=ordered)
    return JUDGES[judge](End(task, given))


# fc: clean-up -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "cleaned"),
    [
        pytest.param(None, ["0"], id="null"),
        pytest.param([" 'Plum' ", '"Pear"'], ["Plum", "Pear"], id="blanks_and_quotes"),
        pytest.param(["1,234", "a, b"], ["1234", "a b"], id="commas_vanish_from_words_too"),
        pytest.param(["5%", "1,234%", "5 %"], ["5", "1,234", "5"], id="percent_sign_and_nothing_else"),
        pytest.param(["[1,2", "1,2]"], ["[1,2", "1,2]"], id="commas_stay_beside_brackets"),
        pytest.param(["None", "NULL", "nan", "-inf", "", "undefined"], ["0"] * 6, id="nothings_are_zero"),
        pytest.param("Plum", ["Plum"], id="one_text"),
        pytest.param("['Plum', 5]", ["Plum", "5"], id="a_list_in_a_text"),
        pytest.param("[('Plum',), ('Pear', 4)]", ["Plum"], id="rows_of_several_columns_vanish"),
        pytest.param("[('Plum', 5)]", [], id="so_nothing_is_left"),
        pytest.param(" [('Plum', 5)]", ["('Plum' 5)"], id="unless_a_blank_comes_first"),
        pytest.param("[Plum, 'a, b', Pear]", ["Plum", "a b", "Pear"], id="no_literal_is_cut_at_commas_outside_quotes"),
        pytest.param("[(Decimal('2.5'),)]", ["(Decimal(2.5)", ")"], id="decimals_are_cut_too"),
        pytest.param("[(Plum,)]", ["Plum"], id="one_row_without_quotes"),
        pytest.param("[1], [2]", None, id="no_list"),
        pytest.param("[__import__('os').getcwd()]", ["__import__(os).getcwd()"], id="nothing_is_run"),
    ],
)
def test_fc_cleans_each_side(side, cleaned):
    assert clean(side) == cleaned


@pytest.mark.parametrize(
    ("given", "label", "same"),
    [
        pytest.param(["12"], ["12.0"], True, id="numbers"),
        pytest.param(["12.009"], ["12.0"], True, id="within_a_hundredth"),
        pytest.param(["12.011"], ["12.0"], False, id="beyond_a_hundredth"),
        pytest.param(["none"], ["0"], True, id="none_is_zero"),
        pytest.param(["Pear", "Plum"], ["Plum", "Pear"], True, id="order_does_not_matter"),
        pytest.param(["Plum", "Plum"], ["Plum"], True, id="texts_are_a_set"),
        pytest.param(["1", "1"], ["1"], False, id="numbers_are_not"),
        pytest.param(["1.0", "a"], ["1", "a"], False, id="mixed_lists_compare_as_texts"),
        # 1.005 is close to both and takes 1.0, which leaves 0.995 with 1.012
        pytest.param(["1.005", "0.995"], ["1.0", "1.012"], False, id="greedy_pairing_misses_a_valid_one"),
        pytest.param([], ["Plum"], False, id="empty"),
        pytest.param([], [], True, id="both_empty"),
        pytest.param("[1], [2]", ["1"], False, id="what_cannot_be_cleaned_is_wrong"),
    ],
)
def test_fc_compares(given, label, same):
    assert same_answers(given, label) is same


def test_fc_holds_an_empty_answer_for_right_where_the_label_has_several_columns():
    assert verdict("fc", [], label_text="[('Plum', 5)]") == RIGHT
    assert verdict("fc", ["('Plum', 5)"], label_text="[('Plum', 5)]") == WRONG


def test_fc_takes_rows_of_other_files_as_values_or_printed():
    assert verdict("fc", ["Plum"], rows=(("Plum",),)) == verdict("fc", ["('Plum',)"], rows=(("Plum",),)) == RIGHT
    assert verdict("fc", ["('Plum', 5)"], rows=(("Plum", 5),)) == RIGHT
    assert verdict("fc", [], rows=(("Plum", 5),)) == WRONG


# strict: answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "rows", "score"),
    [
        pytest.param(["Pear", "Plum"], (("Plum",), ("Pear",)), RIGHT, id="a_multiset"),
        pytest.param(["Plum", "Plum"], (("Plum",),), WRONG, id="duplicates_count"),
        pytest.param(["Plum"], (("Plum",), ("Plum",)), WRONG, id="on_either_side"),
        pytest.param(["plum"], (("Plum",),), WRONG, id="case_counts"),
        pytest.param([" Plum "], (("Plum",),), RIGHT, id="outer_blanks_do_not"),
        pytest.param(["('Plum', 5)"], (("Plum", 5),), RIGHT, id="a_printed_row"),
        pytest.param(["['Plum', '5']"], (("Plum", 5),), RIGHT, id="or_a_list"),
        pytest.param([["Plum", 5]], (("Plum", 5),), RIGHT, id="or_a_json_list"),
        pytest.param(["Plum", "5"], (("Plum", 5),), RIGHT, id="a_lone_row_value_by_value"),
        pytest.param(["5", "Plum"], (("Plum", 5),), WRONG, id="in_its_order"),
        pytest.param(
            ["[('Plum', 5), ('Pear', Decimal('4'))]"], (("Pear", 4), ("Plum", 5)), RIGHT, id="all_in_one_text"
        ),
        pytest.param("['Plum', 'Pear']", (("Pear",), ("Plum",)), RIGHT, id="a_text_instead_of_a_list"),
        pytest.param(["[1]"], (("[1]",),), RIGHT, id="a_text_that_looks_like_a_list"),
        pytest.param([], (("Plum", 5),), WRONG, id="nothing"),
        pytest.param(None, (), WRONG, id="null_is_no_answer"),
        pytest.param([], (), RIGHT, id="no_rows"),
        pytest.param([{"a": 1}], (("a",),), WRONG, id="an_object"),
        pytest.param(["Plum", ["x", "y"]], (("Plum",),), WRONG, id="a_row_too_many"),
        pytest.param([["Plum", [5]]], (("Plum", 5),), WRONG, id="a_list_in_a_row"),
        # numbers
        pytest.param(["33.33333333"], ((33.3333,),), RIGHT, id="mysql_gives_averages_four_decimals"),
        pytest.param(["33.33"], ((33.3333,),), WRONG, id="fewer_do_not_do"),
        pytest.param(["5.0"], ((5,),), RIGHT, id="an_integer_as_a_float"),
        pytest.param(["1000001"], ((1000000,),), WRONG, id="integers_are_exact"),
        pytest.param(["five"], ((5,),), WRONG, id="no_number"),
        pytest.param([True], ((1,),), WRONG, id="true_is_no_number"),
        # types and NULL kept apart
        pytest.param(["('007', 1)"], (("007", 1),), RIGHT, id="a_text_of_digits"),
        pytest.param(["('7', 1)"], (("007", 1),), WRONG, id="is_no_number"),
        pytest.param(["(7, 1)"], (("7", 1),), WRONG, id="nor_is_a_number_it"),
        pytest.param(["NULL"], ((None,),), RIGHT, id="null_by_name"),
        pytest.param(["(None, 1)"], ((None, 1),), RIGHT, id="null_in_a_row"),
        pytest.param(["0"], ((None,),), WRONG, id="zero_is_not_null"),
        pytest.param([""], ((None,),), WRONG, id="nor_is_the_empty_text"),
        pytest.param(["None"], ((0,),), WRONG, id="null_is_not_zero"),
    ],
)
def test_strict_answers(given, rows, score):
    assert verdict("strict", given, rows=rows) == score


@pytest.mark.parametrize(
    ("given", "label", "score"),
    [
        pytest.param(["12"], "12.0", RIGHT, id="labels_are_texts_whatever_they_mean"),
        pytest.param(["12.4"], "12.0", WRONG, id="another_number"),
        pytest.param(["1234"], "1,234", WRONG, id="commas_stay"),
        pytest.param(["null"], "None", RIGHT, id="null"),
        pytest.param(["0"], "None", WRONG, id="and_nothing_else"),
    ],
)
def test_strict_labels(given, label, score):
    assert verdict("strict", given, answers=(label,)) == score


def test_strict_heeds_order_only_where_the_task_orders():
    rows = (("Plum",), ("Pear",))
    assert verdict("strict", ["Pear", "Plum"], rows=rows, ordered=True) == WRONG
    assert verdict("strict", ["Plum", "Pear"], rows=rows, ordered=True) == RIGHT


def test_strict_finds_a_pairing_where_a_greedy_one_fails():
    # 1.00005 is close to both 1.0 and 1.0001, 0.99995 to 1.0 only
    assert same_rows(((1.00005,), (0.99995,)), ((1.0,), (1.0001,)), ordered=False)


@pytest.mark.parametrize("cell", ["x", 1])
def test_strict_pairs_off_a_thousand_equal_rows(cell):
    assert same_rows(((cell,),) * 1100, ((cell,),) * 1100, ordered=False)


@pytest.mark.parametrize("judge", JUDGES)
def test_without_a_commit_the_score_is_zero_and_without_a_gold_there_is_none(judge):
    end = End(Task(id="t", question="?", kind="other", tables=(), gold=Gold(answers=("1",))), None, committed=False)
    assert JUDGES[judge](end) == Score(0.0, "not_committed")
    assert JUDGES[judge](replace(end, committed=True, task=replace(end.task, gold=Gold()))) == Score(None, "no_gold")


def test_readings_never_fail_on_what_a_model_may_write():
    for text in ("(", "[", "[(", "[()]", "(1,)" * 1000, "\x00", "[" * 10_000):
        list(readings([text], 2))


# strict: state ------------------------------------------------------------------------------------------------------


def table(*rows, columns=("a", "b")):
    return TableState(columns, rows)


@pytest.mark.parametrize(
    ("found", "same"),
    [
        pytest.param({"T": table(("y", 2), ("x", 1))}, True, id="row_order_means_nothing"),
        pytest.param({"T": table(("x", 1), ("y", 2.0))}, True, id="equal_numbers"),
        pytest.param({"T": table(("x", 1), ("y", 2), ("y", 2))}, False, id="duplicates_count"),
        pytest.param({"T": table(("x", 1), ("y", "2"))}, False, id="a_number_is_no_text"),
        pytest.param({"T": table(("x", 1), ("y", None))}, False, id="null_is_a_value"),
        pytest.param({"T": table(("x", 1), ("y", 2), columns=("a", "c"))}, False, id="a_renamed_column"),
        pytest.param({"T": table(("x", 1), ("y", 2)), "U": table()}, False, id="another_table"),
        pytest.param({}, False, id="no_table"),
    ],
)
def test_strict_states(found, same):
    assert same_state(found, {"T": table(("x", 1), ("y", 2))}) is same


def test_strict_states_forgive_the_last_digits_of_a_float():
    assert same_state({"T": table((0.1 + 0.2, 1))}, {"T": table((0.3, 1))})
