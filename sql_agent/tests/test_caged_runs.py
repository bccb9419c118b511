"""The training command, in a world of its own: told to stop or killed in any phase it leaves nothing, and it never
tries to reach anything but this machine. `--full` stops 50 runs, in about an hour, and runs the demo; one that ends by
itself is that of test_own_environment_end_to_end.py.
"""

import random
import re
import shutil
import signal
import sys

import pytest

from sql_agent.tests import cage
from sql_agent.tests.cage import RUN_DIR, Plan, check_nothing_is_left, check_nothing_was_sent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare here"),
]

FULL_RUNS = 50


@pytest.fixture(scope="module", autouse=True)
def permitted():
    if cage.unshare() is None:
        pytest.skip("this machine does not let us make namespaces (unshare --pid --mount --net)")


@pytest.fixture(scope="module")
def command(small_policy):
    command = [sys.executable, "sql_agent/train_sql_agent.py", "--ci-fast", "--device", "cpu"]
    shorter = ["--set", "agent.max_turns=4", "data.max_response_tokens=1500", "rollout.max_resamples=0"]
    return [*command, "--model", str(small_policy), "--run-dir", str(RUN_DIR), "--llm-proxy", *shorter]


@pytest.mark.timeout(1800)
@pytest.mark.full("the demo takes seven minutes")
def test_the_whole_small_demo_tries_to_reach_nothing_but_this_machine():
    """Doctor, warm start, `agl store`, training, report."""
    left = cage.run(Plan(["env", f"RUN_DIR={RUN_DIR}", "bash", "scripts/demo.sh", "--small"], start_s=1500.0))
    print(left.output, flush=True)
    assert left.code == 0, left.output + left.logs
    assert re.search("held-out success after 12 steps .*%", left.output), left.output
    check_nothing_was_sent(left)
    check_nothing_is_left(left)


def test_a_run_that_is_killed_while_ray_starts_leaves_nothing(command):
    kill = {"sign": signal.SIGKILL, "line": "starting Ray", "delay_s": 2.0}
    left = cage.run(Plan([*command, "--set", "rollout.backend=mariadb"], **kill))
    assert left.code == -signal.SIGKILL, left.output + left.logs
    check_nothing_was_sent(left)
    check_nothing_is_left(left)


PHASES = {
    "imports": {"line": r"tasks: \d+ to train on"},
    "Ray": {"line": "starting Ray"},
    "model servers": {"line": "loading the policy"},
    "first rollouts": {"line": "first rollouts"},
    "update": {"file": "trajectories/train_000001.jsonl"},
    "later steps": {"line": "step 1/"},
}
"""When a run of the long form is stopped, up to five seconds later."""


@pytest.mark.parametrize("number", range(FULL_RUNS))
@pytest.mark.full("fifty runs take an hour")
def test_a_run_that_is_stopped_anywhere_leaves_nothing(command, number, heard_signals):
    generator = random.Random(number)
    sign = generator.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    phase, backend = generator.choice(list(PHASES)), generator.choice(["sqlite", "mariadb"])
    delay_s = round(generator.uniform(0, 5), 1)
    settings = ["--set", f"rollout.backend={backend}", "--set", "trainer.steps=50"]
    left = cage.run(Plan([*command, *settings], sign=sign, delay_s=delay_s, **PHASES[phase]))
    what = f"{number} {sign.name} in {phase} +{delay_s} s, {backend}"
    print(f"{what}: ended with {left.code}, everything gone after {left.seconds:.1f} s", flush=True)
    assert left.code == (-signal.SIGKILL if sign == signal.SIGKILL else 130), left.output + left.logs
    check_nothing_was_sent(left)
    check_nothing_is_left(left)
