"""`sql_agent.verl_side.tracking`: what a resume finds of the steps before it."""

import json
import math

import pytest

from agentgrpo.run_folder import drop_torn_line, earlier_steps
from sql_agent.settings.load import load_config
from sql_agent.source.datatypes import Rollout
from sql_agent.source.metrics import clip_metrics
from sql_agent.source.run_context import RunContext
from sql_agent.tests.records import make_row
from sql_agent.verl_side.tracking import make_tracking


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


@pytest.mark.slow  # imports verl
@pytest.mark.parametrize(("longest", "expected"), [(5, 0.0), (8, 1 / 3)])
def test_a_row_is_not_clipped_for_being_the_longest_of_its_batch(tmp_path, longest, expected):
    """Three rows, of which one is as long as the batch is wide; `data.max_response_tokens` is 8."""
    from verl import DataProto
    from verl.trainer.ppo.metric_utils import compute_data_metrics

    from sql_agent.source.batch import to_tensors

    rows = [make_row((1,), (2,) * n, (1,) * n, (0.0,) * n, num_turns=1) for n in (2, 3, longest)]
    tensors = to_tensors(rows, [1.0, 0.0, 0.0], pad_id=0)
    rewards = {"token_level_scores": tensors["rm_scores"], "token_level_rewards": tensors["rm_scores"]}
    tensors |= rewards | {"advantages": tensors["rm_scores"], "returns": tensors["rm_scores"]}
    theirs = compute_data_metrics(DataProto.from_single_dict(tensors), use_critic=False)
    wrong = {"response_length/clip_ratio": 1 / 3, "response_length_non_aborted/clip_ratio": 1 / 3}
    wrong |= {"prompt_length/clip_ratio": 1.0}
    assert {name: theirs[name] for name in wrong} == pytest.approx(wrong)  # why there is a metric of ours

    context = RunContext(load_config(None, [f"run_dir={tmp_path}"]), "run", "", 0, lambda _: None)
    context.step_metrics |= clip_metrics([Rollout("g", {"id": "t"}, row=row) for row in rows], 4, 8)
    config = {"actor_rollout_ref": {"rollout": {"dtype": "float32"}}}
    make_tracking(context, lambda _: None)("project", "run", [], config).log(theirs, step=1)
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert {name: line[name] for name in wrong} == pytest.approx(
        dict.fromkeys(wrong, expected) | {"prompt_length/clip_ratio": 0.0}
    )
    assert line["response_length/max"] == longest  # everything else is verl's
