"""Several rewards in one: hand-worked sums, groups without a function, what is logged, what a resume checks."""

import json

import pytest

from agentgrpo.checks import UsageError
from dbbench_adapter.datatypes import Score
from sql_agent.datatypes import OWN_REWARD, FunctionReward, Reward, ScorerResult
from sql_agent.report.figures import all_figures
from sql_agent.rewards import NO_JUDGE, REWARDS, reward, summed_reward, with_success
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.settings.load import dump_config
from sql_agent.source.dynamic_sampling import drop_scores_of_group
from sql_agent.source.metrics import batch_metrics
from sql_agent.source.run_context import trajectory_line
from sql_agent.source.stops import TooManyLostError, check_lost
from sql_agent.startup.flags import parse_train_args, resolve
from sql_agent.startup.resume import check_resume, hash_user_files
from sql_agent.tests.conftest import checkpoint_of, forget_user_files
from sql_agent.tests.records import make_record, make_result, rewarded, travelled

RIGHT, WRONG, UNJUDGED = Score(1.0, "match"), Score(0.0, "wrong_rows"), Score(None, NO_JUDGE)
SHAPING = RewardModelConfig(center=1.0, scale=2.0)
AWAY = FunctionReward(None, "judge_unavailable", "no answer")


OWN = Score(0.5, OWN_REWARD)
SAID = Score(0.5, OWN_REWARD, {"correctness": 0.0})


@pytest.mark.parametrize(("score", "earned", "least", "expected"), [
    pytest.param(UNJUDGED, 1.0, 1.0, Score(1.0, OWN_REWARD, {"correctness": 1.0}), id="reached"),
    pytest.param(UNJUDGED, 0.9, 1.0, Score(0.9, OWN_REWARD, {"correctness": 0.0}), id="missed"),
    # the sum with other rewards decides, and the agent's own number stays what it is
    pytest.param(OWN, 1.5, 1.0, Score(0.5, OWN_REWARD, {"correctness": 1.0}), id="the_sum_decides"),
    pytest.param(SAID, 1.5, 1.0, SAID, id="the_environment_says_what_is_solved"),
    pytest.param(WRONG, 1.5, 1.0, WRONG, id="a_judge_decides"),
    pytest.param(UNJUDGED, None, 1.0, UNJUDGED, id="a_lost_rollout"),
    pytest.param(UNJUDGED, 5.0, None, UNJUDGED, id="nothing_was_asked"),
])  # fmt: skip
def test_success_by_reward_is_for_what_nothing_else_judges(score, earned, least, expected):
    assert with_success(score, earned, least) == expected


def total(verdict, weights, given, **scored):
    return summed_reward(make_record(verdict), weights, {n: FunctionReward(v) for n, v in given.items()}, **scored)


@pytest.mark.parametrize(
    ("verdict", "weights", "given", "value"),
    [
        # 1 x 1 + 0.2 x 0.5
        pytest.param(RIGHT, {"agentbench": 1.0, "my.py:f": 0.2}, {"f": 0.5}, 1.1, id="a_preset_and_a_function"),
        # 0.5 x -1 + 0.2 x 0.5
        pytest.param(WRONG, {"rllm": 0.5, "my.py:f": 0.2}, {"f": 0.5}, -0.4, id="wrong_under_half_a_preset"),
        # 1 + 2 x -1 = -1: any range, nothing bounds it
        pytest.param(RIGHT, {"agentbench": 1.0, "f.py:f": 2.0}, {"f": -1.0}, -1.0, id="a_penalty_above_correctness"),
        # 0.3 x 4 - 0.5 x 2
        pytest.param(WRONG, {"a:f": 0.3, "a:g": -0.5}, {"f": 4.0, "g": 2.0}, 0.2, id="functions_alone"),
        pytest.param(RIGHT, {"agentbench": 1.0, "a:f": 0.0}, {"f": 9.0}, 1.0, id="weight_0_only_logs"),
        # nobody judges: the preset says nothing
        pytest.param(UNJUDGED, {"agentbench": 1.0, "a:f": 0.5}, {"f": 3.0}, 1.5, id="without_a_judge"),
        # two presets: 0.5 x 0 + 2 x -1
        pytest.param(WRONG, {"agentbench": 0.5, "rllm": 2.0}, {}, -2.0, id="two_presets"),
    ],
)
def test_the_reward_is_the_weighted_sum(verdict, weights, given, value):
    reward = total(verdict, weights, given)
    assert (reward.value, reward.reason) == (pytest.approx(value), verdict.reason)
    assert sum(reward.terms.values()) == reward.value


def test_parts_are_the_numbers_before_their_weights_and_terms_after():
    reward = total(RIGHT, {"agentbench": 0.5, "my.py:f": 0.2}, {"f": 3.0})
    assert reward.parts == {"correctness": 1.0, "agentbench": 1.0, "f": 3.0}
    assert reward.terms == pytest.approx({"agentbench": 0.5, "f": 0.6})


def test_the_reward_models_score_joins_the_sum_as_it_joins_a_preset():
    weights, scored = {"agentbench": 1.0, "a:f": 0.5}, {"scorer": ScorerResult(3.0), "shaping": SHAPING}
    # 1 + 0.5 x 2 = 2, and 0.2 x tanh((3 - 1) / 2) = 0.152319
    right = total(RIGHT, weights, {"f": 2.0}, **scored)
    assert (right.value, right.parts["base"]) == (pytest.approx(2.152319, abs=1e-6), 2.0)
    assert total(WRONG, weights, {"f": 2.0}, **scored).value == 1.0
    # without a judge tanh(1) = 0.761594 beside 0.5 x 2
    assert total(UNJUDGED, weights, {"f": 2.0}, **scored).value == pytest.approx(1.761594, abs=1e-6)


def test_presets_alone_leave_a_task_without_a_judge_to_the_score_whatever_their_weights():
    scored = {"scorer": ScorerResult(3.0), "shaping": SHAPING}
    alone = reward(make_record(UNJUDGED), REWARDS["agentbench"], **scored)
    assert alone.value == pytest.approx(0.761594, abs=1e-6)  # tanh((3 - 1) / 2)
    assert total(UNJUDGED, {"agentbench": 0.5}, {}, **scored) == alone
    assert total(UNJUDGED, {"agentbench": 0.5, "rllm": 0.5}, {}, **scored) == alone


def test_a_preset_stands_for_the_reward_that_an_environment_gives_itself():
    own = Score(3.0, OWN_REWARD, {"correctness": 1.0})  # `solved` says so, not the number
    reward = total(own, {"rllm": 2.0, "a:f": 0.5}, {"f": 4.0})
    assert (reward.value, reward.terms) == (8.0, {"rllm": 6.0, "f": 2.0})
    assert reward.parts == {"correctness": 1.0, "rllm": 3.0, "f": 4.0}
    shaped = total(own, {"a:f": 0.5}, {"f": 4.0}, scorer=ScorerResult(1e9), shaping=RewardModelConfig(weight=0.2))
    assert shaped.value == pytest.approx(2.2)
    unknown = total(Score(3.0, OWN_REWARD), {"a:f": 0.5}, {"f": 4.0}, scorer=ScorerResult(1e9))
    assert unknown.value == 2.0  # a score adds nothing where success is not known


def test_a_sum_that_is_not_finite_is_no_reward():
    reward = total(RIGHT, {"a:f": 10.0, "a:g": 1.0}, {"f": 1e308, "g": 1.0})
    assert (reward.value, reward.reason) == (None, "reward_error")
    assert reward.error == "the sum of f inf, g 1 is not finite"


@pytest.mark.parametrize("why", ["reward_none", "reward_error", "reward_deadline"])
def test_a_function_without_a_number_loses_its_rollout_and_is_never_0(why):
    given = {"f": FunctionReward(None, why, "what happened"), "g": FunctionReward(2.0)}
    reward = summed_reward(make_record(RIGHT), {"agentbench": 1.0, "a:f": 1.0, "a:g": 1.0}, given)
    parts = {"correctness": 1.0, "agentbench": 1.0, "g": 2.0}
    assert reward == Reward(None, why, parts, lacking={"f": why}, error="what happened")


# a group without a function -------------------------------------------------------------------------------------------

WEIGHTS = {"agentbench": 1.0, "judge": 0.5}


def played(verdict, said, weights=WEIGHTS):
    given = {"judge": said if isinstance(said, FunctionReward) else FunctionReward(said)}
    reward = summed_reward(make_record(verdict), weights, given)
    return make_result("g", travelled(rewarded(make_record(verdict), reward)))


def test_a_function_that_was_unavailable_for_one_is_in_no_reward_of_the_group():
    group = [played(RIGHT, 0.8), played(RIGHT, AWAY), played(WRONG, 0.4)]
    assert [result.reward for result in group] == [pytest.approx(1.4), 1.0, pytest.approx(0.2)]
    for _ in range(2):  # a group is looked at more than once
        group = drop_scores_of_group(group)
        assert [result.reward for result in group] == [1.0, 1.0, 0.0]
        assert [(result.lost, result.unshaped) for result in group] == [(None, "judge_unavailable")] * 3
    with pytest.raises(
        TooManyLostError,
        match=r"3 of 3 rollouts were lost .* 'judge_unavailable' \(3 times; the first: no answer\). The LLM",
    ):
        check_lost(group, 0.5)


def test_where_nothing_else_is_known_the_whole_group_is_lost():
    group = [
        played(RIGHT, 0.8, {"judge": 1.0}),
        played(WRONG, AWAY, {"judge": 1.0}),
        played(WRONG, 0.1, {"judge": 1.0}),
    ]
    for _ in range(2):
        group = drop_scores_of_group(group)
        assert [(result.reward, result.lost) for result in group] == [(None, "judge_unavailable")] * 3


def test_a_group_whose_function_answered_keeps_its_rewards():
    group = [played(RIGHT, 0.8), played(WRONG, 0.4)]
    group = drop_scores_of_group(group)
    assert [result.reward for result in group] == [pytest.approx(1.4), pytest.approx(0.2)]
    check_lost(group, 0.0)


def test_a_loss_of_ones_own_levels_nobody():
    group = [played(RIGHT, 0.8), played(RIGHT, FunctionReward(None, "reward_none"))]
    group = drop_scores_of_group(group)
    assert [(result.reward, result.lost) for result in group] == [(pytest.approx(1.4), None), (None, "reward_none")]


def test_a_lost_score_of_the_reward_model_leaves_the_functions_in():
    weights = {"a:f": 0.5}
    scores = (ScorerResult(3.0), ScorerResult(None, "scorer_unavailable"))
    group = []
    for scorer in scores:
        record = make_record(UNJUDGED)
        reward = summed_reward(record, weights, {"f": FunctionReward(2.0)}, scorer, SHAPING)
        group.append(make_result("g", rewarded(record, reward, scorer)))
    group = drop_scores_of_group(group)
    assert [result.reward for result in group] == [1.0, 1.0]


# what is logged -------------------------------------------------------------------------------------------------------


def test_each_function_has_its_mean_and_how_often_it_gave_no_number():
    results = [played(RIGHT, 0.8), played(WRONG, 0.4), played(RIGHT, FunctionReward(None, "reward_none"))]
    metrics = batch_metrics([*results, make_result("g", None, "step_deadline")])
    assert metrics["reward/judge"] == pytest.approx(0.6)  # of the two with a reward
    assert metrics["reward/agentbench"] == 0.5
    assert metrics["reward/judge/none_frac"] == pytest.approx(1 / 3)  # of the three it was asked about
    assert metrics["rollout/lost/reward_none"] == 1.0
    figures = {figure.title: figure for figure in all_figures([{"train_step": 1, **metrics}])}
    assert sorted(figures["Parts of the reward"].lines) == ["agentbench", "correctness", "judge"]
    assert figures["Rollouts without a number, by reward function"].lines == {"judge": [(1, pytest.approx(1 / 3))]}


def test_a_preset_alone_is_logged_as_before():
    record = make_record(RIGHT)
    result = make_result("g", rewarded(record, Reward(1.0, "match", {"correctness": 1.0})))
    assert not any("none_frac" in name for name in batch_metrics([result]))
    assert {"reward_parts", "reward_error"} & set(trajectory_line(result, 1, validate=False)) == set()


def test_a_trajectory_has_the_parts_and_the_traceback():
    kept = trajectory_line(played(RIGHT, 0.8), 1, validate=False)
    assert kept["reward_parts"] == {"correctness": 1.0, "agentbench": 1.0, "judge": 0.8}
    lost = trajectory_line(played(RIGHT, FunctionReward(None, "reward_error", "Traceback ...")), 1, validate=False)
    assert (lost["lost"], lost["reward_error"]) == ("reward_error", "Traceback ...")


# a resumed run --------------------------------------------------------------------------------------------------------


def start(run_dir, *flags):
    """The settings of a run, and what it leaves for the next start."""
    cfg = resolve(parse_train_args(["--run-dir", str(run_dir), *flags]))
    (run_dir / "config.yaml").write_text(dump_config(cfg))
    (run_dir / "run.json").write_text(json.dumps({"run_id": "r", "own_files": hash_user_files(cfg)}))


def test_a_run_goes_on_with_the_same_rewards_only(tmp_path):
    file = tmp_path / "my.py"
    file.write_text("def f(record):\n    return 1\ndef g(record):\n    return 1\n")
    run_dir = tmp_path / "run"
    checkpoint = checkpoint_of(run_dir, 2)
    start(run_dir, "--reward", "agentbench", "--reward", f"{file}:f=0.2")

    def resumed(*rewards):
        flags = [word for reward in rewards for word in ("--reward", reward)]
        check_resume(resolve(parse_train_args(["--run-dir", str(run_dir), *flags])), checkpoint, cpu=True)

    resumed("agentbench", f"{file}:f=0.2")
    resumed(f"{tmp_path}/../{tmp_path.name}/my.py:f=0.2", "agentbench")  # the same file, in another order
    for other in (["agentbench"], ["agentbench", f"{file}:f=0.3"], ["rllm", f"{file}:f=0.2"]):
        with pytest.raises(UsageError, match=r"other settings \(rollout.reward; "):
            resumed(*other)
    with pytest.raises(UsageError, match=r"other settings \(.*rollout.reward"):
        resumed("agentbench", f"{file}:g=0.2")
    file.write_text(file.read_text() + "# changed\n")
    resumed("agentbench", f"{file}:f=0.2")  # this process keeps what it has imported
    forget_user_files()
    with pytest.raises(UsageError, match=rf"other settings \(the content of {file}; see "):
        resumed("agentbench", f"{file}:f=0.2")


def test_a_run_goes_on_with_the_environment_as_it_was(tmp_path):
    file = tmp_path / "shop.py"
    file.write_text("class Shop:\n    def reset(self, **row):\n        pass\n")
    run_dir = tmp_path / "run"
    checkpoint = checkpoint_of(run_dir, 2)
    start(run_dir, "--env", f"{file}:Shop")

    def resumed(*flags):
        check_resume(resolve(parse_train_args(["--run-dir", str(run_dir), *flags])), checkpoint, cpu=True)

    resumed("--env", f"{tmp_path}/../{tmp_path.name}/shop.py:Shop", "--set", "env.call_timeout_s=60")
    with pytest.raises(UsageError, match=r"other settings \(env; "):
        resumed("--env", "dbbench")
    with pytest.raises(UsageError, match=r"other settings \(rollout.success_reward; "):  # one curve, two thresholds
        resumed("--env", f"{file}:Shop", "--success-reward", "1")
    file.write_text(file.read_text().replace("pass", "return None"))
    forget_user_files()
    with pytest.raises(UsageError, match=rf"other settings \(the content of {file}; see "):
        resumed("--env", f"{file}:Shop")
