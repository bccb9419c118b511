"""The local training benchmark measures what it says: both ways train the same, nothing is sampled twice or dropped."""

import pytest
import torch

from agentgrpo.printed_commands import agentgrpo_command
from bench.local_rl import MODEL, parse_args
from bench.parts import local_memory, local_sampling
from bench.parts.children import ROOT
from bench.parts.local_memory import SIZES, config_of
from bench.parts.local_tokens import per_turn
from sql_agent.credit.row import Row
from sql_agent.local.memory import Estimate
from sql_agent.model_shape import shape_of


def test_a_rollout_is_cut_into_one_sample_per_turn():
    whole = Row((1, 2, 3, 4, 5, 6, 7), (0, 0, 1, 1, 0, 0, 1), (0.0, 0.0, -0.1, -0.2, 0.0, 0.0, -0.3), 2, 2)
    assert per_turn(whole) == [
        Row((1, 2, 3, 4), (0, 0, 1, 1), (0.0, 0.0, -0.1, -0.2), 2, 1),
        Row((1, 2, 3, 4, 5, 6, 7), (0, 0, 0, 0, 0, 0, 1), (0.0,) * 6 + (-0.3,), 6, 1),
    ]


@pytest.mark.slow
def test_rollouts_have_the_turns_asked_for_and_both_ways_of_training_them_give_one_gradient():
    from bench.parts.local_tokens import compare, rollouts
    from sql_agent.local.policy import load_policy
    from sql_agent.settings.local import AdapterConfig
    from sql_agent.tiny_policy.make import make_tiny_policy

    make_tiny_policy(ROOT / MODEL)
    torch.set_num_threads(1)
    policy = load_policy(ROOT / MODEL, adapter=AdapterConfig(dropout=0.0), device="cpu")
    for rollout in rollouts(policy, 3, count=2):
        assert len(per_turn(rollout)) == 3
    rows = {row.what: row for row in compare(policy, 4, repeats=1)}
    assert rows["4 turns: tokens of one sample per turn / of one sequence"].met
    assert rows["... largest difference of the gradients, share of the largest gradient"].met


def test_the_first_input_only_warms_up_and_every_other_meets_both_ways(monkeypatch):
    # clocks that move by 1 s and by 2 s of CPU a look: each measurement takes as much
    monkeypatch.setattr(local_sampling.time, "perf_counter", iter(range(100)).__next__)
    monkeypatch.setattr(local_sampling.time, "process_time", iter(range(0, 200, 2)).__next__)
    seen = []

    def work(one, batch_size):
        seen.append((one, batch_size))
        return {8: 40, 1: 10}[batch_size] * one

    # by batch: (40 * 2 + 40 * 3) tokens in 2 s, (10 * 2 + 10 * 3) in 2 s
    assert local_sampling.in_turns(work, [100, 2, 3]) == {8: (100.0, 50.0), 1: (25.0, 12.5)}
    assert seen == [(100, 8), (100, 1), (2, 8), (2, 1), (3, 8), (3, 1)]


@pytest.mark.parametrize(("size", "parameters"), [("1M", 0.92e6), ("60M", 64.6e6), ("250M", 234e6)])
def test_models_have_about_the_size_of_their_name(size, parameters):
    assert shape_of(config_of(size)).parameters == pytest.approx(parameters, rel=0.01)
    assert set(SIZES) == {point.size for point in local_memory.POINTS}


def test_an_estimate_is_off_by_its_distance_to_the_measurement():
    expected = Estimate(0, 0, 0, 0, 0, 90 * 2**20, 30 * 2**20)
    point = local_memory.Point("1M", 8)
    off, *_ = local_memory.rows_of(point, expected, {"update": 100 * 2**20, "sampling": 2**20})
    assert off.value == pytest.approx(20.0) and not off.met
    assert off.what == "1M, rank 8, 512 tokens each, float32, micro-batches of 4,096 tokens: update, estimate off by"


def test_wrong_options_are_named_with_what_would_do(capsys, tmp_path):
    for given, said in (
        (["--only", "tokens,colour"], "--only colour: known are sampling, tokens, memory"),
        (["--model", str(tmp_path)], f"make it with `{agentgrpo_command('tiny-policy')}`"),
    ):
        with pytest.raises(SystemExit):
            parse_args(given)
        assert said in capsys.readouterr().err
