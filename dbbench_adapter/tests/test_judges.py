"""The judges on hand-worked cases; `text`, `fc` and `lab` with the quirks of their originals, `strict` with ours."""

import itertools
import time
from dataclasses import dataclass, replace

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from agentgrpo.tests.seconds import seconds_here
from dbbench_adapter.datatypes import Gold, Score, Task
from dbbench_adapter.engines import TableState
from dbbench_adapter.judges import JUDGES, lab, strict, text
from dbbench_adapter.judges.fc import clean, same_answers
from dbbench_adapter.judges.strict import readings, same_rows, same_state

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
        # 2010 - 12 - 31 = 1967
        pytest.param("[2010-12-31]", ["1967"], id="but_arithmetic_is_done"),
        pytest.param("[2010-01-05]", ["2010-01-05"], id="where_it_is_python"),
        pytest.param("[9**9**9]", ["9**9**9"], id="and_small"),
        pytest.param("[max]", ["<built-in function max>"], id="names_of_builtins_are_no_texts"),
        pytest.param("[['Plum']]", ["['Plum']"], id="a_list_in_a_list"),
        pytest.param("[[('Plum',)]]", ["Plum"], id="which_prints_as_one_row"),
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


# text ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "label", "same"),
    [
        # what follows `Final Answer:` on its line
        pytest.param(' ["Plum"]', ["Plum"], True, id="a_list"),
        pytest.param(' ["12"]', ["12.0"], True, id="one_number_as_a_number"),
        pytest.param(" 12", ["12.0"], True, id="with_or_without_brackets"),
        pytest.param(' ["12.0000001"]', ["12.0"], False, id="without_tolerance"),
        pytest.param(" Plum", ["Plum"], False, id="a_bare_word_keeps_its_blank"),
        pytest.param("Plum", ["Plum"], True, id="without_a_blank_it_is_right"),
        pytest.param(" 'Plum'", ["Plum"], False, id="a_quoted_word_falls_into_letters"),
        pytest.param(" 'mulP'", ["P", "l", "m", "u"], True, id="which_are_compared_as_a_set"),
        pytest.param(' ["Pear", "Plum", "Plum"]', ["Plum", "Pear"], True, id="several_are_a_set"),
        pytest.param(' ["1", "2"]', ["1", "2"], True, id="several_numbers_as_texts"),
        pytest.param(" [1, 2]", ["1", "2"], False, id="number_literals_fail_there"),
        pytest.param(" [('Plum',), ('Pear',)]", ["Plum", "Pear"], False, id="rows_fail"),
        pytest.param(' ["1,234"]', ["1234"], False, id="commas_stay"),
        pytest.param(' ["5%"]', ["5"], False, id="percent_signs_too"),
        pytest.param(' ["nan"]', ["nan"], False, id="nan_never_equals_itself"),
        pytest.param(' [["Plum"], "Pear"]', ["Plum", "Pear"], False, id="a_list_in_the_list"),
        pytest.param(" [5 + 7]", ["12"], True, id="arithmetic_is_python_there"),
        pytest.param(" [open('x').read()]", [" [open('x').read()]"], True, id="what_would_have_to_run_is_one_text"),
        pytest.param("", [""], True, id="nothing_said"),
    ],
)
def test_text_compares(line, label, same):
    assert text.same_answers(line, label) is same


@pytest.mark.parametrize("judge", ["text", "lab"])
def test_text_and_lab_judge_an_answer_that_never_came_as_an_empty_one(judge):
    task = Task(id="t", question="?", kind="other", tables=(), gold=Gold(answers=("1",)))
    assert JUDGES[judge](End(task, None, committed=False)) == WRONG


# lab ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "rows", "same"),
    [
        # the stripped rest of the line after `Final Answer:`
        pytest.param("[('Plum', 5), ('Pear', 4)]", [["Plum", 5], ["Pear", 4]], True, id="rows_in_order"),
        pytest.param("[('Pear', 4), ('Plum', 5)]", [["Plum", 5], ["Pear", 4]], False, id="in_another_order"),
        pytest.param("(Plum,5)", [["Plum", 5]], True, id="no_quotes_no_brackets"),
        pytest.param("Plum, 5", [["Plum", 5]], True, id="one_row_may_be_bare"),
        pytest.param("Plum", [["Plum"], ["Pear"]], False, id="but_not_one_of_two"),
        pytest.param("nothing found", [], True, id="no_row_expected_and_none_found"),
        pytest.param("(1)", [], False, id="no_row_expected_and_one_found"),
        pytest.param("('Plum', 5", [["Plum", 5]], False, id="an_unclosed_parenthesis"),
        pytest.param("('Plum (big)', 5)", [["Plum (big)", 5]], False, id="a_parenthesis_in_a_text"),
        pytest.param("(Decimal(Decimal(x))", [["Decimal(Decimal(x)"]], False, id="a_decimal_in_a_decimal"),
        pytest.param("('Plum, red', 5)", [["Plum, red", 5]], False, id="a_comma_in_a_text"),
        pytest.param("('Plum', , 5)", [["Plum", 5]], True, id="empty_elements_are_dropped"),
        pytest.param("(Decimal('33.3333'),)", [[33.3333]], True, id="a_decimal_is_unwrapped"),
        pytest.param("(Decimal(33.3333), Decimal(1))", [[33.3333, 1]], True, id="with_or_without_quotes"),
        # 1e-6 of a million is 1
        pytest.param("(1000001)", [[1000000]], True, id="a_millionth_too_much"),
        # 3.33333333 - 3.3333 = 3.3e-5, a millionth of 3.3 is 3.3e-6
        pytest.param("(3.33333333)", [[3.3333]], False, id="more_decimals_than_mysql"),
        pytest.param("('5')", [[5]], False, id="a_number_in_quotes_keeps_one_of_each"),
        pytest.param("($5)", [[5]], False, id="one_foreign_character_stays"),
        pytest.param("(+5)", [[5]], True, id="which_float_may_read"),
        pytest.param("( 5)", [[5]], True, id="blanks_are_stripped"),
        pytest.param("('Plum\")", [["Plum"]], True, id="a_quote_of_either_kind_at_either_end"),
        pytest.param("(''Plum'')", [["Plum"]], False, id="one_only"),
        pytest.param("('\"Plum)", [["Plum"]], False, id="one_only_though_they_differ"),
        pytest.param("(None)", [[None]], False, id="null_can_never_be_expected"),
    ],
)
def test_lab_compares(line, rows, same):
    assert lab.same_rows(line, rows) is same


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
        pytest.param(["7"], "007", WRONG, id="a_label_with_zeros_is_a_text"),
        pytest.param(["007"], "007", RIGHT, id="which_counts_as_it_stands"),
        pytest.param(["1000"], "1e3", RIGHT, id="a_power_of_ten_is_a_number"),
        pytest.param(["9" * 400], "8" * 400, WRONG, id="beyond_all_floats_digits_count"),
        pytest.param(["8" * 400], "8" * 400, RIGHT, id="as_a_text_at_least"),
        pytest.param(["1e999"], "2e999", WRONG, id="infinities_are_not_alike"),
    ],
)
def test_strict_labels(given, label, score):
    assert verdict("strict", given, answers=(label,)) == score


@settings(deadline=None)  # the first example may be slow on a busy machine
@drawn(gold=st.integers(-(10**15), 10**15), off=st.integers(-1000, 1000), decimals=st.integers(0, 12))
def test_strict_takes_a_whole_number_only_as_it_is(gold, off, decimals):
    said = f"{gold + off}{'.' if decimals else ''}{'0' * decimals}"
    for answers in ([said], [[float(said)]], f"[({said},)]", f"[(Decimal('{said}'),)]"):
        for kind in ({"rows": ((gold,),)}, {"answers": (str(gold),)}):
            assert verdict("strict", answers, **kind) == (WRONG if off else RIGHT), (answers, kind)


@pytest.mark.parametrize("gold", [7, "7", 7.5, 1000, "1000", 10**12, 20])
@pytest.mark.parametrize(
    "written", ["0{}", "00{}", "+{}", "{}.", "{}e0", "{}E+00", "{}_", "0x{}", "{},0", "{}.00000001", "--{}", "{} {}"]
)
def test_strict_takes_no_other_spelling_of_a_number(gold, written):
    if isinstance(gold, float) and written in ("{}e0", "{}E+00"):
        return  # so are numbers printed that are not whole
    said = written.replace("{}", str(gold))
    kind = {"answers": (gold,)} if isinstance(gold, str) else {"rows": ((gold,),)}
    assert verdict("strict", [said], **kind) == WRONG


def test_strict_heeds_order_only_where_the_task_orders():
    rows = (("Plum",), ("Pear",))
    assert verdict("strict", ["Pear", "Plum"], rows=rows, ordered=True) == WRONG
    assert verdict("strict", ["Plum", "Pear"], rows=rows, ordered=True) == RIGHT


def test_strict_finds_a_pairing_where_a_greedy_one_fails():
    # 1.00005 is close to both 1.0 and 1.0001, 0.99995 to 1.0 only
    assert same_rows(((1.00005,), (0.99995,)), ((1.0,), (1.0001,)), ordered=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(((5.0,), ("5e0",)), ((5.0,), (5,)), id="an_identical_row_is_needed_elsewhere"),
        pytest.param(((True, "5"),), ((True, 5),), id="a_truth_value_beside_another_spelling"),
    ],
)
def test_strict_finds_a_pairing_beside_identical_cells(given, expected):
    assert same_rows(given, expected, ordered=False)


class Counted(list):
    """Places that count how many of them are looked at."""

    looked = 0

    def __iter__(self):
        for place in super().__iter__():
            self.looked += 1
            yield place


def test_places_that_equal_rows_share_are_searched_once_for_a_row_without_a_place():
    places = Counted(range(99))
    assert not strict.paired([[places]] * 100)
    assert places.looked == 2 * 99  # once to give the rows their places, once to find one for the last row


@pytest.mark.parametrize("cell", ["x", 1])
def test_strict_pairs_off_a_thousand_equal_rows(cell):
    assert same_rows(((cell,),) * 1100, ((cell,),) * 1100, ordered=False)


@pytest.mark.parametrize("judge", ["fc", "strict"])
def test_without_a_commit_the_score_is_zero_and_without_a_gold_there_is_none(judge):
    end = End(Task(id="t", question="?", kind="other", tables=(), gold=Gold(answers=("1",))), None, committed=False)
    assert JUDGES[judge](end) == Score(0.0, "not_committed")
    assert JUDGES[judge](replace(end, committed=True, task=replace(end.task, gold=Gold()))) == Score(None, "no_gold")


@pytest.mark.parametrize(
    ("given", "gold", "same"),
    [
        pytest.param(33.33333333, 33.3333, True, id="what_rounds_to_four_decimals"),
        pytest.param(33.3334, 33.3333, False, id="a_digit_off"),
        pytest.param(0.0001, 0, False, id="integers_are_exact"),
        pytest.param(7.0001, 7, False, id="all_of_them"),
        pytest.param(7.0, 7, True, id="however_they_are_written"),
        pytest.param(0, 0.00005, False, id="small_numbers_are_not_nothing"),
        pytest.param(10**400, 1.5, False, id="beyond_all_floats"),
        pytest.param(1e300 + 1e285, 1e300, True, id="a_billionth_of_a_large_one"),
    ],
)
def test_strict_numbers(given, gold, same):
    assert same_rows(((given,),), ((gold,),), ordered=True) is same


def test_strict_pairs_off_a_thousand_numbers_close_to_their_neighbours_in_time():
    # 1.5, 2.5, ... ten-thousandths round to both neighbours; the last to come, 0.5, moves all others up by one
    given = tuple(((k + 0.5) / 10_000,) for k in reversed(range(1100)))
    expected = tuple((round(k / 10_000, 4),) for k in range(1, 1101))
    assert same_rows(given, expected, ordered=False) is True


SAID = [
    5,
    5.0,
    True,
    1,
    "1",
    None,
    "5",
    " 5",
    "5.0",
    "5e0",
    "05",
    "5.00004",
    "4.99996",
    "None",
    "null",
    "a",
    " a",
    "x",
    10**400,
]
MEANT = [5, 5.0, True, 1, None, "5", "None", "a", 5.0001, float("inf"), float("nan")]


@settings(deadline=None)
@drawn(st.integers(1, 2).flatmap(lambda width: st.integers(1, 4).flatmap(lambda n: st.tuples(
    st.lists(st.tuples(*[st.sampled_from(SAID)] * width), min_size=n, max_size=n),
    st.lists(st.tuples(*[st.sampled_from(MEANT)] * width), min_size=n, max_size=n),
))))  # fmt: skip
def test_strict_pairs_off_what_some_order_makes_equal(results):
    given, expected = results
    some_order = any(same_rows(order, tuple(expected), ordered=True) for order in itertools.permutations(given))
    assert same_rows(tuple(given), tuple(expected), ordered=False) is some_order


@pytest.mark.parametrize("wrong", [(), ("-1",)])
@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (lambda i: (str(i),), lambda i: (float(i),)),
        (lambda i: (str(i),), lambda i: (i,)),
        (lambda i: (f"{i}.00001",), lambda i: (float(i),)),
        (lambda i: ("7",), lambda i: (7.0,)),
        (lambda i: (str(i),), lambda i: (None,)),
        (lambda i: ("1", f"{i}.5"), lambda i: (1.0, i + 0.5)),
    ],
)
def test_strict_looks_rows_up_instead_of_comparing_each_with_each(monkeypatch, said, meant, wrong):
    compared = []
    same_row, n = strict._same_row, 300
    monkeypatch.setattr(strict, "_same_row", lambda *rows: compared.append(rows) or same_row(*rows))
    given = [said(i) for i in range(n)]
    given[: len(wrong)] = [wrong] * len(wrong)
    same_rows(tuple(given), tuple(meant(i) for i in reversed(range(n))), ordered=False)
    assert len(compared) <= 2 * n


def test_true_is_no_second_one():
    assert same_rows(((1,), (True,)), ((1,), (1,)), ordered=False) is False


def test_readings_never_fail_on_what_a_model_may_write():
    for said in ("(", "[", "[(", "[()]", "(1,)" * 1000, "\x00", "[" * 10_000):
        list(readings([said], 2))


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


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        pytest.param(1 + 0.9e-9, 1.0, True, id="within_a_billionth"),
        pytest.param(1 + 1.1e-9, 1.0, False, id="not_beyond"),
        pytest.param(1 + 4e-9, 1.0, False, id="by_far"),
        pytest.param(9.9999999996, 10.0, True, id="also_where_the_digits_before_differ"),
        pytest.param(10**12 + 1.5, 10**12, False, id="a_whole_number_is_exact"),
        pytest.param(1e-300, 0.0, False, id="small_is_not_nothing"),
    ],
)
def test_strict_states_compare_numbers_by_their_size(found, expected, same):
    assert same_state({"T": table((found, 1))}, {"T": table((expected, 1))}) is same


def test_strict_states_pair_off_rows_that_differ_in_last_digits_only():
    near = 1 + 0.6e-9  # is close to 1 and to `far`, which are not close to each other
    far = 1 + 1.2e-9
    assert same_state({"T": table((far, "x"), (near, "x"))}, {"T": table((1.0, "x"), (near + 1e-12, "x"))})
    assert not same_state({"T": table((far, "x"), (far, "x"))}, {"T": table((1.0, "x"), (near, "x"))})
    # two columns: sorted by the first, the second ones would be crossed
    assert same_state({"T": table((1.0, 5.0), (near, 9.0))}, {"T": table((near, 5.0), (1.0, 9.0))})


def test_strict_states_of_ten_thousand_rows_are_compared_in_time():
    rows, moved = ([(k + shift, "x") for k in range(10_000)] for shift in (0.5, 0.5 + 1e-12))
    started = time.process_time()
    assert same_state({"T": table(*moved)}, {"T": table(*reversed(rows))})
    assert time.process_time() - started < seconds_here(2)
