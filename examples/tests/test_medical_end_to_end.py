"""Medical question answering, nothing scripted: scoring service, store, runners, vLLM, verl, a small policy. One step.

The reward model is the small policy with a new head: it knows nothing, and its scores differ. About two minutes.
"""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from agentgrpo.machine import free_port
from sql_agent.tests.conftest import train_small_policy, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.full("test_reward_model_chain.py serves such a model, and test_medical.py plays the tasks"),
]

ROOT = Path(__file__).parents[2]
CENTER, SCALE = 0.1, 2.0
# Greedy, the small policy calls a tool that is not there until its turns are gone; hot, it babbles, which is an answer.
SETTINGS = [
    *("agent.temperature=1.5", "agent.max_turns=3", "agent.max_tokens=64", "rollout.trajectories_per_step=16"),
    "rollout.max_resamples=0",  # what is saved is what was played, however the sampled groups fall out
    *(f"reward_model.center={CENTER}", f"reward_model.scale={SCALE}"),
]


@pytest.fixture(scope="module")
def scorer(small_policy, tmp_path_factory):
    """The URL of a running service."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder, port = tmp_path_factory.mktemp("reward_model"), free_port()
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(small_policy, num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(small_policy)
    model.config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    command = [sys.executable, "reward_model/inference_api.py", "--model_path", folder, "--port", str(port)]
    service = subprocess.Popen([*command, "--threads", "1"], cwd=ROOT)
    try:
        wait_for(f"http://127.0.0.1:{port}/readyz", service)
        yield f"http://127.0.0.1:{port}"
    finally:
        service.terminate()
        service.wait(30)


@pytest.fixture(scope="module")
def run(scorer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    command = ["-m", "agentgrpo", "tasks", "medical", "--output", folder / "medical.db", "--questions", folder]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    before = (folder / "medical.db").read_bytes()
    files = ["--train-file", str(folder / "train.jsonl"), "--val-file", str(folder / "held_out.jsonl")]
    run = train_small_policy(
        folder / "run", "--env", "medical", "--reward-model-url", scorer, *files, settings=SETTINGS
    )
    run.untouched = (folder / "medical.db").read_bytes() == before
    return run


def test_every_rollout_has_its_bounded_score_or_the_price_of_silence(run):
    assert len(run.rollouts) == 16  # four tasks, four rollouts each
    answered = [r for r in run.rollouts if r["reward_model"]["reason"] == "scored"]
    assert answered
    for rollout in answered:
        score = rollout["reward_model"]["score"]
        assert rollout["reward"] == pytest.approx(math.tanh((score - CENTER) / SCALE))
        assert rollout["messages"][-1]["content"].strip()
    for rollout in run.rollouts:
        assert rollout["score"] == {"value": None, "reason": "no_judge", "parts": {}}
        assert rollout in answered or rollout["reward"] == -1.0


def test_the_step_says_what_the_scorer_said_and_nothing_of_correctness(run):
    scores = [r["reward_model"]["score"] for r in run.rollouts if r["reward_model"]["score"] is not None]
    assert run.metrics["reward_model/score_mean"] == pytest.approx(sum(scores) / len(scores))
    assert run.metrics["reward/unjudged_frac"] == run.metrics["reward_model/lost_frac"] == 0.0
    assert {"rollout/success", "reward_model/correctness_corr", "reward_model/alarm"}.isdisjoint(run.metrics)
    assert run.metrics["policy/grad_norm"] > 0
    assert "step 1/1  reward" in run.out


def test_the_database_is_as_it_was(run):
    assert run.untouched
