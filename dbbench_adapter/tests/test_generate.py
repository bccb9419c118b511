import hashlib
import itertools
import json
import random
import re
from collections import Counter

import pytest
import sqlglot
from sqlglot import exp

from dbbench_adapter.datatypes import Column, Gold, Table, Task
from dbbench_adapter.dialect.sql_types import to_cell
from dbbench_adapter.engines.base import hash_rows
from dbbench_adapter.generate import SKILL_COUNTS, THEMES, ExhaustedError, generate, task_stream
from dbbench_adapter.generate.phrases import join_words, keys, ordinal, punctuate
from dbbench_adapter.generate.plans import (
    FEWEST_SKILLS,
    LIFELONG_SHARES,
    MOST_SKILLS,
    NoDraft,
    Plan,
    close_plan,
    draw_plan,
)
from dbbench_adapter.generate.queries import Output, QueryDraft, SortKey, _between, _untied
from dbbench_adapter.generate.tasks import MAX_SHOWN_CHARS, checked_gold
from dbbench_adapter.generate.themes import NAME_ENDINGS, draw_scene
from dbbench_adapter.sql_skills import SKILLS, recognise_skills
from dbbench_adapter.tasks.load import FORBIDDEN, NotLifelongError, entry_dict, load_tasks

FRUIT = Table(
    "fruit", (Column("name", "TEXT"), Column("price", "INT")), (("plum", 5), ("pear", 4), ("fig", 9), ("date", 9))
)


@pytest.fixture(scope="module")
def refused():
    return Counter()


@pytest.fixture(scope="module")
def train(refused) -> list[Task]:
    return generate(600, seed=3, refused=refused)


@pytest.fixture(scope="module")
def held_out() -> list[Task]:
    return generate(400, seed=3, split="held_out")


def replayed(database, task):
    """The reference's rows as plain cells, or the hash that it leaves behind; and those of the gold."""
    result = database.run(task.gold.sql)
    assert result.error is None, task.gold.sql
    if task.gold.rows is None:
        return database.table_hash(task.tables), task.gold.table_hash
    rows = [tuple(map(to_cell, row)) for row in result.rows]
    expected = list(task.gold.rows)
    return (rows, expected) if task.ordered else (Counter(rows), Counter(expected))


@pytest.mark.parametrize(
    ("split", "sha256"),
    [
        ("train", "2eef204151c75faed89dc2f93fa145f83e4c79f07649bae1f0e6b79f5177bdc4"),
        ("held_out", "de01d8da3ed8dae0fa96b30c2676d54378737d0766cb890440336a1884aae51c"),
    ],
)
def test_the_tasks_of_a_seed_never_change(split, sha256):
    """Published results depend on them."""
    lines = "".join(json.dumps(task.to_dict()) + "\n" for task in generate(80, seed=0, split=split))
    assert hashlib.sha256(lines.encode()).hexdigest() == sha256


@pytest.mark.slow
def test_references_give_their_gold_on_both_engines(backend, train, held_out):
    for task in train + held_out:
        with backend.open(task.tables, typed=task.typed) as database:
            found, expected = replayed(database, task)
        assert found == expected, task.gold.sql


def test_every_skill_comes_up_alike_and_is_recognised_in_the_reference(train, held_out):
    for tasks in (train, held_out):
        counts = Counter(skill for task in tasks for skill in task.skills)
        assert set(counts) == set(SKILLS)
        assert min(counts.values()) > len(tasks) * 0.05  # 22 skills, 3.7 a task: 0.17 each if select were as rare
        assert all(task.skills == recognise_skills(task.gold.sql) for task in tasks)


def test_a_plan_foretells_the_skills_of_its_statement(train, refused):
    assert len(train) == 600
    assert refused["other_skills"] == 0
    assert sum(refused.values()) < 0.35 * 600


def test_no_question_no_statement_and_no_id_comes_twice(train):
    assert len({task.gold.sql for task in train}) == len({task.id for task in train}) == len(train)
    assert len({(task.question, task.tables[0].name) for task in train}) == len(train)


def test_what_would_repeat_is_drawn_again():
    refused = Counter()
    tasks = generate(800, seed=0, split="held_out", difficulty="easy", skills={"select": 1.0}, refused=refused)
    assert refused["repeated"] > 0
    assert len({task.gold.sql for task in tasks}) == 800


def test_train_and_held_out_share_no_table_no_statement_and_no_question(train, held_out):
    names = {split: {theme.table for theme in themes} for split, themes in THEMES.items()}
    endings = set(NAME_ENDINGS)
    assert not {a + x for a in names["train"] for x in endings} & {b + x for b in names["held_out"] for x in endings}
    rows = {
        split: {theme.row for theme in themes} | {theme.rows for theme in themes} for split, themes in THEMES.items()
    }
    assert not rows["train"] & rows["held_out"]
    for get in (lambda task: task.tables[0].name, lambda task: task.gold.sql, lambda task: task.question):
        assert not set(map(get, train)) & set(map(get, held_out))


def test_every_question_names_its_rows_which_keeps_the_splits_apart(train, held_out):
    for split, tasks in (("train", train), ("held_out", held_out)):
        names = {theme.table: (theme.row, theme.rows) for theme in THEMES[split]}
        for task in tasks:
            owners = [names[table] for table in names if task.tables[0].name.startswith(table)]
            assert any(name in task.question for pair in owners for name in pair), task.question


def test_the_same_seed_gives_the_same_tasks_and_more_tasks_only_add_to_them(train):
    assert generate(50, seed=3) == train[:50]
    assert generate(50, seed=4) != train[:50]


def test_there_are_seventy_themes_with_all_that_a_table_needs():
    themes = [theme for themes in THEMES.values() for theme in themes]
    assert (len(THEMES["train"]), len(THEMES["held_out"])) == (52, 18)
    assert len({theme.table for theme in themes}) == 70
    for theme in themes:
        roles = Counter(field.role for field in theme.fields)
        assert roles["key"] == 1 and roles["category"] >= 2 and roles["amount"] >= 1, theme.table
        assert len({field.name for field in theme.fields}) == len({field.phrase for field in theme.fields}), theme.table


def test_tables_are_as_lifelong_agent_bench_has_them(train, held_out):
    for task in train + held_out:
        (table,) = task.tables
        assert 5 <= len(table.columns) <= 7
        assert {column.type for column in table.columns} == {"INT", "TEXT"}
        assert 8 <= len(table.rows) <= 50 and (len(task.skills) < 4 or len(table.rows) >= 20)
        for row in table.rows:
            for column, cell in zip(table.columns, row, strict=True):
                assert isinstance(cell, int if column.type == "INT" else str)
                assert not FORBIDDEN & set(str(cell))


def test_no_text_column_holds_two_texts_that_mysql_takes_for_one(train):
    for task in train:
        for index, column in enumerate(task.tables[0].columns):
            if column.type == "TEXT":
                texts = {row[index] for row in task.tables[0].rows}
                assert len({text.casefold().strip() for text in texts}) == len(texts)
                assert all(text.isascii() for text in texts)


def test_answers_are_not_empty_and_fit_into_what_an_agent_is_shown(train):
    for task in train:
        if task.kind == "SELECT":
            assert len(task.gold.rows) >= 1
            assert len(str(list(task.gold.rows))) <= MAX_SHOWN_CHARS
            assert task.gold.table_hash is None and task.ordered == (" ORDER BY " in task.gold.sql)


def test_every_change_changes_the_table_and_leaves_rows(train):
    changes = [task for task in train if task.changes_state]
    assert {task.kind for task in changes} == {"INSERT", "UPDATE", "DELETE"}
    for task in changes:
        before = hash_rows(",".join(map(str, row)) for row in task.tables[0].rows)
        assert task.gold.rows is None and not task.ordered
        assert re.fullmatch("[0-9a-f]{32}", task.gold.table_hash)
        assert task.gold.table_hash != before


def test_no_change_reads_a_table_that_it_may_have_changed_already(train, held_out):
    """MariaDB evaluates `b` of `a OR b` when the first row fails `a`; by then other rows may be changed or gone."""
    seen = 0
    for task in train + held_out:
        tree = sqlglot.parse_one(task.gold.sql, read="mysql")
        if isinstance(tree, exp.Update | exp.Delete) and not tree.args.get("order"):
            seen += tree.find(exp.Subquery) is not None
            assert all(query.find_ancestor(exp.Or) is None for query in tree.find_all(exp.Subquery)), task.gold.sql
    assert seen > 30


def test_texts_of_the_reference_stand_in_the_question(train):
    """A person cannot guess a value that the question does not name."""
    for task in train:
        for text in re.findall(r"'([^']*)'", task.gold.sql):
            assert text.rstrip("%") in task.question, (task.question, task.gold.sql)


def test_numbers_of_the_reference_stand_in_the_question(train):
    for task in train:
        sql = re.sub(r"'[^']*'|\b[a-z_]\w*", "", task.gold.sql)
        limit = re.search(r" LIMIT (\d+)", task.gold.sql)
        offset = re.search(r" OFFSET (\d+)", task.gold.sql)
        loose = {limit and limit[1], offset and offset[1], "1", "2"}  # `the next one`, `starting from the 4th`, `twice`
        for number in re.findall(r"\d+", sql):
            assert number in loose or re.search(rf"\b{number}\b", task.question), (task.question, task.gold.sql)


def test_questions_are_sentences(train):
    for task in train:
        text = task.question
        assert text[0].isupper() and text[-1] in ".?" and "{" not in text and "  " not in text and ".." not in text
        assert "?" not in text.removesuffix("?") or (text.count("?") == 1 and text[-1] == "."), text
        assert "?" not in text or text.startswith(("What ", "Which ", "How many ")), text


@pytest.mark.parametrize("difficulty", SKILL_COUNTS)
def test_difficulty_is_the_number_of_skills(difficulty):
    low, high = SKILL_COUNTS[difficulty]
    tasks = generate(60, seed=1, difficulty=difficulty)
    assert all(low <= len(task.skills) <= high for task in tasks)
    assert {len(task.skills) for task in tasks} >= ({1, 2, 3} if difficulty == "easy" else {low, low + 1})


def test_the_shares_of_difficulties_are_those_of_lifelong_agent_bench(data_file):
    sizes = [len(task.skills) for task in load_tasks(data_file("lifelong/entry_dict.json"))]
    for level, (low, high) in SKILL_COUNTS.items():
        assert sum(low <= size <= high for size in sizes) / 500 == LIFELONG_SHARES[level]


@pytest.mark.parametrize("skill", SKILLS)
def test_one_skill_can_be_asked_for_at_its_lowest_difficulty(skill):
    level = next(level for level, (_, most) in SKILL_COUNTS.items() if FEWEST_SKILLS[skill] <= most)
    tasks = generate(20, seed=2, difficulty=level, skills={skill: 1.0})
    assert all(skill in task.skills for task in tasks)
    assert min(len(task.skills) for task in tasks) == max(FEWEST_SKILLS[skill], SKILL_COUNTS[level][0])


def test_skill_weights_shift_the_mix_against_the_pull_towards_an_even_one():
    tasks = generate(300, seed=5, difficulty="easy", skills={"insert": 1.0, "update": 9.0})
    counts = Counter(task.kind for task in tasks)
    # the chance falls as 1 / (count + 1): 9 / u against 1 / i is even at u = 9 i / ... u : i = sqrt(9) = 3
    assert counts["INSERT"] + counts["UPDATE"] == 300
    assert 2.2 < counts["UPDATE"] / counts["INSERT"] < 4.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"n": 0}, "expected 1 or more", id="none"),
        pytest.param({"split": "test"}, "expected one of train, held_out", id="split"),
        pytest.param({"difficulty": "extreme"}, "expected one of easy, medium, hard", id="difficulty"),
        pytest.param({"skills": {"joins": 1.0}}, "unknown skill 'joins', expected some of select", id="skill"),
        pytest.param({"skills": {"delete": 0.0}}, "each above 0", id="weight"),
        pytest.param({"skills": {}}, "one or more", id="no_skill"),
        pytest.param(
            {"difficulty": "easy", "skills": {"having_aggregate_calculation": 1.0}},
            "shows 4 to 9 skills, easy ones show 1 to 3; take another difficulty",
            id="no_room",
        ),
        pytest.param(
            {"difficulty": "hard", "skills": {"insert": 1.0}},
            "shows 1 to 5 skills, hard ones show 6 to 9; take another difficulty",
            id="too_simple",
        ),
    ],
)
def test_what_cannot_be_generated_is_refused_with_what_was_expected(arguments, message):
    with pytest.raises(ValueError, match=message):
        generate(**{"n": 1, "seed": 0, **arguments})


def test_a_stream_that_runs_dry_says_so(monkeypatch):
    def draw_nothing(*_):
        raise NoDraft("ties")

    monkeypatch.setattr("dbbench_adapter.generate.tasks.draw_change", draw_nothing)
    stream = task_stream(seed=0, difficulty="easy", skills={"update": 1.0})
    with pytest.raises(ExhaustedError, match=r"after 0 tasks .* ask for fewer tasks, more .* refused so far: .*ties"):
        list(itertools.islice(stream, 2))


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sql", "reason"),
    [
        pytest.param("SELECT", "SELECT name FROM fruit WHERE price > 9", "empty_answer", id="no_row"),
        pytest.param("SELECT", "SELECT MAX(price) FROM fruit WHERE price > 9", "empty_answer", id="null"),
        pytest.param("SELECT", "SELECT REPEAT('x', 800) FROM fruit", "long_answer", id="long"),
        pytest.param("UPDATE", "UPDATE fruit SET price = 5 WHERE name = 'plum'", "no_change", id="no_change"),
        pytest.param("DELETE", "DELETE FROM fruit", "empty_table", id="nothing_left"),
    ],
)
def test_a_draft_that_makes_no_good_task_is_refused_with_its_reason(sqlite, kind, sql, reason):
    with pytest.raises(Exception, match=f"^{reason}$"):
        checked_gold(sqlite, FRUIT, QueryDraft(kind, "", sql))


def test_averages_have_the_four_decimals_of_mysql(sqlite):
    # (4 + 9 + 9) / 3 = 7.33333...
    sql = "SELECT AVG(price) FROM fruit WHERE name <> 'plum'"
    assert checked_gold(sqlite, FRUIT, QueryDraft("SELECT", "", sql)) == Gold(rows=((7.3333,),), sql=sql + ";")


def test_rows_that_tie_are_refused_unless_they_look_the_same():
    scene = draw_scene(random.Random(0), THEMES["train"], 10)
    category = scene.of("category")[0]
    repeated = Output(category.phrase, category.name, role="category")
    key = Output("key", scene.of("key")[0].name, role="key")
    source = f"FROM {scene.table.name}"
    assert len(set(scene.column(category))) < 10
    assert _untied(scene, [key], [SortKey(repeated, False)], source) is None
    assert len(_untied(scene, [repeated], [SortKey(repeated, False)], source)) == 10
    assert len(_untied(scene, [key], [SortKey(repeated, False), SortKey(key, True)], source)) == 10
    assert _untied(scene, [key], [SortKey(key, False), SortKey(repeated, False)], source) is None  # 2nd never decides


@pytest.mark.parametrize(
    ("low", "high", "low_included", "expected"),
    [
        pytest.param(3, 4, True, 3, id="above_3_cuts_between_3_and_4"),
        pytest.param(3, 4, False, 4, id="at_least_4_cuts_there_too"),
        pytest.param(97, 312, True, 100, id="a_round_number_where_there_is_room"),
        pytest.param(3.25, 4.5, True, 4, id="averages"),
    ],
)
def test_a_threshold_lies_between_two_values(low, high, low_included, expected):
    assert _between(low, high, low_included=low_included) == expected


# Plans ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "skills"),
    [
        pytest.param({"insert"}, {"insert"}, id="insert_values"),
        pytest.param({"limit_only"}, {"select", "order_by_single_column", "limit_only"}, id="limit_needs_an_order"),
        pytest.param(
            {"delete", "subquery_nested"},
            {"select", "delete", "where_single_condition", "table_alias", "subquery_nested"},
            id="a_change_reads_itself_through_a_derived_table",
        ),
        pytest.param(
            {"insert", "subquery_single"},
            {"select", "insert", "where_single_condition", "subquery_single"},
            id="insert_select",
        ),
    ],
)
def test_a_plan_adds_what_its_skills_need(targets, skills):
    assert set(close_plan(random.Random(0), targets).skills()) == skills


@pytest.mark.parametrize(
    "targets",
    [
        pytest.param({"insert", "delete"}, id="two_changes"),
        pytest.param({"limit_only", "limit_and_offset"}, id="two_limits"),
        pytest.param({"update", "group_by_single_column"}, id="update_has_no_groups"),
        pytest.param({"delete", "limit_and_offset"}, id="delete_has_no_offset"),
        pytest.param({"delete", "subquery_single"}, id="delete_cannot_read_its_own_table"),
        pytest.param({"where_single_condition", "subquery_multiple"}, id="no_room_for_two_subqueries"),
    ],
)
def test_skills_that_do_not_go_together_have_no_plan(targets):
    assert close_plan(random.Random(0), targets) is None


def test_fewest_skills_is_what_plans_reach():
    for skill in SKILLS:
        sizes = [len(close_plan(random.Random(seed), {skill}).skills()) for seed in range(50)]
        assert min(sizes) == FEWEST_SKILLS[skill], skill


def test_most_skills_is_what_a_copying_insert_reaches():
    targets = {"insert", "where_nested_conditions", "subquery_multiple", "table_alias"}
    assert len(close_plan(random.Random(0), targets).skills()) == MOST_SKILLS["insert"] == 5


def test_a_skill_without_room_does_not_hold_up_the_others():
    plans = [draw_plan(random.Random(seed), {"insert": 99.0, "delete": 1.0}, {}, "hard") for seed in range(20)]
    assert {plan.verb for plan in plans} == {"delete"}


def test_rare_skills_are_drawn_more_often():
    counts = {skill: 0 if skill == "delete" else 10_000 for skill in SKILLS}
    plans = [draw_plan(random.Random(seed), dict.fromkeys(SKILLS, 1.0), counts, "easy") for seed in range(50)]
    assert sum(plan.verb == "delete" for plan in plans) == 50
    assert isinstance(plans[0], Plan)


# Words ----------------------------------------------------------------------------------------------------------------


def test_lists_ordinals_and_ends_read_like_english():
    assert [join_words(list("abc")[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21)] == ["1st", "2nd", "3rd", "4th", "11th", "12th", "21st"]
    assert punctuate("What is the price of all cars. Sort by age") == "What is the price of all cars? Sort by age."
    assert punctuate("Count the cars") == "Count the cars."


def test_sort_keys_name_their_direction():
    said = {keys(random.Random(seed), [("price", True, "amount")]) for seed in range(20)}
    assert said == {"price in descending order", "price from highest to lowest"}
    said = {keys(random.Random(seed), [("day", False, "date"), ("city", False, "category")]) for seed in range(99)}
    assert "day and then by city, both in ascending order" in said
    assert "day from earliest to latest and then by city from A to Z" in said


# LifelongAgentBench's form --------------------------------------------------------------------------------------------


def test_written_tasks_load_again_as_they_were(tmp_path, train):
    path = tmp_path / "entry_dict.json"
    path.write_text(json.dumps(entry_dict(train)), "utf-8")
    for index, (loaded, task) in enumerate(zip(load_tasks(path), train, strict=True)):
        assert loaded.id == f"entry_dict-{index}" and loaded.source == "lifelong"
        for name in ("question", "kind", "tables", "gold", "table_note", "skills", "typed", "ordered"):
            assert getattr(loaded, name) == getattr(task, name)


def test_a_record_has_the_fields_of_lifelong_agent_bench(data_file, train):
    original = json.loads(data_file("lifelong/entry_dict.json").read_text("utf-8"))["0"]
    for index, record in entry_dict(train).items():
        assert record.keys() == original.keys()
        assert record["table_info"].keys() == original["table_info"].keys()
        assert record["answer_info"].keys() == original["answer_info"].keys()
        assert (record["answer_info"]["direct"] is None) != (record["answer_info"]["md5"] is None)
        assert record["sample_index"] == int(index) and record["answer_info"]["sql"].endswith(";")


def test_a_cell_that_the_form_cannot_hold_is_refused():
    table = Table("fruit", (Column("name", "TEXT"),), (("plum, red",),))
    with pytest.raises(NotLifelongError, match="'plum, red', expected no NULL and none of"):
        entry_dict([Task("x", "?", "SELECT", (table,), Gold(rows=((1,),), sql="SELECT 1;"))])
