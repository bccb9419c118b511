"""A rollout that is lost is masked and costs nothing, so what a policy can do to be lost would be learnt.

Played with the product's loop, environment, judge, presets and credit; the model is a script. The page's table says of
every reason whether a policy can bring it about, and is held to the code here.
"""

import asyncio
import re
from statistics import mean

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from dbbench_adapter.datatypes import Column, Gold, Score, Table, Task
from dbbench_adapter.interaction import ENDS
from reward_model.service.schemas import VllmChat
from scripts.pages.stop_reasons import reasons
from sql_agent import oracle
from sql_agent.credit.grpo import GroupRelative
from sql_agent.environments.dbbench import DbBench
from sql_agent.model_address.request_guard import RUN_TOKEN
from sql_agent.model_address.request_limits import RequestLimits, error_body
from sql_agent.model_address.rollout_route import ProxyRequestGuard, RolloutRoute
from sql_agent.oracle import call, calls
from sql_agent.play.served import run_rollout, size_thread_pool
from sql_agent.play.state import _DEADLINES
from sql_agent.rewards import NO_JUDGE, OWN_LOSSES, REWARDS, reward
from sql_agent.settings.groups import AgentConfig, RewardModelConfig
from sql_agent.settings.main_job import RolloutConfig
from sql_agent.source.datatypes import Rollout
from sql_agent.source.dynamic_sampling import drop_scores_of_group
from sql_agent.source.metrics import SCORER_LOST
from sql_agent.source.scoring import Rewarder
from sql_agent.source.stops import LOST_ADVICE

TASK = Task(
    id="t-0",
    question="Which is the cheapest?",
    kind="other",
    tables=(Table("Fruit", (Column("Name"), Column("Price")), (("Plum", "5"), ("Pear", "4"))),),
    gold=Gold(answers=("Pear",)),
)
GROUPS, EACH, PLAYED = 16, 4, 8
"""There are 16 x 4 = 64 rollouts of each kind: right ones, wrong ones, and those that try to be lost. Eight of a kind
are played, and each of these stands in eight groups."""
LONG = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<900) SELECT COUNT(*) FROM c p, c q, c r"
LARGE = "SELECT REPEAT('x', 60000) FROM Fruit a, Fruit b, Fruit c, Fruit d, Fruit e LIMIT 40"


def sql(query, number=0):
    return call("execute_sql", {"query": query}, f"c{number}")


def lab(action):
    return {"role": "assistant", "content": f"Action: {action}"}


def answers(name):
    return {
        "fc": calls(call("commit_final_answer", {"answers": [name]}, "done")),
        "lab": lab(f"Answer\nFinal Answer: [('{name}',)]"),
    }


TRICKS = {
    # a result of 2.4 MB, where a context of 4,096 tokens is sent in 1.3 MB at most
    "large_result": ("lab", lab(f"Operation\n```sql\n{LARGE}\n```"), "max_tokens"),
    # 60 x 0.05 s x 15 replies are more than the rollout's 30 s
    "slow_calls": ("fc", calls(*(sql(LONG, k) for k in range(60))), "max_sql_time"),
    "slow_statements_in_a_call": ("fc", calls(sql(";".join([LONG] * 60))), "max_sql_time"),
    "deep_arguments": ("fc", calls(call("execute_sql", '{"query":' + "[" * 500 + "]" * 500 + "}")), "max_turns"),
    "no_name": ("fc", calls(call("", {}, "x")), "max_turns"),
}
LIMITS = AgentConfig(statement_timeout_s=0.05, turn_timeout_s=10, rollout_timeout_s=30)


def model(by_key):
    """Answers each rollout by its key, behind the limits of our own servers."""
    limits = RequestLimits(4096)

    async def chat(request):
        try:
            asked = limits.parse(await request.body())
            limits.check(asked)
        except ValueError as error:
            return JSONResponse(error_body(error), 400)
        return JSONResponse(oracle._completion(asked, dict(by_key[request.headers["authorization"].split()[-1]])))

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


async def played(protocol, replies, environment=DbBench, max_turns=None):
    """Records of 64 rollouts of each reply."""
    size_thread_pool(16)
    free = asyncio.Semaphore(16)
    judge = "lab" if protocol == "lab" else "strict"
    config = LIMITS.model_copy(update={"protocol": protocol, "max_turns": max_turns})
    with environment(judge, protocol, "sqlite") as env, oracle.serve(model(replies)) as url:

        async def one(key):
            async with free:
                return await run_rollout(
                    TASK, environment=env, base_url=url, model="oracle", config=config, api_key=key
                )

        records = await asyncio.gather(*(one(key) for key in replies for _ in range(PLAYED)))
    times = GROUPS * EACH // PLAYED
    return {key: records[k * PLAYED : (k + 1) * PLAYED] * times for k, key in enumerate(replies)}


def mean_advantages(rollouts):
    """The mean advantage of each kind; a lost rollout is masked, so it is trained with 0."""
    found = {kind: [] for kind in rollouts}
    for group in range(GROUPS):
        members = {kind: each[group * EACH : (group + 1) * EACH] for kind, each in rollouts.items()}
        together = [rollout for each in members.values() for rollout in each]
        credited = iter(GroupRelative()([rollout.rewards for rollout in drop_scores_of_group(together)]))
        for kind, each in members.items():
            found[kind] += [(advantages or [0.0])[0] for advantages in (next(credited) for _ in each)]
    return {kind: mean(each) for kind, each in found.items()}


def rollout_of(record, earned=None, scorer=None):
    found = Rollout("g", {"id": TASK.id}, played=record, scorer=scorer)
    if earned is not None:
        found.earn(earned)
    return found


@pytest.mark.parametrize("name", TRICKS)
async def test_what_a_policy_does_to_be_lost_is_worth_no_more_than_a_wrong_answer(name):
    protocol, trick, stop = TRICKS[name]
    wrong, right = (answers(fruit)[protocol] for fruit in ("Plum", "Pear"))
    replies = {"trick": trick, "wrong": wrong, "right": right}
    records = await played(protocol, replies, max_turns=3 if stop == "max_turns" else None)
    assert {record.stop_reason for record in records["trick"]} == {stop}
    for preset in REWARDS.values():
        earned = {kind: [rollout_of(r, reward(r, preset)) for r in each] for kind, each in records.items()}
        assert {rollout.reward for rollout in earned["trick"]} == {preset.out_of_limits}
        advantage = mean_advantages(earned)
        # rLLM itself pays 0.2 more for running out of rounds than for a wrong answer, which is its preset's choice
        assert advantage["trick"] <= advantage["wrong"] or preset.out_of_limits > preset.incorrect
        assert advantage["trick"] < 0 < advantage["right"]


async def test_a_result_that_no_context_holds_is_out_of_limits_behind_the_llm_proxy_too(monkeypatch):
    monkeypatch.setenv(RUN_TOKEN, "x" * 32)
    _, trick, stop = TRICKS["large_result"]
    with DbBench("lab", "lab", "sqlite") as env, oracle.serve(model({"x": trick, "EMPTY": trick})) as url:
        for name, value in {"limits": RequestLimits(4096), "servers": {"p": url}, "served_model": "oracle"}.items():
            monkeypatch.setattr(RolloutRoute, name, value)
        monkeypatch.setattr(RolloutRoute, "headers", {"Authorization": "Bearer x"})
        route = RolloutRoute(None)
        with oracle.serve(ProxyRequestGuard(route)) as proxy:
            address = f"{proxy.removesuffix('/v1')}/rollout/r/attempt/a/v1"
            config = LIMITS.model_copy(update={"protocol": "lab"})
            where = {"base_url": address, "model": "p", "api_key": "x" * 32}
            record = await run_rollout(TASK, environment=env, config=config, **where)
    assert (record.stop_reason, record.score.value) == (stop, 0.0)


class Unjudged(DbBench):
    """Nobody judges, so the reward model's score is the reward."""

    def judge(self, episode):
        return Score(None, NO_JUDGE)


async def test_a_conversation_that_a_scoring_service_would_refuse_is_scored_like_its_neighbours():
    """One call with an empty name lost the group of four, a neighbour at -1.0 with it."""
    wrong, right = (answers(fruit)["fc"] for fruit in ("Plum", "Pear"))
    nameless = calls(call("", {}, "x"), *wrong["tool_calls"])
    records = await played("fc", {"trick": nameless, "wrong": wrong, "right": right}, Unjudged)

    def score(messages):
        try:
            VllmChat.model_validate({"messages": messages})
        except ValueError:
            return 422
        return 1.5 if "Pear" in str(messages) else -1.5

    from sql_agent.tests.conftest import serve_scores

    with serve_scores(score) as url:
        rewarder = Rewarder(RolloutConfig(), RewardModelConfig(url=url), threads=1)
        rollouts = {kind: [rollout_of(record) for record in each] for kind, each in records.items()}
        await asyncio.gather(*(rewarder(rollout) for each in rollouts.values() for rollout in each))
        await rewarder.aclose()
    advantage = mean_advantages(rollouts)
    assert advantage["trick"] == pytest.approx(advantage["wrong"]) and advantage["wrong"] < 0 < advantage["right"]


# the page's table --------------------------------------------------------------------------------------------------

OTHERS = {"not_judged", "reward_not_finite", "no_turns", "no_reply", "response_too_long", "construction_error"}


def reasons_of_code():
    lost = {stop for stop, meaning in ENDS.items() if meaning == "lost"} - {"timeout", "environment_error"}
    named = {*LOST_ADVICE, *_DEADLINES.values(), *SCORER_LOST, *OWN_LOSSES} - {"other"}
    return lost | named | OTHERS


def test_the_page_says_of_every_reason_whether_a_policy_can_bring_it_about_and_what_it_gains():
    said = {name: each.by_policy for kind in ("lost", "judged") for each in reasons(kind) for name in each.names}
    assert set(said) == reasons_of_code() | {stop for stop, meaning in ENDS.items() if meaning != "lost"}
    gains = [re.search(r"gains (-?\d+)", word) for word in said.values()]
    assert sum(int(gain[1]) for gain in gains if gain) == 0
    for name, word in said.items():
        # `your code`: what a user's own code loses is no matter of ours, and the page says how to close it
        assert word.startswith(("no", "your code")) or re.match(r"yes, .*\d tokens?.*; gains 0", word), (name, word)
