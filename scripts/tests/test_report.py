"""The report: numbers as they were logged, a message where there are none."""

import json

import pytest

from scripts.report import HeldOut, held_out, main, read_metrics

BEFORE = {"train_step": 0, "val/rollout/success": 0.25, "val/rollout/count": 8.0, "val/reward/unjudged_frac": 0.0}
STEP = {"train_step": 1, "reward/mean": 0.5}
# two of ten could not be judged: six of eight are three quarters
AFTER = {"train_step": 2, "reward/mean": 0.75} | {
    "val/rollout/success": 0.75,
    "val/rollout/count": 10.0,
    "val/reward/unjudged_frac": 0.2,
}


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, [BEFORE, STEP, AFTER])) + "\n")
    (tmp_path / "run.json").write_text(json.dumps({"run_id": "abc", "commit": "1234567", "device": "cpu", "argv": []}))
    (tmp_path / "checkpoints" / "global_step_2" / "actor" / "huggingface").mkdir(parents=True)
    (tmp_path / "checkpoints" / "global_step_10" / "actor" / "huggingface").mkdir(parents=True)
    return tmp_path


def test_unjudged_tasks_are_left_out_of_the_rate():
    assert held_out([BEFORE, STEP, AFTER]) == [HeldOut(0, 2, 8), HeldOut(2, 6, 8)]


def test_a_step_logged_again_after_a_resume_keeps_what_only_the_first_log_had(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"train_step": 1, "reward/mean": 0.5, "time/step_s": 9}\n{"train_step": 1, "time/step_s": 8}\n')
    assert read_metrics(file) == [{"train_step": 1, "reward/mean": 0.5, "time/step_s": 8}]


def test_it_prints_before_and_after_and_the_newest_checkpoint(run_dir, capsys):
    assert main([str(run_dir)]) == 0
    out = capsys.readouterr().out
    # Wilson for 2 of 8: centre 0.331, half width 0.260; for 6 of 8 the mirror image
    assert "held-out success before         25% (7% to 59%, 2 of 8)" in out
    assert "held-out success after 2 steps  75% (41% to 93%, 6 of 8)" in out
    assert f"{run_dir}/checkpoints/global_step_10/actor/huggingface" in out
    assert (run_dir / "curve.png").stat().st_size > 1000
    assert "commit 1234567" in (run_dir / "report.md").read_text()


def test_a_folder_without_a_run_is_named(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert f"{tmp_path}/metrics.jsonl does not exist" in capsys.readouterr().err
