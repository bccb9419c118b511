"""The held-out questions of a run before and after, and two runs side by side."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from scripts.tests.report_run import AFTER, BEFORE, HOSTILE, make_run
from sql_agent.commands.report import main
from sql_agent.comparison import Excerpt
from sql_agent.report.compare import Pair, same_tasks, settings_that_differ
from sql_agent.report.questions import question, side_by_side, validations
from sql_agent.report.reading import read_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_run(make_run(tmp_path_factory.mktemp("runs") / "base"))


def table(page):
    """The rows of the table in a page, as the script gets them."""
    return json.loads(page.read_text().split('id="questions-data" type="application/json">')[1].split("</script>")[0])


def test_what_changed_stands_first_then_what_is_still_wrong(run):
    rows = side_by_side(*validations(run.trajectories))
    assert [(row["task_id"], row["result"]) for row in rows] == [
        ("q-0", "newly solved"),
        ("q-1", "no longer solved"),
        ("q-2", "still wrong"),
        ("q-4", "still wrong"),
        ("q-3", "right both times"),
    ]


def test_a_row_holds_question_and_both_answers_with_what_was_compared(run):
    failed = side_by_side(*validations(run.trajectories))[2]
    assert (failed["question"], failed["kind"]) == ("How many customers are there?", "answer")
    assert failed["before"] == {
        "sql": "SELECT count(custmer) FROM customer",
        "right": False,
        "reward": None,
        "verdict": "sql_error",
        "error": None,
        "comparison": {
            "submitted": "SELECT count(custmer) FROM customer",
            "reference": "SELECT count(*) FROM customer",
            "expected": asdict(Excerpt.of([(3,)])),
            "returned": None,
            "error": "no such column: custmer",
            "ordered": False,
            "state": False,
        },
    }
    # nothing was handed in
    assert (failed["after"]["sql"], failed["after"]["verdict"]) == ("I do not know.", "no_answer")


def test_a_question_that_is_lost_or_missing_in_one_validation_is_not_judged(run):
    first, last = validations(run.trajectories)
    lost = last["q-0"] | {"lost": "db_unavailable", "score": {"value": None, "reason": "db_unavailable"}}
    rows = side_by_side({"q-0": first["q-0"], "q-1": first["q-1"]}, {"q-0": lost})
    assert [(row["task_id"], row["result"], row["after"] is None) for row in rows] == [
        ("q-0", "not judged", False),
        ("q-1", "not judged", True),
    ]
    assert rows[0]["after"]["verdict"] == "db_unavailable"


def test_a_single_validation_is_a_table_of_its_own(run):
    (first, _) = validations(run.trajectories)
    assert [row["result"] for row in side_by_side(first, None)] == ["wrong", "wrong", "wrong", "right", "right"]


def test_examples_in_a_prompt_are_not_the_question():
    user, assistant = ({"role": role, "content": f"{role} example"} for role in ("user", "assistant"))
    asked = {"role": "user", "content": "A table.\nQuestion: Why?"}
    row = {"task_id": "t", "num_turns": 1, "messages": [user, assistant, asked, assistant]}
    assert [question(row), question(row | {"messages": [asked]}), question({"task_id": "t"})] == ["Why?", "Why?", "t"]


def test_a_run_without_a_validation_says_so(run, tmp_path):
    folder = make_run(tmp_path / "none", after=None)
    (folder / "trajectories/val_000000.jsonl").unlink()
    main([str(folder)])
    page = folder / "report.html"
    assert "The validations saved no trajectories: there is no question to show." in page.read_text()
    (folder / "metrics.jsonl").write_text('{"train_step": 1, "reward/mean": 0.5}\n')
    main([str(folder)])
    assert "No validation was made: there is no question to show." in page.read_text()


# two runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other(run):
    """One step with another seed; it solves q-0, q-1 and q-3."""
    folder = run.folder.parent / "other"
    return read_run(make_run(folder, steps=1, after=[AFTER[0], BEFORE[1], *AFTER[2:]], settings=["seed=7"]))


def test_two_runs_are_compared_over_the_tasks_that_both_measured(run, other, capsys):
    assert main([str(run.folder), str(other.folder)]) == 0
    said = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    # 2 of 5: Wilson's interval is 12 % to 77 %; 3 of 5 the mirror image
    assert {name: text.strip() for name, text in said.items()} == {
        "base": "held-out success 40% (12% to 77%, 2 of 5) before, 40% (12% to 77%, 2 of 5) after 2 steps",
        "other": "held-out success 40% (12% to 77%, 2 of 5) before, 60% (23% to 88%, 3 of 5) after 1 step",
        "between them": "5 held-out tasks are the same in both (of 5 and 5); of the 5 judged in both, other alone "
        "solved 1 and base alone 0: not clear (McNemar's exact test, p = 1)",
        "settings": "these differ: seed, trainer.steps",
        "page": str(other.folder / "compared.html"),
    }
    rows = {row["task_id"]: row["result"] for row in table(other.folder / "compared.html")}
    assert rows == {"q-1": "other alone", "q-2": "neither", "q-4": "neither", "q-0": "both", "q-3": "both"}


def test_a_run_is_not_compared_with_itself(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(run.folder), f"{run.folder.parent}/./{run.folder.name}"])
    assert "are the same folder; name another run's, or one alone" in capsys.readouterr().err


def test_a_run_in_the_current_folder_has_its_name(run, other, monkeypatch):
    monkeypatch.chdir(other.folder)
    assert Pair(run, read_run(Path())).names == ("base", "other")


def test_a_task_of_the_same_id_with_another_question_is_another_task(run):
    (first, last) = validations(run.trajectories)
    changed = last["q-0"] | {"messages": [{"role": "user", "content": "Who else?"}]}
    kept = same_tasks(first, last | {"q-0": changed, "q-9": changed})
    assert [sorted(side) for side in kept] == [["q-1", "q-2", "q-3", "q-4"]] * 2


def test_settings_are_compared_without_passwords(run, tmp_path):
    address = "rollout.backend=mysql://me:5ecret@127.0.0.1:3306"
    folders = [make_run(tmp_path / name, settings=[address + name]) for name in "12"]
    differ = settings_that_differ(Pair(*map(read_run, folders)))
    assert [name for name, _, _ in differ] == ["rollout.backend"]
    assert "5ecret" not in str(differ)


def test_runs_that_share_no_task_are_not_tested(run, tmp_path, capsys):
    folder = make_run(tmp_path / "others")
    for file in (folder / "trajectories").glob("val_*"):
        file.write_text(file.read_text().replace('"task_id": "q-', '"task_id": "z-'))
    assert main([str(run.folder), str(folder)]) == 0
    assert "0 held-out tasks are the same in both (of 5 and 5); none of them was judged" in capsys.readouterr().out
    for file in (folder / "trajectories").glob("val_*"):
        file.unlink()
    assert main([str(run.folder), str(folder)]) == 0
    assert "at least one of the runs has saved no validation" in capsys.readouterr().out
    assert HOSTILE not in (folder / "compared.html").read_text()


def test_only_one_run_can_be_followed(run, capsys):
    with pytest.raises(SystemExit):
        main([str(run.folder), str(run.folder), "--follow"])
    assert "--follow is for one run" in capsys.readouterr().err
