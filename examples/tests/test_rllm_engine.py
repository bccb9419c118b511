"""rLLM's own engine plays our agent and environment: rewards, masks, and what it does with an episode that it ends.

`AGENTGRPO_RLLM_SOURCE=FOLDER`, a checkout of rLLM at v0.2.1.post1, switches these tests on.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dbbench_adapter.datatypes import Gold
from examples.tests.rllm_tasks import ILLEGAL, LOOK, RIGHT, SELECT, WRONG

ROOT = Path(__file__).resolve().parents[2]
SHOWN = "[('Plum', 5), ('Pear', 4), ('Fig', 2)]"
ENDS = {
    "right": ([LOOK, RIGHT], [0.0, 1.0]),
    "wrong": ([LOOK, WRONG], [0.0, -1.0]),
    "out_of_rounds": ([LOOK] * 3, [0.0, 0.0, -0.8]),
    "illegal": ([ILLEGAL], [-0.2]),
}


def episode(replies, name="-", **fields):
    """A task of its own, by which the policy knows what to say."""
    task = replace(SELECT, id=name, question=f"Which fruit costs less than 5? ({name})", **fields)
    return {"task": task.to_dict(), "replies": replies}


def group(*episodes, mode="Token", env=None, **engine):
    return {"episodes": list(episodes), "mode": mode, "env": env or {}, "engine": engine}


MODES = ("Text", "Token", "Conversation", "Step")
ALL_ENDS = [episode(replies, name) for name, (replies, _) in ENDS.items()]
TEXT = {"protocol": "text"}
GROUPS = {
    **{mode: group(*ALL_ENDS, mode=mode) for mode in MODES},
    "four replies": group(episode([LOOK] * 3 + [RIGHT]), mode="Text", env=TEXT, max_steps=4),
    "one step too few": group(episode([LOOK] * 3 + [RIGHT]), mode="Text", env=TEXT, max_steps=3),
    # a token is a byte: the reply fits, what the database returns does not; <|im_end|> no longer fits after the answer
    "long result": group(episode([LOOK, RIGHT]), mode="Text", max_response_length=len(LOOK) + 20),
    "long wrong answer": group(episode([WRONG]), mode="Text", max_response_length=len(WRONG)),
    "cut reply": group(episode([WRONG]), mode="Text", max_response_length=len(WRONG) - 20),
    "long result, filtered": group(episode([LOOK]), max_response_length=len(LOOK) + 20, overlong_filter=True),
    "no gold": group(episode([RIGHT], gold=Gold())),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """What the engine returned for each group."""
    source = os.environ.get("AGENTGRPO_RLLM_SOURCE")
    if source is None:
        pytest.skip("AGENTGRPO_RLLM_SOURCE is not set: it names a checkout of github.com/rllm-org/rllm at v0.2.1.post1")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "examples.tests.rllm_engine",
            tmp_path_factory.mktemp("tokenizer") / "qwen-bytes",
        ],
        input=json.dumps(list(GROUPS.values())),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT / 'examples' / 'rllm'}"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    return dict(zip(GROUPS, json.loads(run.stdout.splitlines()[-1]), strict=True))


def by_index(results):
    return sorted(results, key=lambda result: result["idx"])


def test_a_trajectory_pays_once_at_its_end(played):
    paid = sorted(result["step_rewards"] for result in played["Text"])
    assert paid == sorted(rewards for _, rewards in ENDS.values())


def test_the_reply_of_each_turn_is_trained_and_nothing_else(played):
    found = by_index(played["Token"])
    assert [(result["reward"], result["trained"]) for result in found] == [
        (rewards[-1], replies) for replies, rewards in ENDS.values()
    ]
    assert [(result["metrics"]["steps"], result["metrics"]["token_mismatch"]) for result in found] == [
        (2, 0.0), (2, 0.0), (3, 0.0), (1, 0.0)
    ]  # fmt: skip


def test_a_step_has_the_discounted_return_of_the_rest(played):
    found = by_index(played["Step"])
    assert [result["replies"] for result in found] == [replies for replies, _ in ENDS.values()]
    # rLLM's gamma is 0.2: 0 + .2 x 1; 0 + .2 x -1; -.8 x .2 x .2
    expected = [[0.2, 1.0], [-0.2, -1.0], [-0.032, -0.16, -0.8], [-0.2]]
    assert [result["mc_returns"] for result in found] == [pytest.approx(returns) for returns in expected]


def test_a_conversation_holds_each_reply_and_its_result(played):
    (right,) = (messages for messages in played["Conversation"] if messages[-1]["content"] == RIGHT)
    assert right[4:] == [
        {"role": "assistant", "content": LOOK},
        {"role": "user", "content": SHOWN},
        {"role": "assistant", "content": RIGHT},
    ]


@pytest.mark.parametrize(
    ("name", "step_rewards"),
    [
        pytest.param("four replies", [0.0, 0.0, 0.0, 1.0], id="text_answers_after_its_last_statement"),
        pytest.param("one step too few", [0.0, 0.0, -0.8], id="stopped_before_its_last_reply"),
        pytest.param("long result", [-0.8], id="cut_by_a_result"),
        pytest.param("long wrong answer", [-1.0], id="cut_after_a_wrong_answer"),
        pytest.param("cut reply", [-0.2], id="cut_in_a_reply"),
    ],
)
def test_an_episode_that_the_engine_ends_is_not_paid_0(played, name, step_rewards):
    assert played[name][0]["step_rewards"] == step_rewards


def test_rllms_overlong_filter_pays_0_and_trains_all_the_same(played):
    """So `train_dbbench_rllm` refuses it."""
    (cut,) = played["long result, filtered"]
    assert (cut["reward"], cut["trained"]) == (0.0, [LOOK])


def test_a_task_that_nobody_can_judge_ends_the_whole_step(played):
    """So `register_tasks` leaves it out."""
    assert played["no gold"] == {"error": "Trajectory 0 cannot complete. Please check the log message"}
