"""The pure parts of the comparison with peers, and the tools that TRL is given. No peer is run."""

import dataclasses
import json
from pathlib import Path

import pytest

from bench import peers
from bench.parts.peers import own_peer, run, verl_peer
from bench.parts.peers.order import LONG_PROMPTS, PRETRAINED, SEED, SKILL, SMALL, Order, append_lines, read_lines
from bench.parts.peers.run import Measured, Step
from bench.parts.peers.world import SqlTools, count_sampled, open_world, trained_pieces
from dbbench_adapter.protocols.fc import TOOLS
from dbbench_adapter.tasks.load import load_tasks
from sql_agent.environments.dbbench import generated

ORDER = Order(Path("model"), Path("train.jsonl"), Path("held_out.jsonl"), Path("folder"), SMALL)


def test_trained_pieces_are_the_runs_of_trained_tokens():
    assert trained_pieces([1, 2, 3, 4, 5, 6], [1, 1, 0, 0, 1, 0]) == [(1, 2), (5,)]
    assert trained_pieces([1, 2], [0, 1]) == [(2,)]


@pytest.mark.parametrize(
    ("pieces", "replies", "sampled"),
    [
        pytest.param([(1, 2), (3,)], [(3,), (1, 2)], 3, id="all"),
        pytest.param([(1, 2)], [(1, 2, 9)], 2, id="a_reply_was_cut"),
        # 7 was not sampled after 1 2, and what follows it was sampled under another history
        pytest.param([(1, 2, 7, 4)], [(1, 2, 3, 4)], 2, id="tokenised_anew"),
        pytest.param([(1, 2), (1, 2)], [(1, 2)], 2, id="a_reply_counts_once"),
        pytest.param([(1, 2)], [], 0, id="none"),
    ],
)
def test_a_trained_token_was_sampled_if_it_begins_a_reply_of_the_sampler(pieces, replies, sampled):
    assert count_sampled(pieces, replies) == sampled


# 20 s for the first step; then 4, 6 and 5 s, of which saving takes 1 s each: 3, 5, 4
STEPS = [
    Step(20.0, 1.0, "w1", 64, 3000, 3000),
    Step(24.0, 1.0, "w2", 64, 3000, 3000),
    Step(30.0, 1.0, "w3", 60, 2800, 2700),
    Step(35.0, 1.0, "w4", 64, 3200, 3200),
]
RUN = Measured("TRL", STEPS, 3 * 2**30, 0.5, 0.625)
SIZES = dataclasses.replace(SMALL, steps=3, seconds=30)


def test_figures_leave_the_first_step_and_the_saving_of_weights_out():
    assert run.first_step_s(RUN) == 20.0
    assert run.step_seconds(RUN) == [3.0, 5.0, 4.0]
    assert run.step_s(RUN) == 4.0
    assert run.per_second(RUN, "rollouts") == 188 / 12
    assert run.per_second(RUN, "trained") == 9000 / 12
    assert run.sampled_share(RUN) == 11900 / 12000


def test_a_peer_is_watched_for_its_steps_and_for_its_time():
    assert not run.done(STEPS[:2], 100.0, SIZES)
    assert not run.done(STEPS, 29.0, SIZES)
    assert run.done(STEPS[:3], 30.0, SIZES)


def test_success_is_that_of_the_weights_after_equal_rollouts_and_of_those_after_equal_minutes():
    assert run.weights_after(STEPS, SIZES) == "w3"
    assert run.weights_in_time(STEPS, SIZES) == "w3"
    assert run.weights_in_time(STEPS, dataclasses.replace(SIZES, seconds=29)) == "w2"
    assert run.weights_in_time(STEPS, dataclasses.replace(SIZES, seconds=10)) is None


def test_the_table_has_a_column_for_each_peer_and_the_error_of_one_that_did_not_run():
    failed = Measured("verl", error="it ended with 1 after 9 s: KeyError: 'cpu'")
    assert peers.table({"trl": RUN, "verl": failed}, SIZES, 0.4) == (
        "| | TRL | verl |\n"
        "|---|---:|---:|\n"
        "| from the command to the end of the first step | 20.0 s | - |\n"
        "| a later step (median) | 4.00 s | - |\n"
        "| trained rollouts a second | 15.67 | - |\n"
        "| trained tokens a second | 750 | - |\n"
        "| highest memory of all processes, PSS | 3.00 GiB | - |\n"
        "| trained tokens that the sampler returned | 99.17% | - |\n"
        "| held-out success after 192 rollouts (before: 40.0%) | 50.0% | - |\n"
        "| held-out success after 0.5 minutes | 62.5% | - |\n"
        "| steps in these minutes | 3 | - |\n"
        "\n"
        "verl did not run: `it ended with 1 after 9 s: KeyError: 'cpu'`"
    )


def test_no_success_is_shown_where_no_held_out_task_is_played():
    assert "held-out" not in peers.table({"trl": RUN}, PRETRAINED, None)


def test_what_was_seen_is_read_as_it_was_written():
    assert Measured.read(json.loads(json.dumps(RUN.as_json()))) == RUN


def test_what_a_file_has_counts_for_its_model_and_commit_alone(tmp_path):
    file = tmp_path / "peers.json"
    found = {"model": "tiny-sql", "facts": {"commit": "abc1234"}, "peers": {"trl": RUN.as_json()}}
    file.write_text(json.dumps(found))
    assert peers.earlier(file, "tiny-sql", "abc1234") == {"trl": RUN}
    assert peers.earlier(file, "tiny-sql", "def5678") == {}
    assert peers.earlier(file, "tiny-sql, long prompts", "abc1234") == {}
    assert peers.earlier(tmp_path / "none.json", "tiny-sql", "abc1234") == {}


def test_long_prompts_are_the_same_tasks_after_the_schema_of_a_shop(tmp_path):
    schema = peers.shop_schema(tmp_path)
    assert schema.count("CREATE TABLE") == 26
    sizes = dataclasses.replace(LONG_PROMPTS, held_out=3)
    plain, long = [
        [load_tasks(file) for file in peers.write_tasks(tmp_path, sizes, schema=before)] for before in ("", schema)
    ]
    assert [[task.question for task in tasks] for tasks in long] == [
        [schema + task.question for task in tasks] for tasks in plain
    ]
    assert [[task.gold for task in tasks] for tasks in long] == [[task.gold for task in tasks] for tasks in plain]


def test_half_a_line_is_not_a_step_yet(tmp_path):
    file = tmp_path / "lines.jsonl"
    assert read_lines(file) == []
    append_lines(file, [{"step": 1}, {"step": 2}])
    with file.open("a") as out:
        out.write('{"step": ')
    assert read_lines(file) == [{"step": 1}, {"step": 2}]


def test_an_order_is_read_as_it_was_written(tmp_path):
    order = dataclasses.replace(ORDER, folder=tmp_path)
    assert Order.read(order.write()) == order


def test_a_step_of_verl_is_its_line_with_the_counts_of_its_rollouts(tmp_path):
    order = dataclasses.replace(ORDER, folder=tmp_path, sizes=dataclasses.replace(SMALL, groups=1, group_size=2))
    lines = [{"step": 1, "data": {"timing_s/save_checkpoint": 0.5}}, {"step": 2, "data": {}}]
    append_lines(tmp_path / verl_peer.METRICS, lines)
    counts = [(50, 50), (40, 39), (30, 30), (20, 20)]
    append_lines(tmp_path / verl_peer.ROLLOUTS, [{"trained": all_, "sampled": known} for all_, known in counts])
    first, second = verl_peer.steps(order)
    weights = str(tmp_path / "checkpoints" / "global_step_1" / "actor" / "huggingface")
    assert first == {"save_s": 0.5, "weights": weights, "rollouts": 2, "trained": 90, "sampled": 89}
    assert (second["save_s"], second["trained"]) == (0.0, 50)


def test_a_step_of_ours_counts_judged_rollouts():
    line = {
        "train_step": 3, "rollout/count": 64.0, "reward/unjudged_frac": 0.25, "rollout/sampled_tokens": 50.5,
        "time/checkpoint_s": 0.25,
    }  # fmt: skip
    # 48 of 64 rollouts, 48 * 50.5 tokens
    assert own_peer.step_of(ORDER, line) == {
        "save_s": 0.25, "weights": "folder/run/checkpoints/global_step_3/actor/huggingface", "rollouts": 48,
        "trained": 2424, "sampled": 2424,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "trl,rllm"], "no peer rllm; known: trl, trl-vllm, verl, agl, lag0, lag1"),
        (["--only", "trl,trl-vllm,verl,agl", "--write-doc"], "lag0, lag1 were not measured at this commit"),
        (["--model", "nowhere"], "agentgrpo tiny-policy"),
        (["--long-prompts"], "name a pretrained --model"),
    ],
)
def test_a_command_that_cannot_work_says_what_would(arguments, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").touch()
    monkeypatch.setattr(peers, "MODEL", tmp_path)
    with pytest.raises(SystemExit):
        peers.parse_args(arguments)
    assert words in capsys.readouterr().err


def test_trl_is_given_the_same_tools_and_one_episode_of_the_same_task():
    from transformers.utils import get_json_schema

    (task,) = generated(1, "train", (SKILL,), SEED)
    with open_world() as SqlTools.world:
        SqlTools.too_long = "long"
        tools = SqlTools()
        tools.reset(task=json.dumps(task.to_dict()), prompt=SqlTools.world.messages(task))
        shown = [get_json_schema(tool) for tool in (tools.execute_sql, tools.commit_final_answer)]
        assert tools.execute_sql(task.gold.sql).startswith("[(")
        assert tools.get_reward() == -0.3  # nothing was committed
        assert tools.commit_final_answer(list(task.gold.answers)) == "long"
        assert tools.get_reward() == 1.0
    for tool in shown:  # transformers adds what is returned, and not that further arguments are refused
        assert tool["function"].pop("return") == {"type": "string"}
        tool["function"]["parameters"]["additionalProperties"] = False
    assert shown == TOOLS
