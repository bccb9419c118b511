"""The report: numbers as they were logged, a message where there are none, a page that runs nothing a policy wrote."""

import fcntl
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentgrpo.printed_commands import program_command
from agentgrpo.run_folder import begin, is_running, start_of
from sql_agent.commands.report import main
from sql_agent.evaluate import _parse
from sql_agent.report.figures import all_figures, by_prefix, skills
from sql_agent.report.names import named_as_train
from sql_agent.report.page import as_data, outcome, single, spread
from sql_agent.report.questions import side_by_side, validations
from sql_agent.report.reading import (
    HeldOut,
    ValidationChange,
    compare_validations,
    held_out,
    read_metrics,
    read_run,
    solved,
)
from sql_agent.serve_commands import serve_command
from sql_agent.settings.load import dump_config, load_config
from sql_agent.startup.evaluate_flags import evaluate_flags

ROOT = Path(__file__).parents[3]
BEFORE = {"train_step": 0, "val/rollout/success": 0.25, "val/rollout/judged": 8.0}
STEP = {"train_step": 1, "reward/mean": 0.5, "reward/unjudged_frac": 0.0, "rollout/lost/db_unavailable": 1.0}
# two of ten could not be judged: six of eight are three quarters
AFTER = {"train_step": 2, "reward/mean": 0.75, "reward/unjudged_frac": 0.0} | {
    "val/rollout/success": 0.75,
    "val/rollout/count": 10.0,
    "val/rollout/judged": 8.0,
}
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!--\u2028{{TITLE}} & `x`"


def trajectory(step, task, value, *, validate=False, question="Why?", **more):
    messages = [
        {"role": "user", "content": f"The table.\nQuestion: {question}"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "execute_sql", "arguments": "{}"}}],
        },
    ]
    score = {"value": value, "reason": "match" if value else "wrong_answer"}
    line = {"train_step": step, "validate": validate, "task_id": task, "group": "g", "lost": None, "set_aside": None}
    return line | {"score": score, "reward": value, "skills": ["select"], "messages": messages, **more}


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "run"
    (folder / "trajectories").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, [BEFORE, STEP, AFTER])) + "\n")
    facts = {"run_id": "abc", "commit": "1234567", "device": "cpu", "argv": ["train", HOSTILE], "started_at": 0}
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "config.yaml").write_text(dump_config(load_config(None, ["trainer.steps=2"])))
    for step in (2, 10):
        (folder / f"checkpoints/global_step_{step}/actor/huggingface").mkdir(parents=True)
    save(folder, "val_000000", [trajectory(0, "a", 0.0, validate=True), trajectory(0, "b", 0.0, validate=True)])
    train = [
        trajectory(1, "right", 1.0, advantage=0.7),
        trajectory(1, "wrong", 0.0, advantage=-0.7, question=HOSTILE),
        trajectory(1, "gone", 0.0, lost="db_unavailable"),
        trajectory(2, "aside", 0.0, set_aside="all_wrong"),
        trajectory(2, "late", 0.0),
    ]
    save(folder, "train_000001", train[:3])
    save(folder, "train_000002", train[3:])
    save(folder, "val_000002", [trajectory(2, "a", 1.0, validate=True), trajectory(2, "b", 0.0, validate=True)])
    return folder


def save(folder, name, rows):
    (folder / "trajectories" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_of_improve_begins_where_the_model_stood_before_fine_tuning(run_dir, capsys):
    """The report of the GRPO run began after fine-tuning, which had brought most of what was gained."""
    run_dir = run_dir.rename(run_dir.with_name("2-grpo"))
    asked = [trajectory(0, "a", 0.0), trajectory(0, "b", 1.0), trajectory(0, "c", None)]
    before = run_dir.parent / "before.jsonl"
    before.write_text("".join(json.dumps(row) + "\n" for row in asked))
    assert main([str(run_dir)]) == 0  # the files are not those of `agentgrpo improve`
    assert "held-out success before  " in capsys.readouterr().out
    (run_dir.parent / "improve.json").write_text("{}")
    assert main([str(run_dir.parent)]) == 0  # the folder that improve was given
    said = [line.partition("  ") for line in capsys.readouterr().out.splitlines()]
    said = {name: value.strip() for name, _, value in said}
    assert said["held-out success before fine-tuning"] == "50% (9% to 91%, 1 of 2)"
    assert said["change"].startswith("1 of 2 tasks newly solved, 1 no longer")
    page = run_dir.joinpath("report.html").read_text()
    assert "Held-out success: 50% (9% to 91%, 1 of 2) before fine-tuning, 75%" in page
    assert '"titles": ["before fine-tuning", "after 2 steps"]' in page.replace("\\u0022", '"')
    beside = run_dir.rename(run_dir.with_name("1-sft"))
    assert main([str(beside)]) == 0
    assert "before fine-tuning" not in capsys.readouterr().out


# reading ------------------------------------------------------------------------------------------------------------


def test_unjudged_tasks_are_left_out_of_the_rate():
    assert held_out([BEFORE, STEP, AFTER]) == [HeldOut(0, 2, 8), HeldOut(2, 6, 8)]


def test_a_step_logged_again_after_a_resume_keeps_what_only_the_first_log_had(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        '{"train_step": 1, "reward/mean": 0.5, "time/step_s": 9}\n{"train_step": 1, "time/step_s": 8}\n{"tr'
    )
    assert read_metrics(file) == [{"train_step": 1, "reward/mean": 0.5, "time/step_s": 8}]  # the torn line is no row


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [
        pytest.param(5, 0, 2 / 32, id="five_heads_of_five"),
        # of 8: 0 or 1 head, (1 + 8) / 256, and the mirror image
        pytest.param(7, 1, 18 / 256, id="seven_of_eight"),
        pytest.param(3, 3, 1.0, id="even"),
        pytest.param(0, 0, 1.0, id="nothing_changed"),
    ],
)
def test_mcnemars_exact_test(gained, lost, p):
    assert ValidationChange(20, gained, lost).p_value == pytest.approx(p)


def test_a_change_is_over_the_tasks_that_both_validations_judged():
    rows = [
        *(
            trajectory(0, task, value, validate=True)
            for task, value in [("a", 0.0), ("b", 1.0), ("c", 0.0), ("d", 0.0)]
        ),
        *(trajectory(5, task, 0.0, validate=True) for task in "abcd"),  # one in between does not count
        *(trajectory(9, task, value, validate=True) for task, value in [("a", 1.0), ("b", 0.0), ("c", 1.0)]),
        trajectory(9, "d", None, validate=True, lost="db_unavailable"),
        trajectory(9, "e", 1.0),
    ]
    assert compare_validations(rows) == ValidationChange(tasks=3, gained=2, lost=1)
    assert compare_validations(rows[:4]) is None


def test_a_task_whose_environment_gives_the_reward_is_solved_where_the_environment_says_so():
    def rewarded(value, **parts):
        return {"score": {"value": value, "reason": "own_reward", "parts": parts}}

    assert [solved(row) for row in (rewarded(0.7, correctness=1.0), rewarded(1.0, correctness=0.0))] == [True, False]
    assert [solved(row) for row in (rewarded(1.0), {"score": {"value": None, "reason": "no_judge"}}, {})] == [None] * 3


def test_a_task_that_is_solved_in_part_is_not_solved():
    before = [trajectory(0, task, value, validate=True) for task, value in [("a", 0.25), ("b", 1.0)]]
    after = [trajectory(9, task, value, validate=True) for task, value in [("a", 0.75), ("b", 0.75)]]
    assert compare_validations(before + after) == ValidationChange(tasks=2, gained=0, lost=1)


def test_a_validation_that_was_made_again_counts_once_and_torn_lines_are_counted(run_dir):
    again = [trajectory(2, "a", 0.0, validate=True), trajectory(2, "a", 1.0, validate=True)]
    save(run_dir, "val_000002", again)
    with (run_dir / "trajectories/train_000002.jsonl").open("a") as file:
        file.write('{"train_step": 2, "va')
    run = read_run(run_dir)
    assert [row["reward"] for row in run.trajectories if row["validate"] and row["train_step"] == 2] == [1.0]
    assert run.unreadable == 1


def test_a_run_goes_on_while_its_lock_is_held(run_dir):
    assert read_run(run_dir).state == "finished"
    lock = os.open(run_dir / ".lock", os.O_WRONLY | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert is_running(run_dir)
    assert read_run(run_dir).state == "running"
    os.close(lock)
    (run_dir / "config.yaml").write_text(dump_config(load_config(None, ["trainer.steps=3"])))
    assert read_run(run_dir).state == "stopped"


# figures and page ---------------------------------------------------------------------------------------------------


def test_a_count_that_is_not_logged_is_0_and_a_measure_that_is_not_logged_is_no_point():
    rows = [BEFORE, STEP, AFTER]
    assert by_prefix(rows, "rollout/lost/", absent=0.0) == {"db_unavailable": [(1, 1.0), (2, 0.0)]}
    figures = {figure.title: figure for figure in all_figures(rows)}
    assert figures["Learning"].lines["held-out success, greedy"] == [(0, 0.25), (2, 0.75)]
    assert figures["Learning"].lines["reward"] == [(1, 0.5), (2, 0.75)]
    assert (figures["Entropy"].lines, figures["Entropy"].empty) == ({}, "")
    none_lost = {figure.title: figure for figure in all_figures([AFTER])}["Lost rollouts, by reason"]
    assert (none_lost.lines, none_lost.empty) == ({}, "None in 1 train step.")


def test_a_figure_of_one_step_is_rows_with_their_numbers():
    figures = {figure.title: figure for figure in all_figures([STEP | {"time/rollout_s": 12.5, "time/update_s": 4.0}])}
    assert single(figures["Seconds a step, by phase"]) == [
        ("Seconds a step, by phase", "rollouts", "12.5", "1"),
        ("", "update", "4", "1"),
    ]
    # Wilson for 2 of 8, as below
    before = {figure.title: figure for figure in all_figures([BEFORE])}["Learning"]
    assert single(before) == [("Learning", "held-out success, greedy", "0.25 (0.07148 to 0.5907)", "0")]


def test_success_by_skill_at_the_first_and_the_last_validation():
    first = {"train_step": 0, "val/skill/select/success": 0.25, "val/skill/select/count": 8.0}
    last = {"train_step": 9, "val/skill/select/success": 0.75, "val/skill/select/count": 8.0}
    # Wilson for 2 of 8: centre 0.331, half width 0.260; for 6 of 8 the mirror image
    assert skills([first, STEP, last]) == [("select", "25% (7% to 59%, of 8)", "75% (41% to 93%, of 8)")]


def test_outcomes_tell_lost_from_wrong():
    rows = [trajectory(1, "t", 1.0), trajectory(1, "t", 0.0), trajectory(1, "t", None)]
    rows += [trajectory(1, "t", 0.0, lost="x"), trajectory(1, "t", 1.0, set_aside="all_right")]
    rows += [trajectory(1, "t", None) | {"reward": 0.5}]
    assert [outcome(row) for row in rows] == ["right", "wrong", "unjudged", "lost", "set aside", "rewarded"]


def test_a_cap_keeps_rows_of_the_whole_run():
    assert spread([{"n": n} for n in range(10)], 5) == [{"n": n} for n in (0, 2, 4, 6, 8)]


def test_data_cannot_end_the_element_that_holds_it():
    text = as_data([HOSTILE])
    assert json.loads(text) == [HOSTILE]
    assert not set("<>&\u2028") & set(text)


class _Asked(HTMLParser):
    """What a page would fetch, and the ids it gives away."""

    def __init__(self):
        super().__init__()
        self.fetched, self.ids = [], []

    def handle_starttag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]
        self.fetched += [v for name, v in attrs if name in ("src", "href", "xlink:href") and not v.startswith("#")]


def test_the_page_fetches_nothing_and_no_id_stands_twice(run_dir):
    assert main([str(run_dir)]) == 0
    page = (run_dir / "report.html").read_text()
    asked = _Asked()
    asked.feed(page)
    assert asked.fetched == []
    assert len(asked.ids) == len(set(asked.ids))
    assert not re.search(r"@import|url\((?!#)", page)
    assert "default-src 'none'" in page


def test_a_store_that_is_kept_outside_is_linked(run_dir):
    config = load_config(None, ["store.address=http://localhost:9999"])
    (run_dir / "config.yaml").write_text(dump_config(config))
    main([str(run_dir)])
    assert '<a href="http://localhost:9999" rel="noreferrer">' in (run_dir / "report.html").read_text()


# runs of the other commands ------------------------------------------------------------------------------------------


def write_run(folder, kind, settings, rows, **facts):
    (folder / "logs").mkdir(parents=True)
    file = folder / ("logs/metrics.jsonl" if kind == "single-skill" else "metrics.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    begin(folder, settings, start_of(kind, **facts), resumed=False)
    return folder


def heads(page):
    """Sections; and titles of figures, those last whose numbers are of one step and stand in a table."""
    _, *once = re.search(r'<div id="once".*?</div>', page)[0].split("<tr><td>") if 'id="once"' in page else [""]
    titles = [row.partition("<")[0] for row in once]
    return re.findall(r"<h2>(.*?)</h2>", page), [*re.findall(r"<figcaption>(.*?)<", page), *filter(None, titles)]


def test_metrics_of_other_commands_get_the_names_that_train_has():
    rate = {"n": 9, "judged": 8, "correct": 2}
    none = {"n": 9, "judged": 0, "correct": 0}
    row = {
        "held_out": rate,
        "held_out/unjudged": {"db_unavailable": 3},
        "held_out/skill": {"select": rate, "delete": none},
        "success": none,
        "rollout/stop": {"answered": 6, "max_turns": 2},
        "group/skipped": {"all_wrong": 3},
        "group/with_spread": 2,  # an earlier name
        "val/pair/loss": 0.5,
        "sft/loss": None,
        "reward/mean": 0.25,
    }
    assert named_as_train(row) == {
        "val/rollout/success": 0.25,
        "val/rollout/count": 9,
        "val/rollout/judged": 8,
        "val/rollout/lost/db_unavailable": 3,
        "val/reward/unjudged_frac": pytest.approx(1 / 3),
        "val/skill/select/success": 0.25,
        "val/skill/select/count": 8,
        "val/skill/select/judged": 8,
        "val/skill/delete/count": 0,
        "val/skill/delete/judged": 0,
        "rollout/count": 9,
        "rollout/judged": 0,
        "rollout/stop/answered": 0.75,
        "rollout/stop/max_turns": 0.25,
        "group/skipped/all_wrong": 3,
        "group/trained": 2,
        "val/loss": 0.5,
        "loss": None,
        "reward/mean": 0.25,
    }


def test_a_local_run_has_its_curves_and_rollouts_and_no_section_that_would_be_empty(tmp_path, capsys):
    right, wrong = ({"n": 4, "judged": 4, "correct": n} for n in (3, 1))
    rows = [{"train_step": 0, "held_out": wrong}, {"train_step": 1, "reward/mean": 0.5, "time/play_s": 2.0}]
    rows += [{"train_step": 1, "held_out": right}]
    folder = write_run(tmp_path / "run", "local", {"model": {"model_path": "mine"}, "seed": 3}, rows, steps=2)
    line = {"train_step": 1, "task_id": "a", "kind": "join", "reward": 1.0, "score": {"value": 1.0, "reason": "match"}}
    (folder / "trajectories.jsonl").write_text(json.dumps(line) + "\n")
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "held-out success before        25% (5% to 70%, 1 of 4)",
        "held-out success after 1 step  75% (30% to 95%, 3 of 4)",
    ]
    page = (folder / "report.html").read_text()
    assert heads(page) == (["Figures", "Trajectories", "The run"], ["Learning", "Seconds a step, by phase"])
    assert "<p>Stopped, step 1 of 2; last news" in page and "<td>model</td><td>mine</td>" in page
    assert "<section >" in page and "<td>model.model_path</td><td>mine</td>" in page


def test_a_single_skill_run_has_success_by_skill(tmp_path):
    rate = {"n": 8, "judged": 8, "correct": 2}
    rows = [{"train_step": 0, "held_out": rate, "held_out/skill": {"select": rate}}]
    folder = write_run(tmp_path / "run", "single-skill", {}, rows)
    assert main([str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "<td>select</td><td>25% (7% to 59%, of 8)</td>" in page
    assert heads(page)[1] == ["Learning"]


@pytest.mark.parametrize(
    ("kind", "rows", "said", "figures"),
    [
        (
            "sft",
            [{"train_step": step, "sft/loss": 1.5 / step, "optim/learning_rate": 1e-4} for step in (1, 2)],
            ["loss at step 1", "loss at step 2"],
            ["Loss", "Learning rate"],
        ),
        (
            "dpo",
            [{"train_step": 1, "dpo/loss": 0.7, "dpo/margin": 0.1}, {"train_step": 1, "val/dpo/loss": 0.6}],
            ["held-out loss at step 1"],
            ["Loss", "Margin"],
        ),
        (
            "reward train",
            [{"train_step": 1, "pair/loss": 0.7, "pair/accuracy": 0.5, "score/mean": 0.0}],
            ["loss at step 1"],
            ["Loss", "Accuracy", "Scores"],
        ),
    ],
)
def test_a_run_that_plays_nothing_has_its_losses_and_no_word_of_rollouts(tmp_path, capsys, kind, rows, said, figures):
    folder = write_run(tmp_path / "run", kind, {"model_path": "mine"}, rows, steps=len(rows))
    assert main([str(folder)]) == 0
    out = capsys.readouterr().out
    assert [line.rpartition("  ")[0].strip() for line in out.splitlines()[: len(said)]] == said
    assert "serve" not in out and "trajectories" not in out
    page = (folder / "report.html").read_text()
    assert heads(page)[1] == figures
    assert "<section hidden>" in page and "Held-out questions" not in page and "agl store" not in page
    assert (folder / "curve.png").stat().st_size > 1000


def test_two_runs_of_other_commands_are_compared(tmp_path, capsys):
    rows = [{"train_step": step, "sft/loss": 1.5 / step} for step in (1, 2)]
    one, two = (write_run(tmp_path / name, "sft", {"seed": n}, rows) for n, name in enumerate(("one", "two")))
    assert main([str(one), str(two)]) == 0
    assert "these differ: seed" in capsys.readouterr().out
    assert heads((two / "compared.html").read_text())[1] == ["Loss"]


def test_drawing_a_page_imports_no_settings_of_training_and_no_environment(run_dir):
    """A page took as long to import for as to draw."""
    draw = "import sys; from sql_agent.commands.report import main; main(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", draw, run_dir], cwd=ROOT, capture_output=True, text=True, check=True)
    names = done.stdout.splitlines()[-1].split()
    ours = [name for name in names if name.split(".")[0] in ("agentgrpo", "sql_agent", "dbbench_adapter")]
    assert [name for name in ours if name.startswith(("sql_agent.settings", "sql_agent.environments"))] == []
    assert "torch" not in names and len(ours) <= 35


def test_a_folder_that_another_version_wrote_names_the_file_that_is_missing(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 0, "held_out": {"n": 4, "judged": 4, "correct": 1}}\n')
    assert main([str(tmp_path)]) == 2
    assert f"{tmp_path}/config.yaml does not exist" in capsys.readouterr().err


# the command --------------------------------------------------------------------------------------------------------


def test_it_prints_before_and_after_and_the_newest_checkpoint(run_dir, capsys):
    assert main([str(run_dir)]) == 0
    out = capsys.readouterr().out
    assert "held-out success before         25% (7% to 59%, 2 of 8)" in out
    assert "held-out success after 2 steps  75% (41% to 93%, 6 of 8)" in out
    assert "1 of 2 tasks newly solved, 0 no longer solved: not clear (McNemar's exact test, p = 1)" in out
    assert f"{run_dir}/checkpoints/global_step_10/actor/huggingface" in out
    assert (run_dir / "curve.png").stat().st_size > 1000


def test_a_folder_without_a_run_is_named(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "config.yaml does not exist; expected the folder of a training run (--run-dir)" in capsys.readouterr().err
    for name in ("config.yaml", "run.json"):
        (tmp_path / name).write_text("{}")
    assert main([str(tmp_path)]) == 2
    assert f"{tmp_path}/metrics.jsonl does not exist" in capsys.readouterr().err


@pytest.mark.slow
def test_follow_writes_the_page_after_each_step_and_ends_with_the_run(run_dir):
    lock = os.open(run_dir / ".lock", os.O_WRONLY | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.set_inheritable(lock, False)
    command = [sys.executable, "-m", "agentgrpo", "report", str(run_dir), "--follow"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("step 2 of 2: ")
        assert "const seconds = 10;" in (run_dir / "report.html").read_text()
        with (run_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"train_step": 3}) + "\n")
        assert process.stdout.readline().startswith("step 3 of 2: ")
        os.close(lock)
        assert process.wait(30) == 0
        assert "const seconds = 0;" in (run_dir / "report.html").read_text()
    finally:
        process.kill()


@pytest.mark.parametrize(("solved", "tasks"), [(0.0, 192), (1.0, 128), (0.0, 1), (1.0, 1)])
def test_a_run_that_solves_nothing_or_everything_has_a_page_and_a_curve(run_dir, capsys, solved, tasks):
    validated = {"val/rollout/success": solved, "val/rollout/judged": float(tasks)}
    rows = [validated | {"train_step": step, f"val/skill/select/{name}": value} for step in (0, 2)
            for name, value in (("success", solved), ("count", float(tasks)))]  # fmt: skip
    (run_dir / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main([str(run_dir)]) == 0
    assert f"{solved:.0%} (" in capsys.readouterr().out
    assert (run_dir / "curve.png").stat().st_size > 0


def test_a_first_validation_that_came_after_training_is_not_called_before(run_dir, capsys):
    rows = [{"train_step": step, "val/rollout/success": 0.5, "val/rollout/judged": 8.0} for step in (10, 20)]
    (run_dir / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main([str(run_dir)]) == 0
    out = capsys.readouterr().out
    assert "held-out success after 10 steps" in out and "held-out success after 20 steps" in out
    assert "success before" not in out + (run_dir / "report.html").read_text()


def test_whatever_a_run_has_logged_ends_in_a_page(run_dir):
    """Names of a user's own rewards, numbers that are none, lines that are no rows, half of a character."""
    odd = [
        {
            "train_step": 3,
            "reward/$\\foo$": 1.0,
            "time/rollout_s": 0.0,
            "rollout/count": 8.0,
            "reward/mean": float("nan"),
        },
        {"train_step": 4, "val/rollout/count": 8.0, "val/reward/unjudged_frac": 1.0},
        {"train_step": 5, "val/skill/a/b\ud83d/success": 1.0, "val/skill/a/b\ud83d/count": 2.0},
        {"train_step": "six"},
    ]
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in odd)
    rows = [trajectory(3, "a", float("nan"), validate=True), {"train_step": 3, "validate": True}, ["no row"]]
    save(run_dir, "val_000003", [*rows, trajectory(3, "b", 1.0, messages=["no message"])])
    assert main([str(run_dir)]) == 0
    data = (run_dir / "report.html").read_text().split('id="data" type="application/json">')[1].split("</script>")[0]
    assert "NaN" not in data
    assert [row["task_id"] for row in json.loads(data) if row["step"] == 3] == ["a", "b"]
    assert read_run(run_dir).unreadable == 2


AGENT = {
    "env.agent": "my_agent.py:agent", "env.type": "agent", "llm_proxy": "true", "data.train_file": "tasks.jsonl",
    "rollout.reward": '{"my_agent.py:reward": 1.0, "my_agent.py:short": 0.5}',
}  # fmt: skip


def configured(settings):
    return load_config(None, [f"{name}={value}" for name, value in settings.items()])


@pytest.fixture
def agent_run(run_dir):
    """A run of a user's agent, which nobody judges: a reward of 0 and 0.5 on two held-out tasks, then 0.25 and 0.5."""
    (run_dir / "config.yaml").write_text(dump_config(configured(AGENT | {"trainer.steps": 2})))
    facts = json.loads((run_dir / "run.json").read_text())
    flags = evaluate_flags(configured(AGENT))
    (run_dir / "run.json").write_text(json.dumps(facts | {"evaluate": flags}))
    rewards = {0: (0.0, 0.5), 2: (0.25, 0.5)}
    rows = [{"train_step": step, "val/reward/mean": sum(both) / 2, "val/rollout/count": 2.0,
             "val/reward/unjudged_frac": 0.0} for step, both in rewards.items()]  # fmt: skip
    (run_dir / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    for step, both in rewards.items():
        played = [trajectory(step, task, None, validate=True) for task in "ab"]
        save(run_dir, f"val_{step:06d}", [row | {"reward": r} for row, r in zip(played, both, strict=True)])
    return run_dir


def test_a_run_without_a_judge_has_its_held_out_reward_before_and_after(agent_run, capsys):
    assert main([str(agent_run)]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "held-out reward before         0.25 (mean of 2)",
        "held-out reward after 2 steps  0.38 (mean of 2)",
    ]
    assert main([str(agent_run)]) == 0
    *_, serve, measure = capsys.readouterr().out.splitlines()
    assert "huggingface --served-model-name run --generation-config" in serve
    assert "evaluate --base-url http://127.0.0.1:8000/v1 --model run --agent my_agent.py:agent" in measure
    page = (agent_run / "report.html").read_text()
    assert "<p>Held-out reward: 0.25 (mean of 2) before, 0.38 (mean of 2) after 2 steps.</p>" in page
    assert '{"answer": "last reply", "titles": ["before", "after 2 steps"]}' in page
    assert "<dt>serve it</dt><dd><pre>" in page and "--model run --agent my_agent.py:agent" in page.split("</dl>")[0]
    assert "held-out reward, greedy" in page
    assert "No validation was made" not in page
    rows = side_by_side(*validations(read_run(agent_run).trajectories))
    assert [(row["task_id"], row["result"], row["before"]["reward"], row["after"]["reward"]) for row in rows] == [
        ("a", "higher reward", 0.0, 0.25),
        ("b", "same reward", 0.5, 0.5),
    ]


def test_a_page_is_named_by_the_folder_of_its_run(run_dir):
    main([str(run_dir)])
    page = (run_dir / "report.html").read_text()
    assert "<title>Run run</title>" in page and "<td>run id</td><td>abc</td>" in page


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        (
            {"env.type": "text2sql", "env.database": "shop.sqlite", "data.train_file": "questions.json"},
            "--database shop.sqlite --tasks questions.json --split held-out",
        ),
        (
            {"data.train_file": "a.json", "data.val_file": "b.json", "agent.protocol": "text", "agent.max_tokens": 384},
            "--tasks b.json --protocol text --max-tokens 384",
        ),
        (
            AGENT
            | {
                "agent.max_turns": 20,
                "agent.statement_timeout_s": 9,
                "agent.turn_timeout_s": 100,
                "agent.rollout_timeout_s": 500,
                "env.call_timeout_s": 60,
            },
            "--agent my_agent.py:agent --tasks tasks.jsonl --split held-out --max-turns 20 --statement-timeout-s 9.0 "
            "--turn-timeout-s 100.0 --rollout-timeout-s 500.0 --call-timeout-s 60.0 --reward my_agent.py:reward "
            "--reward my_agent.py:short=0.5",
        ),
        (
            AGENT,
            "--agent my_agent.py:agent --tasks tasks.jsonl --split held-out --reward my_agent.py:reward "
            "--reward my_agent.py:short=0.5",
        ),
        ({"env.type": "gsm8k", "data.train_file": "p.jsonl"}, "--env gsm8k --tasks p.jsonl --split held-out"),
    ],
)
def test_the_model_that_is_served_is_measured_on_the_runs_held_out_tasks(settings, flags):
    given = evaluate_flags(configured(settings))
    assert given == flags.split()
    assert _parse(["--base-url", "http://h/v1", "--model", "mine", *given]).limits.max_turns == (
        configured(settings).agent.max_turns
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"data.train_file": "a.json", "data.held_out_fraction": 0.5},
        {"data.train_file": "a.json", "data.skills": "[join]"},
        AGENT | {"rollout.reward": '{"judge": 1.0, "my_agent.py:short": 0.5}', "judge.url": "http://127.0.0.1:9/v1",
                 "judge.model": "m", "judge.rubric": "rubric.txt"},
    ],
)  # fmt: skip
def test_no_command_is_printed_where_evaluate_could_not_find_the_same_tasks(settings):
    assert evaluate_flags(configured(settings)) is None


def test_the_policy_is_served_in_the_dtype_in_which_the_run_sampled():
    vllm = program_command("vllm", "serve", "runs/a/huggingface")
    flags = "--served-model-name mine --generation-config vllm --enable-auto-tool-choice --tool-call-parser hermes"
    model = Path("runs/a/huggingface")
    assert serve_command(model, "mine", cpu=True, dtype="bfloat16") == (
        f"VLLM_CPU_KVCACHE_SPACE=1 {vllm} {flags} --dtype bfloat16 --host 127.0.0.1 --enforce-eager"
    )
    assert serve_command(model, "mine", cpu=False, dtype=None) == f"{vllm} {flags} --host 127.0.0.1"
