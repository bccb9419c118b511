"""`sql_agent.startup.console`: the line of a step."""

from sql_agent.startup.console import step_line


def test_a_step_without_scores_and_rewards_says_so():
    metrics = {"reward/mean": 0.5, "reward/unjudged_frac": 0.25, "reward_model/unscored_frac": 0.125}
    assert step_line(3, 10, metrics) == "step 3/10  reward 0.500  unjudged 25%  without score 12%"


def test_what_was_not_measured_is_left_out():
    metrics = {"rollout/success": 0.75, "reward_model/unscored_frac": 0.0, "time/step_s": 9.0, "time/gen_s": 4.0}
    assert step_line(1, 2, metrics) == "step 1/2  success 75.0%  9.0 s (rollouts 4.0)"
