"""Splits: no table on two sides, the same bytes each time, and a manifest that says what came out."""

import hashlib
import json
import math

import pytest

from dbbench_adapter.datatypes import Column, Gold, Table, Task
from dbbench_adapter.splits import count_kinds, draw_by_kind, main, split_by_table, split_tasks
from dbbench_adapter.tasks.load import load_tasks, write_tasks


def over(index, *names, kind="other", skills=()):
    tables = tuple(Table(name, (Column("a"),), ()) for name in names)
    return Task(
        id=f"t-{index}", question="?", kind=kind, tables=tables, gold=Gold(answers=("1",)), skills=tuple(skills)
    )


def ids(tasks):
    return tuple(task.id for task in tasks)


# A-B-C hang together (t-1 joins A and b, t-2 joins B and C), D and E stand alone: three groups
CHAINED = [over(0, "A"), over(1, "A", "b"), over(2, "B", "C"), over(3, "D"), over(4, "E")]


def test_no_table_is_on_both_sides_of_a_split():
    splits = [split_by_table(CHAINED, 1 / 3, seed=seed) for seed in range(20)]
    assert {ids(held_out) for _, held_out in splits} == {("t-0", "t-1", "t-2"), ("t-3",), ("t-4",)}
    assert all(train == [task for task in CHAINED if task not in held_out] for train, held_out in splits)
    assert split_by_table(CHAINED, 1 / 3, seed=7) == splits[7]


def test_three_parts_share_no_table_and_hold_every_task_once():
    for seed in range(20):
        parts = split_tasks(CHAINED, (0.8, 0.1, 0.1), seed)  # three groups, three parts: one each
        assert {ids(part) for part in parts} == {("t-0", "t-1", "t-2"), ("t-3",), ("t-4",)}


def test_fractions_count_groups_of_tables():
    tasks = [over(index, f"table{index % 20}") for index in range(60)]
    # 20 groups of 3 tasks: 16, 2 and 2 groups
    assert [len(part) for part in split_tasks(tasks, (0.8, 0.1, 0.1), seed=0)] == [48, 6, 6]


def test_a_large_fraction_leaves_a_group_for_every_other_part():
    # 0.8 of 3 groups is 2.4, rounded 2; but then nothing would be left for the first part
    parts = split_tasks(CHAINED, (0.1, 0.1, 0.8), seed=0)
    assert sorted(ids(part) for part in parts) == [("t-0", "t-1", "t-2"), ("t-3",), ("t-4",)]


@pytest.mark.parametrize(
    ("tasks", "fractions", "words"),
    [
        pytest.param([over(0, "A"), over(1, "a")], (0.5, 0.5), "over 1 group.* cannot be split", id="one_table"),
        pytest.param(CHAINED, (0.25, 0.25, 0.25, 0.25), "3 group.* into 4 parts", id="fewer_groups_than_parts"),
        pytest.param(CHAINED, (0.8, 0.1), "two or more numbers between 0 and 1 that add up to 1", id="sum"),
        pytest.param(CHAINED, (1.2, -0.2), "two or more numbers between 0 and 1 that add up to 1", id="negative"),
        pytest.param(CHAINED, (math.nan, 0.5, 0.5), "two or more numbers between 0 and 1", id="nan"),
        pytest.param(CHAINED, (math.inf, 0.5, 0.5), "two or more numbers between 0 and 1", id="inf"),
    ],
)
def test_a_split_that_is_none_is_refused(tasks, fractions, words):
    with pytest.raises(ValueError, match=words):
        split_tasks(tasks, fractions, seed=0)


def test_a_held_out_fraction_is_between_0_and_1():
    with pytest.raises(ValueError, match="held_out_fraction is 1, expected a number between 0 and 1"):
        split_by_table(CHAINED, 1, seed=0)


# the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def inputs(tmp_path):
    fruit = [over(index, f"fruit{index}", kind="SELECT", skills=["select"]) for index in range(8)]
    other = [over(index + 8, f"other{index}", kind="UPDATE") for index in range(2)]
    write_tasks(tmp_path / "fruit.jsonl", fruit)
    write_tasks(tmp_path / "other.jsonl", other)
    return [str(tmp_path / "fruit.jsonl"), str(tmp_path / "other.jsonl")]


def test_the_command_writes_three_files_and_a_manifest_that_fits_them(tmp_path, inputs, capsys):
    assert main(["--input", *inputs, "--output_dir", str(tmp_path / "out"), "--seed", "3"]) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    # ten groups of one table each: 8, 1 and 1
    assert [(name, part["tasks"], part["tables"]) for name, part in manifest["parts"].items()] == [
        ("train", 8, 8),
        ("validation", 1, 1),
        ("test", 1, 1),
    ]
    loaded = {name: load_tasks(tmp_path / "out" / part["file"]) for name, part in manifest["parts"].items()}
    assert sorted(task.id for part in loaded.values() for task in part) == sorted(f"t-{index}" for index in range(10))
    for name, part in manifest["parts"].items():
        assert part["sha256"] == hashlib.sha256((tmp_path / "out" / f"{name}.jsonl").read_bytes()).hexdigest()
        assert part["kinds"].get("SELECT", 0) == part["skills"].get("select", 0)
        assert part["kinds"].get("SELECT", 0) == sum(task.kind == "SELECT" for task in loaded[name])
    assert [(entry["file"], entry["tasks"]) for entry in manifest["inputs"]] == [("fruit.jsonl", 8), ("other.jsonl", 2)]
    assert (manifest["seed"], manifest["fractions"]) == (3, {"train": 0.8, "validation": 0.1, "test": 0.1})
    assert "train           8 tasks" in capsys.readouterr().out


def test_the_same_command_writes_the_same_bytes_and_another_seed_others(tmp_path, inputs):
    for name, seed in (("one", "0"), ("two", "0"), ("three", "1")):
        assert main(["--input", *inputs, "--output_dir", str(tmp_path / name), "--seed", seed]) == 0
    files = ("train.jsonl", "validation.jsonl", "test.jsonl", "manifest.json")
    one, two, three = ([(tmp_path / name / file).read_bytes() for file in files] for name in ("one", "two", "three"))
    assert one == two
    assert one != three


def test_nothing_is_overwritten(tmp_path, inputs, capsys):
    (tmp_path / "test.jsonl").write_text("mine")
    assert main(["--input", *inputs, "--output_dir", str(tmp_path)]) == 2
    assert "test.jsonl is there already; name another --output" in capsys.readouterr().err
    assert (tmp_path / "test.jsonl").read_text() == "mine"
    assert not (tmp_path / "train.jsonl").exists()


def test_a_bad_fraction_and_a_folder_that_cannot_be_are_said_and_nothing_is_written(tmp_path, inputs, capsys):
    arguments = ["--input", *inputs, "--output_dir", str(tmp_path / "out"), "--fractions", "nan,0.5,0.5"]
    assert main(arguments) == 2
    assert "fractions are [nan, 0.5, 0.5], expected" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["--input", *inputs, "--output_dir", "/proc/x"]) == 2
    assert "/proc/x/train.jsonl cannot be written" in capsys.readouterr().err


def test_one_id_in_two_inputs_is_refused(tmp_path, inputs, capsys):
    assert main(["--input", inputs[0], inputs[0], "--output_dir", str(tmp_path / "out")]) == 2
    assert "id 't-0' is in 2 rows of the inputs" in capsys.readouterr().err


def test_lifelong_is_split_over_its_360_tables(data_file):
    tasks = load_tasks(data_file("lifelong/entry_dict.json"))
    parts = split_tasks(tasks, (0.8, 0.1, 0.1), seed=0)
    tables = [{task.tables[0].name.casefold() for task in part} for part in parts]
    # 36 of 360 groups each for validation and test
    assert [len(names) for names in tables] == [288, 36, 36]
    assert sum(len(part) for part in parts) == 500
    assert len(set.union(*tables)) == 360


# every kind in every part ---------------------------------------------------------------------------------------------


def kinds_and_sizes(parts):
    return [(len(part), set(count_kinds(part))) for part in parts]


def test_every_part_has_every_kind_whose_tables_allow_it():
    # ten tables of kind a, three of b: drawn blindly, b would often be missing in a part of one or two tables
    tasks = [over(index, f"T{index}", kind="a" if index < 10 else "b") for index in range(13)]
    for seed in range(30):
        # 13 x 0.15 = 1.95, rounded 2, for either held-out part
        assert kinds_and_sizes(split_tasks(tasks, (0.7, 0.15, 0.15), seed)) == [(9, {"a", "b"})] + 2 * [(2, {"a", "b"})]


def test_a_kind_with_one_table_stays_where_it_was_drawn():
    tasks = [over(index, f"T{index}", kind="ab"[index == 9]) for index in range(10)]
    where = {tuple("b" in kinds for _, kinds in kinds_and_sizes(split_tasks(tasks, (0.8, 0.2), s))) for s in range(30)}
    assert where == {(True, False), (False, True)}


def test_a_fifth_of_agentbenchs_tables_holds_out_tasks_of_all_ten_kinds(data_file):
    tasks = load_tasks(data_file("agentbench/standard.jsonl"))
    for seed in range(10):
        train, held_out = split_by_table(tasks, 0.2, seed)
        assert count_kinds(train).keys() == count_kinds(held_out).keys() == count_kinds(tasks).keys()


# a draw by kind -------------------------------------------------------------------------------------------------------

# sorted by kind, as AgentBench's file is: five a, four b, one c
SORTED = [over(index, f"T{index}", kind=kind) for index, kind in enumerate("aaaaabbbbc")]


@pytest.mark.parametrize(("limit", "expected"), [
    pytest.param(2, {"a": 1, "b": 1}, id="fewer_than_kinds_the_first_ones"),
    pytest.param(3, {"a": 1, "b": 1, "c": 1}, id="one_of_each"),
    # 6 / 3 = 2 each; c has 1, and what it is short of goes to a, which comes first
    pytest.param(6, {"a": 3, "b": 2, "c": 1}, id="a_small_kind_gives_all_it_has"),
    pytest.param(9, {"a": 4, "b": 4, "c": 1}, id="only_the_largest_kind_has_any_left"),
])  # fmt: skip
def test_a_draw_has_the_same_number_of_every_kind(limit, expected):
    for seed in range(20):
        drawn = draw_by_kind(SORTED, limit, seed)
        assert count_kinds(drawn) == expected
        assert drawn == [task for task in SORTED if task in drawn]  # in the order given


@pytest.mark.parametrize("limit", [10, 11, None])
def test_a_draw_of_all_tasks_is_all_of_them_in_their_order(limit):
    assert draw_by_kind(SORTED, limit, seed=3) == SORTED


def test_the_seed_fixes_a_draw_and_a_smaller_one_is_part_of_a_larger_one():
    draws = {ids(draw_by_kind(SORTED, 4, seed)) for seed in range(20)}
    assert len(draws) > 1
    assert draw_by_kind(SORTED, 4, 7) == draw_by_kind(SORTED, 4, 7)
    assert set(ids(draw_by_kind(SORTED, 4, 7))) < set(ids(draw_by_kind(SORTED, 7, 7)))


def test_64_of_agentbenchs_tasks_are_of_all_ten_kinds(data_file):
    tasks = load_tasks(data_file("agentbench/standard.jsonl"))
    assert len(count_kinds(tasks[:64])) == 4  # the file is sorted by kind
    # 64 = 6 x 10 + 4: the four kinds that come first in the file have 7
    seven = ("other", "counting", "comparison", "ranking")
    expected = {kind: 7 if kind in seven else 6 for kind in count_kinds(tasks)}
    assert len(expected) == 10
    assert count_kinds(draw_by_kind(tasks, 64, seed=0)) == expected


def test_128_of_lifelongagentbenchs_tasks_have_as_many_of_the_rare_kinds_as_of_selects(data_file):
    drawn = draw_by_kind(load_tasks(data_file("lifelong/entry_dict.json")), 128, seed=0)  # of 350, 56, 52 and 42
    assert count_kinds(drawn) == {"SELECT": 32, "INSERT": 32, "UPDATE": 32, "DELETE": 32}
