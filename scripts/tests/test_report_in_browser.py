"""The report as a person meets it: a real browser opens the page, clicks, and is as narrow as a phone."""

import json

import pytest

from scripts.tests.browser import CHROMIUM, MISSING, browser
from scripts.tests.report_run import AFTER, HOSTILE, make_run
from sql_agent.commands.report import main

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]
DESKTOP, PHONE = 1280, 390
"""Widths in pixels."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "two")
    make_run(folder / "one", steps=1)
    make_run(folder / "once", after=None)
    metrics = (
        (folder / "one/metrics.jsonl").read_text().replace('"group/zero_std_frac": 0.5', '"group/zero_std_frac": 1.0')
    )
    (folder / "one/metrics.jsonl").write_text(metrics)
    make_run(folder / "better", after=[AFTER[0], "SELECT name FROM customer WHERE town IS NULL", *AFTER[2:]])
    make_run(folder / "agent", settings=["env.type=agent", "env.agent=my_agent.py:agent", "llm_proxy=true"])
    for file in (folder / "agent/trajectories").iterdir():
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rewarded = [row | {"score": {"value": None, "reason": "no_judge"}, "comparison": None} for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in rewarded))
    for name in ("two", "one", "once", "agent"):
        assert main([str(folder / name)]) == 0
    assert main([str(folder / "two"), str(folder / "better")]) == 0
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab
        assert tab.said == []  # no script of ours failed, and nothing was refused


def listed(page):
    return page.run("[...document.querySelectorAll('#list button')].map(b => b.dataset.task)")


def asked(page):
    return page.run("[...document.querySelectorAll('#questions tr.row')].map(r => r.dataset.question)")


def click(page, selector):
    page.run(f"document.querySelector({selector!r}).click()")


def set_field(page, field, value, event):
    page.run(f"(f => {{ f.value = {value!r}; f.{event}(); }})(document.getElementById({field!r}))")


def test_each_held_out_question_stands_before_and_after(runs, page):
    page.show(runs / "two/report.html")
    head, *rows = page.texts("#questions tr")
    assert head.split("\t") == [
        "question", "SQL or answer before", "verdict", "SQL or answer after 2 steps", "verdict", "result",
    ]  # fmt: skip
    assert [line.split("\t")[0] for line in rows] == [
        "Who are the customers, by id?",
        f"Who has no town? {HOSTILE}",
        "How many customers are there?",
        "Let Ann move to Bonn.",
        "Which towns are there?",
    ]
    assert rows[2].replace("\n", "").split("\t")[1:] == [
        "SELECT count(custmer) FROM customer", "wrongsql_error", "I do not know.", "wrongno_answer", "still wrong",
    ]  # fmt: skip
    assert page.run("document.title") == "Run two"
    assert page.run("document.querySelectorAll('img').length") == 0


def test_where_nobody_judges_each_question_has_its_reward_before_and_after(runs, page):
    page.show(runs / "agent/report.html")
    head, *rows = page.texts("#questions tr")
    assert head.split("\t") == [
        "question", "last reply before", "verdict", "last reply after 2 steps", "verdict", "result",
    ]  # fmt: skip
    changed = [line.split("\t")[2::2] + line.split("\t")[-1:] for line in (rows[0], rows[1], rows[-1])]
    assert changed == [
        ["reward 0", "reward 1", "higher reward"],
        ["reward 1", "reward 0", "lower reward"],
        ["reward 1", "reward 1", "same reward"],
    ]
    click(page, "[data-question=q-0]")
    assert page.texts("#questions tr.details h3") == ["before: reward 0", "after 2 steps: reward 1"]
    assert page.texts("#filter-outcome option") == ["all", "rewarded"]
    assert page.texts("#detail h3") == ["reward 0"]


def test_a_click_on_a_question_shows_reference_rows_and_the_databases_words(runs, page):
    page.show(runs / "two/report.html")
    click(page, "[data-question=q-2]")
    (details,) = page.texts("#questions tr.details")
    assert [line for line in details.split("\n") if line.strip()] == [
        "How many customers are there?",
        "reference", "SELECT count(*) FROM customer",
        "expected: 1 row", "3",
        "before: wrong, sql_error",
        "handed in", "SELECT count(custmer) FROM customer",
        "the database said", "no such column: custmer",
        "after 2 steps: wrong, no_answer",
        "said last", "I do not know.",
    ]  # fmt: skip
    click(page, "[data-question=q-2]")
    click(page, "[data-question=q-4]")
    (details,) = page.texts("#questions tr.details")
    # before, Bo moved instead of Ann; afterwards all did, and Cy lived in Bonn already
    assert page.texts("#questions .wanted tr") == [
        "customer\t1\tAnn\tBonn", "customer\t2\tBo\tNULL", "customer\t2\tBo\tNULL",
    ]  # fmt: skip
    assert "rows that only the agent leaves behind: 1 row\ncustomer\t2\tBo\tBonn" in details


def test_the_questions_are_filtered_by_result_and_by_words_and_a_link_keeps_both(runs, page):
    page.show(runs / "two/report.html")
    assert page.texts("#filter-result option") == [
        "all", "newly solved (1)", "no longer solved (1)", "still wrong (2)", "right both times (1)",
    ]  # fmt: skip
    set_field(page, "filter-result", "still wrong", "onchange")
    assert asked(page) == ["q-2", "q-4"]
    set_field(page, "filter-find", "CUSTMER", "oninput")
    assert asked(page) == ["q-2"]
    assert "1 of 5 questions shown" in page.texts("#questions-matching")[0]
    page.show(runs / "two/report.html", page.run("location.hash").removeprefix("#"))
    assert asked(page) == ["q-2"]
    assert page.run("document.getElementById('filter-find').value") == "CUSTMER"


def test_a_trajectory_shows_its_reference_and_marks_the_rows_that_the_other_side_lacks(runs, page):
    page.show(runs / "two/report.html", "outcome=wrong&split=held-out&step=0")
    assert listed(page) == ["q-0", "q-2", "q-4"]
    detail = page.texts("#detail")[0]
    assert "expected, in this order: 3 rows" in detail and "returned: 2 rows" in detail
    assert page.texts("#detail .odd") == ["Cy"]
    click(page, "#list button:nth-child(2)")
    assert "the database said\nno such column: custmer" in page.texts("#detail")[0]
    assert page.run("location.hash.includes('open=')")
    set_field(page, "filter-outcome", "right", "onchange")
    assert listed(page) == ["q-1", "q-3"]


def test_a_run_of_one_step_has_a_table_and_a_run_with_one_validation_one_column(runs, page):
    page.show(runs / "one/report.html")
    assert page.texts("figcaption") == ["Learning"]  # which has step 0 too
    head, first, *others = page.texts("#once tr")
    assert (head, first) == (
        "measured at one step\t\tvalue\tstep",
        "Zero-variance groups\ttrained on, all wrong\t0.5\t1",
    )
    assert "\tweight sync\t0.5\t1" in others
    page.show(runs / "once/report.html")
    assert page.texts("#questions th") == ["question", "SQL or answer before", "verdict"]
    assert "There was one validation; a second one will stand beside it." in page.texts("body")[0]
    click(page, "[data-question=q-0]")
    assert page.texts("#questions .odd") == ["Cy"]


@pytest.mark.parametrize("name", ["two/report.html", "one/report.html", "once/report.html", "better/compared.html"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_no_page_and_no_table_of_questions_is_wider_than_its_window(runs, page, name, width):
    page.show(runs / name, width=width)
    for question in ("q-0", "q-2", "q-4"):
        click(page, f"[data-question={question}]")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    if width == PHONE:  # answers and verdicts are read without scrolling sideways
        assert page.run("(box => box.scrollWidth <= box.clientWidth)(document.getElementById('questions'))")
        assert page.run(
            "getComputedStyle(document.querySelector('#questions .answer'), '::before').content"
        ).startswith('"SQL or answer ')
    # what is unfolded is read without scrolling sideways
    edges = page.run("[...document.querySelectorAll('.in-view')].map(e => e.getBoundingClientRect().right)")
    box = page.run("(box => box.getBoundingClientRect().left + box.clientWidth)(document.getElementById('questions'))")
    assert len(edges) == 3 and max(edges) <= box
    picture = runs / f"{name.replace('/', '-')}-{width}.png"
    page.photograph(picture)  # pytest keeps the folder, for whoever wants to look
    assert picture.stat().st_size > 20_000


def test_that_nothing_was_learnt_is_the_headline(runs, page):
    page.show(runs / "one/report.html")
    assert page.texts("#headline p")[:-1] == [
        "Nothing was learnt: in its one train step no group had rewards that differ.",
        "Held-out success: 40% (12% to 77%, 2 of 5) before, 40% (12% to 77%, 2 of 5) after 1 step.",
        "1 of 5 tasks newly solved, 1 no longer solved: not clear (McNemar's exact test, p = 1).",
        "doc/operate/troubleshooting.md says what to change, under `Success does not rise`.",
    ]


def test_two_runs_stand_side_by_side(runs, page):
    page.show(runs / "better/compared.html")
    assert page.texts("#questions th") == [
        "question", "SQL or answer two", "verdict", "SQL or answer better", "verdict", "result",
    ]  # fmt: skip
    assert asked(page)[0] == "q-1"
    assert page.texts("[data-question=q-1] .change")[-1] == "better alone"
    assert page.run("document.querySelectorAll('svg').length") == 2
