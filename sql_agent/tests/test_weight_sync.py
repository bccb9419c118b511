"""verl's own vLLM server, in Ray: after a weight sync it samples on the new weights alone, whatever was in flight, and
a rollout may use its row to the last token and not beyond.
"""

import json
import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from sql_agent.settings.load import load_config
from sql_agent.tests.conftest import with_random_weights
from sql_agent.verl_side.config import worker_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def other_policy_folder(served_policy_folder, tmp_path_factory) -> Path:
    """The same model with weights that have nothing to do with its own."""
    return with_random_weights(served_policy_folder, tmp_path_factory.mktemp("other-policy") / "policy", seed=1)


@pytest.fixture(scope="module")
def synced(served_policy_folder, other_policy_folder):
    environment = os.environ | worker_environment(load_config(None), cpu=True)
    environment |= {"RAY_AUTH_TOKEN": uuid.uuid4().hex}
    with tempfile.TemporaryDirectory(prefix="sync-", dir="/tmp") as ray_dir:  # short: it holds Unix sockets
        command = [sys.executable, "-m", "sql_agent.tests.synced_vllm", str(served_policy_folder)]
        command += [str(other_policy_folder), ray_dir]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    assert lines, result.stdout[-2000:] + result.stderr[-4000:]
    return json.loads(lines[-1])


def error(folder, answer) -> float:
    """Largest difference between vLLM's log-probs and those of the model in `folder`, in nats."""
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([[*answer["prompt"], *answer["sampled"]]])
    with torch.no_grad():
        log_probs = AutoModelForCausalLM.from_pretrained(folder)(ids).logits[0].log_softmax(-1)
    start = len(answer["prompt"]) - 1
    own = [log_probs[start + i, token].item() for i, token in enumerate(answer["sampled"])]
    return max(abs(a - b) for a, b in zip(own, answer["log_probs"], strict=True))


def test_the_prefix_cache_is_used_as_long_as_the_weights_stay(synced, served_policy_folder):
    assert synced["old"]["cached"] == 288
    assert error(served_policy_folder, synced["old"]) < 1e-3


def test_after_a_sync_with_a_call_in_flight_nothing_of_the_old_weights_is_left(synced, other_policy_folder):
    assert synced["new"]["cached"] == 0
    assert error(other_policy_folder, synced["new"]) < 1e-3


def test_with_a_lag_a_call_goes_on_until_the_new_weights_are_there_and_a_reply_names_its_weights(
    synced, served_policy_folder
):
    assert (synced["lagged"]["late_end"], synced["lagged"]["error"]) == ("abort", None)
    assert 0 < synced["lagged"]["late_tokens"] < 700
    assert 0 < synced["lagged"]["held_s"] < 60 and synced["lagged"]["ended"]  # which no deadline of a rollout counts
    assert [synced[name]["weights"] for name in ("new", "back")] == ["1", "2"]
    assert (synced["back"]["cached"], error(served_policy_folder, synced["back"]) < 1e-3) == (0, True)


def test_a_call_in_flight_is_ended_and_later_ones_are_answered(synced):
    assert synced["ours"]["error"] is None
    assert synced["ours"]["late_tokens"] < 700
    assert len(synced["new"]["sampled"]) == 2


def test_a_cache_that_was_not_emptied_stops_the_run(synced, served_policy_folder):
    """By verl's own manager, which leaves the call alone, and with it what the first policy's next step would see."""
    assert synced["verl"]["late_tokens"] == 700
    assert "StaleCacheError: vLLM could not empty its prefix cache" in synced["verl"]["error"]
    assert synced["after_verl"]["cached"] == 288
    assert error(served_policy_folder, synced["after_verl"]) > 0.1


def test_a_row_is_used_to_its_last_token_and_not_beyond(synced):
    """A first prompt of 80 tokens whose row ends at 280; the context has 1,024."""
    *answered, refused, by_vllm, to_the_contexts_end = synced["rows"]
    assert answered == [[80, 150, "length"], [100, 150, "length"], [200, 80, "length"], [279, 1, "length"]]
    assert refused["code"] == by_vllm["code"] == 400
    assert "context length is 280 tokens, and the prompt has 280" in refused["message"]
    assert to_the_contexts_end == [1023, 1, "length"]
