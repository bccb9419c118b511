"""The pure parts of the benchmark: what its tables say, and how the parts turn measurements into rows."""

import dataclasses

import pytest

from bench import main_job
from bench.parts import lag, overhead, proxy_cost, startup, update
from bench.parts.report import Row, markdown, marks, replace_figures, table

BEGIN, END = marks("figures")
FACTS = {
    "commit": "abc1234",
    "date": "2026-01-02",
    "cores": 2,
    "cpu": "Some CPU",
    "load": 0.1,
    "python": "3.11.7",
    "versions": {"torch": "2.13.0"},
}


@pytest.mark.parametrize(
    ("row", "line"),
    [
        # 90 / 120 = 0.75
        pytest.param(Row("start", 90.0, "s", 120.0), "| start | 90 s | at most 120 | 0.75 | yes |  |", id="under"),
        # 3.2 / 4 = 0.8
        pytest.param(Row("x", 3.2, "x", 4.0, "at least"), "| x | 3.2 x | at least 4 | 0.80 | **no** |  |", id="short"),
        pytest.param(Row("... part", 1444.4, "tok/s"), "| ... part | 1,444 tok/s |  |  |  |  |", id="no_target"),
        pytest.param(
            Row("db", None, "ms", 40.0, limit="not installed"),
            "| db | - | at most 40 |  |  | not installed |",
            id="not_measured_is_not_zero",
        ),
        # a target of 0 has no ratio
        pytest.param(Row("left", 0.0, "", 0.0), "| left | 0 | at most 0 |  | yes |  |", id="none_left"),
    ],
)
def test_a_row_says_measured_target_ratio_and_limit(row, line):
    assert table([row]).splitlines()[2] == line


def test_the_figures_section_names_commit_date_machine_and_versions():
    text = markdown({"startup": [Row("start", 90.0, "s", 120.0), Row("... imports", 9.0, "s")]}, FACTS)
    assert text.startswith(
        "Commit abc1234, 2026-01-02: 2 cores of Some CPU, load 0.1 at the start; Python 3.11.7, torch"
    )
    assert "| start | 90 s |" in text and "imports" not in text  # which doc/data/benchmarks.json has


def test_only_what_stands_between_the_marks_is_replaced():
    assert replace_figures(f"above\n{BEGIN}\nold\n{END}\nbelow", "new") == f"above\n{BEGIN}\n\nnew\n\n{END}\nbelow"


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="put both lines into the page"):
        replace_figures("a page", "new")


def test_phases_last_from_their_line_to_the_next_and_the_step_line_ends_them():
    lines = [
        "tasks: 32 to train on",
        "[   5.0 s] importing verl",
        "[  20.0 s] first rollouts",
        "[  31.5 s] step 1/1  reward 0.5",
        "[  32.0 s] done",
    ]
    metrics = {"rollout/count": 32.0, "time/batch_ready_s": 0.25}
    rows = startup.startup_rows("proxy", startup.timeline(lines), metrics)
    assert [(row.what, row.value) for row in rows] == [
        ("proxy: command to the end of the first train step", 31.5),
        ("... reading tasks and settings", 5.0),
        ("... importing verl", 15.0),
        ("... first rollouts", 11.5),
        ("proxy: last rollout's end to batch ready, 32 rollouts", 0.25),
    ]
    assert [row.met for row in rows] == [True, None, None, None, True]


def test_a_later_step_is_split_into_its_phases():
    phases = {"time/gen_s": 6.0, "time/update_s": 1.5, "time/weight_sync_s": 0.25}
    steps = [
        {"train_step": 2, "time/step_s": 8.0, "perf/total_num_tokens": 3000.0, **phases},
        {"train_step": 3, "time/step_s": 10.0, "perf/total_num_tokens": 3000.0, **phases, "time/gen_s": 8.0},
    ]
    rows = startup.step_rows(steps)
    assert [(row.what, row.value) for row in rows] == [
        ("a later train step (median of 2 and 3)", 9.0),
        ("... rollouts", 7.0),
        ("... update", 1.5),
        ("... weights to the sampler", 0.25),
        ("... the rest", 0.25),
    ]


def test_the_rows_of_the_update_benchmark_fit_the_prototypes_width():
    lengths = update.row_lengths()
    assert len(lengths) == 32
    assert max(prompt for prompt, _ in lengths) + max(response for _, response in lengths) == update.MAX_TOKENS


def test_tokens_per_second_count_log_probs_and_update_and_compare_the_last_setting_with_the_first():
    results = {
        "prototype": {"log_probs_s": [1.0, 1.0, 9.0], "update_s": [3.0, 3.0, 9.0]},  # medians 1 + 3: 6000 / 4 = 1500
        "ours": {"log_probs_s": [0.25], "update_s": [0.75]},  # 6000 / 1
    }
    rows = update.update_rows(6000, results)
    assert [row.value for row in rows] == [4.0, 1500.0, 6000.0]
    assert rows[0].met


def test_settings_that_compute_other_log_probs_are_not_compared():
    update.check_same_log_probs({"prototype": -1000.0, "ours": -1000.01})
    with pytest.raises(RuntimeError, match="disagree"):
        update.check_same_log_probs({"prototype": -1000.0, "ours": -990.0})


def test_tokens_and_seconds_of_one_sample_per_turn_are_set_against_one_row_per_rollout():
    one, per_turn = update.ONE, update.PER_TURN
    results = {
        one: {"log_probs_s": [0.5], "update_s": [1.0, 1.5, 9.0]},  # 0.5 + 1.5 = 2
        per_turn: {"log_probs_s": [2.0], "update_s": [4.0]},
    }
    rows = update.token_rows(4, {one: 1000, per_turn: 2500}, results)
    assert [(row.what, row.value) for row in rows] == [
        ("4 turns: tokens of one sample per turn / of one row per rollout", 2.5),
        ("... seconds of log-probs and update, the same ratio", 3.0),
        ("... one row per rollout", 1000),
        ("... one sample per turn", 2500),
    ]
    assert [row.met for row in rows] == [True, None, None, None]
    assert update.token_rows(2, {one: 1000, per_turn: 1500}, results)[0].met is None  # no target


def test_tokens_of_a_row_are_its_prompt_and_its_response():
    assert update.num_tokens([([1, 2], [3], [1]), ([1], [2, 3], [1, 0])]) == 6


def test_what_a_way_adds_is_set_against_direct_calls():
    cost = proxy_cost.Cost
    costs = {proxy_cost.DIRECT: cost(102.0, 110.0, 400.0, {})}
    costs |= {way: cost(106.0, 130.0, 100.0, {"proxy": 3.0}) for way in proxy_cost.WAYS}
    rows = proxy_cost.proxy_rows(costs)
    assert [row.value for row in rows[:3]] == [102.0, 110.0, 400.0]
    assert [(row.what, row.value, row.limit) for row in rows[3:7]] == [
        ("runner tracing, no proxy: added per call", 4.0, proxy_cost.WAYS["runner tracing, no proxy"]),
        ("... 16 at once", 20.0, ""),
        ("... calls/s", 100.0, "25% of direct"),
        ("... CPU per call: proxy", 3.0, ""),
    ]
    assert len(rows) == 3 + 4 * len(proxy_cost.WAYS)


def test_the_added_time_is_split_into_inside_and_around_the_rollout_per_call():
    direct = overhead.Load(wall_s=2.0, rollout_s=0.60, around_s=0.0, turns=2.0, batch_s=0.6, cpu_s={"agents": 0.5})
    # inside (0.64 - 0.60) / 2 calls = 20 ms; around 0.01 / 2 = 5 ms; 64 episodes of 2 calls: 1.28 s / 128 = 10 ms
    load = dataclasses.replace(direct, wall_s=2.5, rollout_s=0.64, around_s=0.01, batch_s=0.8, cpu_s={"store": 1.28})
    rows = {row.what: row for row in overhead.overhead_rows("server", direct, load, 0.95)}
    share = rows["server, share of the straight episodes/s"]
    assert (share.value, share.met) == (0.8, False)
    values = {what: row.value for what, row in rows.items()}
    assert values["... added per call inside the rollout"] == pytest.approx(20.0)
    assert values["... added per call around the rollout"] == pytest.approx(5.0)
    assert values["... one batch of 16, share of the straight one's"] == pytest.approx(0.75)
    assert values["... CPU per call: store"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "startup,speed"], "no part speed; known: startup, update, shared, memory, tokens, proxy, "),
        (["--only", "startup", "--write-doc"], "one run of all parts"),
        (["--model", "nowhere"], "agentgrpo tiny-policy"),
    ],
)
def test_a_command_that_cannot_work_says_what_would(arguments, words, capsys):
    with pytest.raises(SystemExit):
        main_job.parse_args(arguments)
    assert words in capsys.readouterr().err


def test_a_lag_is_timed_from_the_first_rollout_to_the_last_step_and_compared_with_the_longer_half():
    events = [(20.0, "first rollouts"), (31.0, "step 1/2  reward 0.5"), (40.0, "step 2/2  reward 0.5"), (41.0, "done")]
    steps = [{"time/step_s": 11.0, "time/gen_s": 6.0}, {"time/step_s": 9.0, "time/gen_s": 5.0}]
    # (40 - 20) / 2; medians of 6 and 5, of 11 - 6 and 9 - 5
    timed = lag.timed(events, steps)
    assert timed == lag.Timed(step_s=10.0, rollout_s=5.5, rest_s=4.5)
    without, with_lag = lag.rows("wait", {0: timed, 1: timed}, target_s=6.0)
    assert (without.met, with_lag.met, with_lag.what) == (None, False, "rollouts wait, lag 1: a train step")
    assert with_lag.limit == "360 steps/h; 5.5 s for rollouts, 4.5 s rest"
