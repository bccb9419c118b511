"""The example environment and a LoRA adapter through the whole chain: store, runners, vLLM, verl, a small policy;
nothing scripted.

One run of two steps, about two minutes, with no network but loopback. The small policy solves hardly any of the
example's questions; what counts is that its rewards are the file's own, and that sampler and checkpoint have the
adapter.
"""

import json
import re

import pytest

from sql_agent.tests.cage import check_nothing_is_left, check_nothing_was_sent
from sql_agent.tests.conftest import ROOT, train_small_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXAMPLE = "examples/own_environment"
SETTINGS = ["agent.max_turns=4", "agent.max_tokens=96", "rollout.trajectories_per_step=16", "rollout.max_resamples=0"]
TRAINING = ["trainer.steps=2", "trainer.save_every=2", "trainer.val_every=2", "optim.learning_rate=1e-3"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    tasks = ["--env", f"{EXAMPLE}/orders.py:Orders", "--train-file", f"{EXAMPLE}/rows.jsonl"]
    flags = [*tasks, "--llm-proxy", "--lora", "--lora-rank", "8"]
    folder = tmp_path_factory.mktemp("run")
    return train_small_policy(folder, *flags, settings=[*SETTINGS, *TRAINING], caged=True)


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
    assert "step 1/2  reward" in run.out


def test_the_run_tried_to_reach_nothing_but_this_machine_and_left_nothing_behind(run):
    """Held-out tasks, rollouts, updates, weights that the sampler gets, a checkpoint."""
    assert re.search("step 2/2 .*held-out success", run.out), run.out
    if run.left is None:
        pytest.skip("this machine does not let us make namespaces (unshare --pid --mount --net)")
    check_nothing_was_sent(run.left)
    check_nothing_is_left(run.left)


def test_with_an_adapter_the_run_serves_and_saves_whole_weights(run, tmp_path):
    *_, last = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    # after an update, the sampler still gives the actor's probabilities: it has the adapter, in full precision
    assert last["train_step"] == 2
    assert last["engine/probs_diff_max"] < 1e-3

    from safetensors.torch import load_file

    saved = run.folder / "checkpoints" / "global_step_2" / "actor" / "huggingface"
    before = load_file(ROOT / "models" / "tiny-sql" / "model.safetensors")
    after = load_file(saved / "model.safetensors")
    assert set(after) == set(before)
    assert any((after[name] != before[name]).any() for name in before)

    # the shards beside it, base and adapter apart, come to the same weights
    from sql_agent.commands.merge import main

    assert main(["--checkpoint", str(run.folder), "--output", str(tmp_path / "merged")]) == 0
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert set(merged) == set(after)
    assert max((merged[name] - after[name]).abs().max() for name in after) < 1e-6
    assert json.loads((saved / "config.json").read_text())["dtype"] == "float32"
