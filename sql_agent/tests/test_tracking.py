"""`sql_agent.tracking`: what a resume finds of the steps before it."""

import json
import math

import pytest

from sql_agent.config import load_config
from sql_agent.run_context import RunContext
from sql_agent.tracking import drop_torn_line, earlier_steps, make_tracking


def test_a_step_that_was_taken_again_counts_once_with_its_later_metrics(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"train_step": 1, "a": 1}\n{"train_step": 2, "a": 2}\n{"train_step": 1, "a": 3}\n')
    assert earlier_steps(file) == [{"train_step": 1, "a": 3}, {"train_step": 2, "a": 2}]
    assert earlier_steps(tmp_path / "none") == []


def test_a_last_line_that_a_kill_cut_short_is_dropped_and_said(tmp_path, caplog):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"train_step": 1, "a": 1}\n{"train_step": 2, "a"')
    assert earlier_steps(file) == [{"train_step": 1, "a": 1}]
    drop_torn_line(file)
    assert file.read_text() == '{"train_step": 1, "a": 1}\n'  # what is appended next starts a line of its own
    assert "last line was cut short" in caplog.text
    drop_torn_line(file)
    drop_torn_line(tmp_path / "none")
    assert len(caplog.records) == 1


@pytest.mark.slow  # imports verl
def test_a_number_that_is_none_is_written_as_null_and_not_there_for_what_goes_on_from_it(tmp_path):
    context = RunContext(load_config(None, [f"run_dir={tmp_path}"]), "run", "", 0, lambda _: None)
    config = {"actor_rollout_ref": {"rollout": {"dtype": "float32"}}}
    shown = []
    sink = make_tracking(context, shown.append)("project", "run", [], config)
    sink.log({"reward/mean": 0.5, "critic/score/mean": math.nan}, step=1)
    file = tmp_path / "metrics.jsonl"
    line = json.loads(file.read_text(), parse_constant=pytest.fail)  # NaN is no JSON
    assert (line["train_step"], line["reward/mean"], line["critic/score/mean"]) == (1, 0.5, None)
    assert [{**row, "at": 0} for row in earlier_steps(file)] == [{"train_step": 1, "at": 0, "reward/mean": 0.5}]
    assert math.isnan(shown[0]["metrics"]["critic/score/mean"])
