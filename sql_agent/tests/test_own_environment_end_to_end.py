"""The example environment through the whole chain: store, runners, vLLM, verl, a small policy; nothing scripted.

About two minutes. The small policy solves hardly any of the example's questions; what counts is that its rewards are
the file's own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/own_environment"
SETTINGS = ["agent.max_turns=4", "agent.max_tokens=96", "rollout.trajectories_per_step=16", "rollout.redraws=0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from sql_agent.tiny_policy.make import make_tiny_policy

    policy, folder = ROOT / "models" / "tiny-sql", tmp_path_factory.mktemp("run")
    make_tiny_policy(policy)
    tasks = ["--env", f"{EXAMPLE}/orders.py:Orders", "--train-file", f"{EXAMPLE}/rows.jsonl"]
    where = ["--model", str(policy), "--run-dir", str(folder), "--device", "cpu"]
    # an entropy term, so that the weights change even where all rewards of a group are equal
    settings = [*SETTINGS, "trainer.save_every=0", "loss.entropy_coef=0.01"]
    result = subprocess.run(
        [sys.executable, "sql_agent/train_sql_agent.py", "--ci-fast", *tasks, *where]
        + [flag for setting in settings for flag in ("--set", setting)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "AGL_MANAGED_STORE"},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    log = folder / "logs" / "driver.log"
    assert result.returncode == 0, result.stdout + result.stderr + (log.read_text()[-5000:] if log.is_file() else "")
    (metrics,) = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    lines = (folder / "trajectories" / "train_000001.jsonl").read_text().splitlines()
    return SimpleNamespace(out=result.stdout, metrics=metrics, rollouts=[*map(json.loads, lines)])


def test_every_reward_is_what_the_file_gives_and_success_what_it_says(run):
    assert len(run.rollouts) == 16  # four tasks, four rollouts each
    for rollout in run.rollouts:
        score = rollout["score"]
        assert (score["reason"], rollout["reward"]) == ("own_reward", score["value"])
        assert rollout["reward"] in ((1.0,) if score["parts"]["correctness"] else (0.0, 0.1))
    solved = [rollout["score"]["parts"]["correctness"] for rollout in run.rollouts]
    assert run.metrics["rollout/success"] == pytest.approx(sum(solved) / 16)
    assert run.metrics["reward/unjudged_frac"] == 0.0


def test_the_policy_called_the_tools_of_the_file_and_a_step_was_taken(run):
    calls = [c["function"]["name"] for r in run.rollouts for m in r["messages"] for c in m.get("tool_calls") or ()]
    assert {"execute_sql", "commit_final_answer"} & set(calls)
    assert run.metrics["policy/grad_norm"] > 0
    assert run.metrics["prefix/broken_frac"] == 0.0
    assert "step 1/1  reward" in run.out
