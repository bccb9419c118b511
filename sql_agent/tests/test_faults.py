"""Whatever fails around a training step, each of its rollouts ends in a named state, once, and what it did not touch is
as if nothing had happened. Store, runners, LLM proxy, database server and rollout manager are real; model and scorer
are scripted, so that every run of a task ends alike. `--full` injects more than 100 faults, in about ten minutes.
"""

import json
import random
from collections import Counter

import pytest

from dbbench_adapter.generator import generate_tasks
from sql_agent.tests.faults.proxy import Fault
from sql_agent.tests.faults.world import Planned, fooling, world

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TASKS = generate_tasks(9, seed=11, split="train")
NAMED = {
    "rollout_failed",
    "model_unavailable",
    "db_unavailable",
    "missing_spans",
    "step_deadline",
}
"""Why a rollout may be lost."""
FULL_ROUNDS, FAULTS_A_ROUND = 32, 4


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    with world(tmp_path_factory.mktemp("faults"), TASKS) as chain:
        yield chain


@pytest.fixture(scope="module")
def undisturbed(chain):
    """What becomes of each rollout where nothing fails."""
    answer = chain.play()
    rewards = [result["reward"] for result in answer["results"]]
    assert [reward == 0.0 for reward in rewards] == [task in fooling(TASKS) for task in TASKS for _ in range(2)]
    assert all(result["trained"] for result in answer["results"])
    return answer["results"]


def check(chain, answer, undisturbed):
    """The promises that hold under any fault; returns how many rollouts were lost, by reason."""
    assert "error" not in answer, answer
    lost = Counter()
    for result, expected in zip(answer["results"], undisturbed, strict=True):  # one result a row, in the rows' order
        if result["lost"] is None:
            assert result["messages"] == expected["messages"]
            assert result == expected | going_without(result["unshaped"], expected)
        else:
            assert (result["group"], result["task"]) == (expected["group"], expected["task"])
            assert (result["reward"], result["trained"]) == (None, False)
            lost[result["lost"]] += 1
    assert set(lost) <= NAMED
    for rollout, attempts in chain.rollouts():
        assert rollout.status in ("succeeded", "failed", "cancelled"), rollout
        assert sum(attempt.status == "succeeded" for attempt in attempts) <= 1
    return lost


def going_without(failure, expected):
    """What is another in a group that lost a score: its rewards are those of correctness."""
    assert failure in (None, "scorer_unavailable")
    return {"unshaped": failure, "reward": expected["base"]} if failure else {}


def fault(where, kind, at_s=0.0, **details):
    return Planned(where, Fault(kind, **details), at_s)


CASES = {
    "a_runner_is_killed": [Planned("runner", None, 0.6)],
    "the_database_is_killed": [Planned("database", None, 0.6)],
    "the_store_fails_and_breaks_off": [
        fault("store", "lost", requests=3, path="enqueue|dequeue|spans"),
        fault("store", "500", requests=5, after=10),
        fault("store", "half", requests=3, after=30),
        fault("store", "outage", seconds=2.0, after=60),
    ],
    "the_store_says_nothing": [fault("store", "nothing", path="traces$")],
    "the_proxy_fails_and_breaks_off": [
        fault("proxy", "lost", requests=2),
        fault("proxy", "500", requests=3, after=4),
        fault("proxy", "half", requests=2, after=8),
        fault("proxy", "outage", seconds=1.0, after=14),
    ],
    "the_model_server_says_half_and_nothing": [
        fault("model", "half", requests=2),
        fault("model", "nothing", after=4),
        fault("model", "outage", seconds=1.0, after=10),
    ],
    "the_scorer_is_away": [fault("scorer", "half"), fault("scorer", "outage", seconds=2.0, after=2)],
}


@pytest.mark.parametrize("plan", [pytest.param(plan, id=name) for name, plan in CASES.items()])
def test_nothing_is_lost_to_a_fault_that_passes(chain, undisturbed, plan):
    answer = chain.play(plan)
    assert len(answer["injected"]) == len(plan), answer["injected"]
    assert check(chain, answer, undisturbed) == {}
    assert {result["unshaped"] for result in answer["results"]} == {None}
    assert answer["seconds"] < 60


def test_a_model_server_that_stays_away_ends_each_rollout_by_name(chain, undisturbed):
    answer = chain.play([fault("model", "outage", seconds=1000, at_s=0.0)])
    assert check(chain, answer, undisturbed) == {"model_unavailable": len(undisturbed)}


def random_plan(generator):
    """Faults that a step has to get over; a runner and the database are killed at most once a round each."""
    plan = []
    for _ in range(FAULTS_A_ROUND):
        where = generator.choice(["store", "store", "proxy", "model", "scorer", "runner", "database"])
        at_s = round(generator.uniform(0.0, 2.5), 2)
        if where in ("runner", "database"):
            if any(planned.where == where for planned in plan):
                where = "store"
            else:
                plan.append(Planned(where, None, at_s))
                continue
        kind = generator.choice(["500", "lost", "half", "slow", "nothing", "outage"])
        requests = 1 if kind == "nothing" else generator.randint(1, 4)
        seconds = round(generator.uniform(0.5, 6.0), 2)
        plan.append(fault(where, kind, at_s, requests=requests, seconds=seconds))
    return plan


@pytest.mark.full("a hundred faults take ten minutes")
def test_a_hundred_random_faults(chain, undisturbed):
    generator, injected, lost, played, longest = random.Random(6), Counter(), Counter(), 0, 0.0
    replayed = unshaped = 0
    for number in range(FULL_ROUNDS):
        plan = random_plan(generator)
        answer = chain.play(plan)
        lost_now = check(chain, answer, undisturbed)
        print(number, f"{answer['seconds']:.1f} s", answer["injected"], dict(lost_now), flush=True)
        injected.update(answer["injected"])
        lost += lost_now
        played += len(undisturbed)
        unshaped += sum(result["unshaped"] is not None for result in answer["results"])
        replayed += sum(len(attempts) - 1 for _, attempts in chain.rollouts())
        longest = max(longest, answer["seconds"])
    facts = {
        "rollouts": played,
        "played again": replayed,
        "lost": dict(lost),
        "without a score": unshaped,
        "longest step, s": round(longest, 1),
    }
    print(json.dumps({"faults": sum(injected.values()), **facts, "by kind": dict(sorted(injected.items()))}, indent=1))
    assert sum(injected.values()) >= 100
    assert check(chain, chain.play(), undisturbed) == {}  # and nothing lingers
