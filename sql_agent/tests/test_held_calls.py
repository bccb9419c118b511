"""New weights hold calls, and no deadline counts it: store, LLM proxy, runner and players are the real ones, the model
server stands still as vLLM does, and the trainer's word to the proxy is the real one.
"""

import asyncio
import os
import time
from functools import partial
from types import SimpleNamespace

import pytest
import requests
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentgrpo.agl_without_litellm import agl
from sql_agent import oracle
from sql_agent.lightning.agent import SqlLitAgent
from sql_agent.lightning.spans import read_turns
from sql_agent.model_address import weight_sync_pause
from sql_agent.model_address.request_guard import RUN_TOKEN, authorization
from sql_agent.model_address.weight_sync_pause import (
    LONGEST_HOLD_S,
    WeightSyncPauses,
    ask_held,
    deadline,
    paused_for_weight_sync,
)
from sql_agent.settings.load import load_config
from sql_agent.tests.conftest import llm_proxy
from sql_agent.tests.records import reported
from sql_agent.tests.test_runner import TASKS, running
from sql_agent.tests.test_user_agents import task
from sql_agent.user_agents.play import play_agent as play_own
from sql_agent.user_agents.play import policy_of

# longer than a turn may take, a rollout may take, and a client waits for a proxy that does not answer (`GRACE_S`)
SAMPLING_S, PUSH_S = 0.3, 7.0
SETTINGS = ["agent={turn_timeout_s: 1, rollout_timeout_s: 3, statement_timeout_s: 0.5}"]
LAGGED = load_config(None, [*SETTINGS, "trainer.max_off_policy_steps=1", "llm_proxy=true"])


def test_what_is_held_of_the_last_seconds():
    now = SimpleNamespace(s=100.0)
    holds = WeightSyncPauses(lambda: now.s)
    for now.s, held in ((110.0, True), (114.0, False), (120.0, True)):
        holds.set(held)
    now.s = 125.0
    # held from 110 to 114 and from 120 on; of the last 13 s (from 112) that is 2 + 5
    assert [holds.seconds(last) for last in (1.0, 5.0, 11.0, 13.0, 100.0)] == [1.0, 5.0, 5.0, 7.0, 9.0]
    now.s = 120.0 + LONGEST_HOLD_S + 50.0  # nobody says that it ended
    assert holds.seconds(10_000.0) == 4.0 + LONGEST_HOLD_S
    holds.set(False)
    assert holds.seconds(10_000.0) == 4.0 + LONGEST_HOLD_S


async def test_a_deadline_comes_as_much_later_as_was_held():
    async def held_s(_):
        return 0.5

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with deadline(0.2, held_s):
            await asyncio.sleep(5)
    assert 0.7 <= time.monotonic() - began < 1.2


async def test_a_deadline_comes_although_it_cannot_be_told_what_was_held(caplog):
    async def held_s(_):
        raise TypeError("float() argument must be a string or a real number, not 'list'")

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with deadline(0.2, held_s):
            await asyncio.sleep(3)
    assert time.monotonic() - began < 1.0
    assert "it cannot be told for how long calls were held" in caplog.text and "not 'list'" in caplog.text


async def test_a_proxy_that_is_gone_lets_the_deadline_pass(monkeypatch):
    monkeypatch.setattr(weight_sync_pause, "_TELL_END_S", 0.5)
    assert await ask_held("http://127.0.0.1:9", 3.0) == 0.0
    began = time.monotonic()
    async with paused_for_weight_sync("http://127.0.0.1:9"):  # nor does it stop the update
        pass
    assert 0.5 <= time.monotonic() - began < 2.0


async def test_a_proxy_that_does_not_answer_is_told_again_that_the_hold_has_ended(monkeypatch, caplog):
    """It takes 0.4 s over the first question and the first two tellings; the trainer waits 0.1 s."""
    told = []

    async def answers_late(request):
        if request.method == "POST":
            told.append((await request.json())["held"])
        if len(told) < 3:
            await asyncio.sleep(0.4)
        return JSONResponse({"seconds": 0.0})

    monkeypatch.setattr(weight_sync_pause, "_ASK_S", 0.1)
    app = Starlette(routes=[Route(weight_sync_pause.PATH, answers_late, methods=["GET", "POST"])])
    with oracle.serve(app) as url:
        proxy_url = url.removesuffix("/v1")
        assert await ask_held(proxy_url, 3.0) == 0.0
        async with paused_for_weight_sync(proxy_url):
            pass
    assert told == [True, False, False]  # a beginning that is lost makes a deadline come earlier, and is let go
    assert [each.getMessage() for each in caplog.records if each.name == weight_sync_pause.__name__] == [
        "the LLM proxy does not say for how long calls were held: TimeoutError",
        "the LLM proxy was not told that calls are held=True: TimeoutError",
    ]


def answer(messages):
    said = oracle.replay(TASKS)(messages)
    return said if said.get("status") is None else {"role": "assistant", "content": "done"}


class Sampler:
    """Ends the calls that are open when new weights come, and answers none before they are there, as vLLM does."""

    def __init__(self) -> None:
        self.app, self.asked, self.stands_still = oracle.app(answer), 0, False

    async def __call__(self, scope, receive, send):
        self.asked += 1
        while self.stands_still:
            await asyncio.sleep(0.01)
        sampled = time.monotonic() + SAMPLING_S
        while time.monotonic() < sampled:
            if self.stands_still:
                half = {"index": 0, "message": {"role": "assistant", "content": "SEL"}, "finish_reason": "abort"}
                await JSONResponse({"choices": [half]})(scope, receive, send)
                return
            await asyncio.sleep(0.01)
        await self.app(scope, receive, send)


@pytest.fixture(scope="module")
def sampler():
    return Sampler()


@pytest.fixture(scope="module")
def proxy_url(store_url, sampler):
    turn_s = LAGGED.agent.turn_timeout_s
    with oracle.serve(sampler) as url, llm_proxy(store_url, url, timeout_s=turn_s) as proxy:
        yield proxy


async def push(sampler, proxy_url):
    """New weights, once a call is open; None for the proxy: it is not told."""
    asked = sampler.asked
    while sampler.asked == asked:
        await asyncio.sleep(0.01)
    async with paused_for_weight_sync(proxy_url):
        sampler.stands_still = True
        await asyncio.sleep(PUSH_S)
        sampler.stands_still = False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "end"),
    [(True, (1.0, "match", "answered")), (False, (None, "model_deadline", "timeout"))],
    ids=["the_proxy_is_told", "else_it_is_lost"],
)
async def test_a_rollout_outlives_the_push_of_new_weights(store_url, proxy_url, sampler, told, end):
    config = agl.RolloutConfig(max_attempts=1)
    async with running(store_url, LAGGED, agent=SqlLitAgent(LAGGED)) as (_, store):
        llm = agl.ProxyLLM(endpoint=proxy_url, model="policy-0")
        resources = (await store.add_resources({"main_llm": llm})).resources_id
        pushed = asyncio.create_task(push(sampler, proxy_url if told else None))
        asked = await store.enqueue_rollout(TASKS[0].to_dict(), resources_id=resources, config=config)
        async with asyncio.timeout(30):
            while not (await store.wait_for_rollouts(rollout_ids=[asked.rollout_id], timeout=0)):
                await asyncio.sleep(0.05)
        await pushed
        spans = await store.query_spans(asked.rollout_id, attempt_id="latest")
    outcome = reported(spans)
    assert (outcome.reward, outcome.earned.reason, outcome.record.stop_reason) == end
    if told:
        assert [turn.asked_again for turn in read_turns(spans)] == [1, 0]
        assert outcome.record.seconds > PUSH_S


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "end"),
    [(True, ("no_judge", "answered")), (False, ("rollout_deadline", "timeout"))],
    ids=["the_proxy_is_told", "else_it_is_lost"],
)
async def test_so_does_an_agent_of_the_users_own(store_url, proxy_url, sampler, load, told, end):
    store = agl.LightningStoreClient(store_url)
    rollout = await store.start_rollout(input={}, mode="train")
    policy, asked = policy_of(proxy_url, "policy-0", LAGGED.agent, rollout, seed=None, holds=1), sampler.asked
    pushed = asyncio.create_task(push(sampler, proxy_url if told else None))
    agent = load("from agents import Agent\nagent = Agent(name='one')")
    held_s = partial(ask_held, proxy_url)
    record = await play_own(agent, task(prompt="go"), policy, LAGGED.agent, others_reward=True, held_s=held_s)
    await pushed
    await store.close()
    assert (record.score.reason, record.stop_reason) == end
    assert not told or sampler.asked - asked == 2  # by the proxy: the agent's client has not given up and tried again


@pytest.mark.parametrize(("holds", "waits_s"), [(0, 90.0), (1, 690.0), (2, 1290.0)])
def test_an_agents_own_client_waits_for_every_push_that_a_call_may_meet(monkeypatch, holds, waits_s):
    monkeypatch.setenv(RUN_TOKEN, "token")
    rollout = SimpleNamespace(rollout_id="r", attempt=SimpleNamespace(attempt_id="a"))
    policy = policy_of("http://127.0.0.1:1", "policy-0", load_config(None).agent, rollout, seed=None, holds=holds)
    assert policy.turn_timeout_s == waits_s


@pytest.mark.slow
def test_only_the_run_itself_may_say_and_ask_what_is_held(proxy_url):
    assert requests.post(f"{proxy_url}/weight_sync_pause", json={"held": True}).status_code == 401
    assert requests.get(f"{proxy_url}/weight_sync_pause").status_code == 401
    headers = authorization(RUN_TOKEN)
    assert os.environ[RUN_TOKEN] and requests.get(f"{proxy_url}/weight_sync_pause", headers=headers).json() == {
        "seconds": 0.0
    }
