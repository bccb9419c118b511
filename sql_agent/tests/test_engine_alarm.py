"""`engine_alarm` of `sql_agent.verl_side.tracking`: sampler and trainer disagree about the tokens that were sampled."""

import json
import math

import pytest

from sql_agent.settings.load import load_config
from sql_agent.source.run_context import RunContext
from sql_agent.verl_side.tracking import engine_alarm


def compared(largest, mean):
    return {
        "training/rollout_probs_diff_valid": 1.0,
        "engine/probs_diff_max": largest,
        "engine/probs_diff_mean": mean,
    }


@pytest.mark.parametrize(("dtype", "largest", "mean", "alarm"), [
    pytest.param("float32", 1e-5, 1e-7, 0.0, id="float32_rounding"),
    pytest.param("float32", 1e-3, 1e-5, 0.0, id="at_the_limit"),
    pytest.param("float32", 2e-3, 1e-5, 1.0, id="one_token_is_enough_in_float32"),
    pytest.param("bfloat16", 0.3, 4e-3, 0.0, id="bfloat16_rounding"),
    pytest.param("bfloat16", 0.3, 0.03, 1.0, id="many_tokens_in_bfloat16"),
    pytest.param("float16", 0.3, 0.03, 1.0, id="a_dtype_without_a_limit_of_its_own"),
    pytest.param("float32", math.nan, math.nan, 1.0, id="not_a_number_is_no_agreement"),
])  # fmt: skip
def test_the_alarm_looks_at_what_the_dtype_allows(dtype, largest, mean, alarm):
    assert engine_alarm(compared(largest, mean), dtype) == {"engine/alarm": alarm}


def test_where_nothing_was_compared_there_is_no_alarm_and_no_all_clear():
    assert engine_alarm({"reward/mean": 0.5}, "float32") == {}
    nothing = compared(math.nan, math.nan) | {"training/rollout_probs_diff_valid": 0.0}
    assert engine_alarm(nothing, "float32") == {}


@pytest.mark.slow  # imports verl
def test_difference_and_kl_are_those_of_the_sampled_tokens_and_end_up_under_our_names(tmp_path):
    import torch
    from verl import DataProto
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
    from verl.utils.debug.metrics import calculate_debug_metrics

    from sql_agent.verl_side.tracking import make_tracking

    # sampler's probabilities 1/2 and 1/4, trainer's 1/4 and 1/4; the third token was not sampled and is far off
    sampler, trainer = torch.tensor([[0.5, 0.25, 1.0]]).log(), torch.tensor([[0.25, 0.25, 0.01]]).log()
    mask = torch.tensor([[1, 1, 0]])
    tensors = {"rollout_log_probs": sampler, "old_log_probs": trainer, "response_mask": mask, "responses": mask}
    batch = DataProto.from_single_dict(tensors)
    metrics = calculate_debug_metrics(batch) | compute_rollout_correction_and_add_to_batch(batch, {})[1]

    context = RunContext(load_config(None, [f"run_dir={tmp_path}"]), "run", "", 0, lambda _: None)
    config = {"actor_rollout_ref": {"rollout": {"dtype": "float32"}}}
    make_tracking(context, lambda _: None)("project", "run", [], config).log(metrics, step=1)
    (line,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert {name: line[name] for name in line if name.startswith("engine/")} == pytest.approx({
        "engine/probs_diff_max": 0.25,
        "engine/probs_diff_mean": 0.125,  # (0.25 + 0) / 2
        "engine/kl_k1": 0.34657,  # (ln(0.5 / 0.25) + 0) / 2
        "engine/kl_k3": 0.09657,  # ratio 1/2: (1/2 - ln(1/2) - 1 + 0) / 2
        "engine/alarm": 1.0,
    }, abs=1e-5)  # fmt: skip
