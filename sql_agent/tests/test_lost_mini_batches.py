"""What becomes of a mini-batch in which every rollout was lost, in verl's own worker on a CPU."""

import json
import math
import os
import subprocess
import sys

import pytest

from agentgrpo.machine import free_port
from sql_agent.settings.load import load_config
from sql_agent.tests.updating_worker import SETTINGS
from sql_agent.verl_side.config import worker_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


AGGREGATIONS = "token-mean", "seq-mean-token-mean"
BATCHES = "rrrr", "rr--", "-rr-", "----", "--rr"


@pytest.fixture(scope="module")
def played(random_policy_folder):
    """What became of each batch, by the way the loss is aggregated."""
    command = [sys.executable, "-m", "sql_agent.tests.updating_worker", random_policy_folder, free_port()]
    done = subprocess.run(
        [*map(str, command), ",".join(AGGREGATIONS), *BATCHES],
        env=os.environ | worker_environment(load_config(None, SETTINGS), cpu=True),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {name: steps[i * len(BATCHES) :][: len(BATCHES)] for i, name in enumerate(AGGREGATIONS)}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_it_is_left_out_of_the_update_and_counted(played, aggregation):
    """Over no token verl's mean is NaN; over no row its sum is 0, and AdamW would move by its moments."""
    whole, half, mixed, none, other = played[aggregation]
    for step in (whole, half, mixed, other):
        assert step["changed"] == {"weights": True, "moments": True}
        for name in ("policy/loss", "policy/kl_k1", "policy/grad_norm", "policy/learning_rate"):
            assert math.isfinite(step["metrics"][name])
    assert none["changed"] == {"weights": False, "moments": False}
    assert [step["steps"] for step in (whole, half, mixed, none, other)] == [2, 1, 2, 0, 1]
    skipped = [step["metrics"].get("policy/skipped_updates", 0.0) for step in (whole, half, mixed, none, other)]
    assert skipped == [0.0, 1.0, 0.0, 2.0, 1.0]
    assert "policy/loss" not in none["metrics"] and math.isfinite(none["metrics"]["policy/learning_rate"])
    # the ratio is 1 in the first mini-batch, so that its loss is minus the advantage, whatever was left out beside it
    assert half["metrics"]["policy/loss"] == pytest.approx(-1.0, abs=1e-4)
    assert other["metrics"]["policy/loss"] == pytest.approx(-1.0, abs=1e-4)
