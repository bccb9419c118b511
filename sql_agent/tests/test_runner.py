"""The runner before a real store: what it reports, what it tries again, when it ends."""

import asyncio
import contextlib
import math
import threading
import time
from collections import Counter
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from agentgrpo.agl_without_litellm import agl
from agentgrpo.machine import free_port
from dbbench_adapter.datatypes import Score
from dbbench_adapter.engines import BackendUnavailable, open_backend
from dbbench_adapter.generator import generate_tasks
from sql_agent import oracle
from sql_agent.comparison import Excerpt
from sql_agent.credit.row import stitch
from sql_agent.datatypes import Reward, RolloutRecord, ScorerResult
from sql_agent.environments.dbbench import DbBench
from sql_agent.environments.rows import RowTask
from sql_agent.lightning import algorithm, heartbeats, runner
from sql_agent.lightning.agent import SqlLitAgent
from sql_agent.lightning.heartbeats import TRAINER_WORKER
from sql_agent.lightning.runner import ConcurrentRunner, PassiveTracer
from sql_agent.lightning.spans import outcome_text, read_turns
from sql_agent.lightning.store import RetryingStore
from sql_agent.model_address.request_guard import RunRequestGuard
from sql_agent.settings.load import load_config
from sql_agent.source import scoring
from sql_agent.source.datatypes import Rollout
from sql_agent.tests.conftest import HangingServer, runner_ahead, serve_scores, start_store
from sql_agent.tests.faults.proxy import Fault, FaultProxy
from sql_agent.tests.records import reported

pytestmark = pytest.mark.slow

TASKS = generate_tasks(6, seed=7, split="train")
CFG = load_config(None, ["agent.turn_timeout_s=5"])


@contextlib.asynccontextmanager
async def running(store_url, cfg=CFG, *, concurrency=4, agent=None):
    """A runner at work; yields its task, which ends when the runner does, and a client of the store."""
    store, stop = agl.LightningStoreClient(store_url), asyncio.Event()
    worker = ConcurrentRunner(PassiveTracer(), concurrency=concurrency, poll_s=0.02, store_url=store_url)
    worker.init(agent=agent or SqlLitAgent(cfg))
    worker.init_worker(0, store)
    task = asyncio.create_task(worker.iter(event=stop))
    try:
        yield task, store
    finally:
        stop.set()
        await asyncio.wait_for(task, 20)
        await store.close()


async def enqueue(store, base_url, tasks, attempts=2):
    resources = await store.add_resources({"main_llm": agl.LLM(endpoint=base_url, model=oracle.MODEL)})
    config = agl.RolloutConfig(max_attempts=attempts, retry_condition=["failed", "timeout", "unresponsive"])
    ids = []
    for task in tasks:
        rollout = await store.enqueue_rollout(task.to_dict(), resources_id=resources.resources_id, config=config)
        ids.append(rollout.rollout_id)
    return ids


async def play(store, base_url, tasks, attempts=2):
    """Enqueue tasks and wait for their end; returns rollouts and their spans, in order."""
    ids = await enqueue(store, base_url, tasks, attempts)
    async with asyncio.timeout(60):
        while len(done := await store.wait_for_rollouts(rollout_ids=ids, timeout=0)) < len(ids):
            await asyncio.sleep(0.05)
    by_id = {rollout.rollout_id: rollout for rollout in done}
    return [(by_id[i], await store.query_spans(i, attempt_id="latest")) for i in ids]


async def test_every_call_says_whose_it_is(store_url):
    """vLLM's server cannot tell two rollouts apart that say the same words in other tokens, unless they do."""
    asked = []
    with oracle.serve(oracle.app(oracle.replay(TASKS), on_request=asked.append)) as base_url:
        async with running(store_url) as (_, store):
            ended = await play(store, base_url, [TASKS[0]] * 2)
    said = Counter(body["user"] for body in asked)
    assert said == {span.attempt_id: 2 for _, spans in ended for span in spans}  # a statement, then the answer


async def test_a_model_server_that_asks_for_the_token_of_the_run_is_shown_it(store_url):
    with oracle.serve(RunRequestGuard(oracle.app(oracle.replay(TASKS)))) as base_url:
        async with running(store_url) as (_, store):
            ((rollout, spans),) = await play(store, base_url, TASKS[:1])
    assert (rollout.status, reported(spans).reward) == ("succeeded", 1.0)


async def test_every_rollout_ends_with_its_turns_and_its_reward(store_url):
    with oracle.serve(oracle.app(oracle.replay(TASKS))) as base_url:
        async with running(store_url) as (_, store):
            ended = await play(store, base_url, TASKS)
    for task, (rollout, spans) in zip(TASKS, ended, strict=True):
        outcome, turns = reported(spans), read_turns(spans)
        assert outcome is not None
        assert (rollout.status, outcome.reward, outcome.record.stop_reason) == ("succeeded", 1.0, "answered")
        assert (outcome.record.task_id, len(turns)) == (task.id, outcome.record.num_turns)
        row = stitch(turns, max_response_tokens=10_000)
        assert (row.num_turns, row.prefix_break) == (2, None)


async def test_gold_stands_in_no_span_but_beside_the_attempt_for_the_trajectory(store_url):
    secret = "5ecret-go1d"
    gold = {**TASKS[0].to_dict()["gold"], "answers": [secret], "rows": None}
    task = TASKS[0].from_dict(TASKS[0].to_dict() | {"gold": gold, "kind": "other"})
    with oracle.serve(oracle.app(oracle.recite([{"role": "assistant", "content": "I do not know."}]))) as base_url:
        async with running(store_url) as (_, store):
            ((rollout, spans),) = await play(store, base_url, [task])
        patient = RetryingStore(store_url)
        compared = await patient.read_comparison(rollout.rollout_id)
        await patient.close()
    assert reported(spans) is not None
    assert compared is not None and compared["expected"] == asdict(Excerpt.of([(secret,)]))
    assert all(secret not in span.model_dump_json() for span in spans)


async def test_an_unreachable_model_is_tried_again_then_reported_as_unjudged(store_url):
    async with running(store_url) as (_, store):
        ((rollout, spans),) = await play(store, f"http://127.0.0.1:{free_port()}/v1", TASKS[:1])
        attempts = await store.query_attempts(rollout.rollout_id)
    outcome = reported(spans)
    assert outcome is not None
    assert (outcome.reward, outcome.earned.reason) == (None, "model_unavailable")
    assert [attempt.status for attempt in attempts] == ["failed", "succeeded"]


async def test_a_database_that_is_not_there_is_tried_again_then_reported_under_its_own_reason(store_url, monkeypatch):
    monkeypatch.setattr("sql_agent.lightning.agent.RETRY_PAUSE_S", 0.1)
    gone = load_config(None, [f"rollout.backend=mysql://me:secret@127.0.0.1:{free_port()}"])
    async with running(store_url, gone) as (_, store):
        ended = await play(store, f"http://127.0.0.1:{free_port()}/v1", TASKS[:3])
        tries = [len(await store.query_attempts(rollout.rollout_id)) for rollout, _ in ended]
    outcomes = [reported(spans) for _, spans in ended]
    assert tries == [2, 2, 2]
    for outcome in outcomes:
        assert outcome is not None
        assert (outcome.reward, outcome.earned.reason, outcome.record.stop_reason) == (
            None,
            "db_unavailable",
            "db_unavailable",
        )
        assert "it has to run and let 'me' create databases" in (outcome.record.error or "")
        assert "secret" not in outcome_text(outcome)


async def test_rollouts_that_come_at_once_wait_for_one_try_of_the_database(monkeypatch):
    tries = []

    def enter(self):
        tries.append(self)
        time.sleep(0.1)
        raise BackendUnavailable("gone")

    monkeypatch.setattr(DbBench, "__enter__", enter)
    agent = SqlLitAgent(CFG)
    found = await asyncio.gather(*(agent.environment() for _ in range(8)), return_exceptions=True)
    assert (len(tries), {str(error) for error in found}) == (1, {"gone"})
    with pytest.raises(BackendUnavailable):  # the next one makes a try of its own
        await agent.environment()
    assert len(tries) == 2
    await agent.aclose()


async def test_a_rollout_that_ran_into_its_deadline_is_not_played_again(store_url):
    """A second attempt would end after the step that waits for it, under the step's name instead of this one."""
    cfg = load_config(None, ["agent={turn_timeout_s: 0.3, rollout_timeout_s: 1, statement_timeout_s: 0.2}"])
    with oracle.serve(oracle.app(oracle.replay(TASKS), latency_s=5.0)) as base_url:
        async with running(store_url, cfg) as (_, store):
            ((rollout, spans),) = await play(store, base_url, TASKS[:1])
            attempts = await store.query_attempts(rollout.rollout_id)
    outcome = reported(spans)
    assert outcome is not None
    assert (outcome.reward, outcome.record.stop_reason) == (None, "timeout")
    assert [attempt.status for attempt in attempts] == ["succeeded"]


async def test_a_claim_whose_answer_was_lost_goes_back_into_the_queue(store_url, monkeypatch):
    monkeypatch.setattr(runner, "GIVE_BACK_S", 0.5)
    with oracle.serve(oracle.app(oracle.replay(TASKS))) as base_url, FaultProxy(store_url).serving() as proxy:
        async with running(proxy.url) as (_, store):
            proxy.inject(Fault("500", requests=20, path="dequeue"))  # meanwhile the rollout is queued
            proxy.inject(Fault("lost", path="dequeue"))
            ((rollout, spans),) = await play(store, base_url, TASKS[:1])
            attempts = await store.query_attempts(rollout.rollout_id)
    outcome = reported(spans)
    assert outcome is not None
    assert (outcome.reward, [attempt.status for attempt in attempts]) == (1.0, ["failed", "succeeded"])


async def test_a_runner_that_is_told_to_end_does_not_call_its_rollouts_succeeded(store_url):
    with oracle.serve(oracle.app(oracle.replay(TASKS), latency_s=2.0)) as base_url:
        async with running(store_url) as (_, store):
            resources = await store.add_resources({"main_llm": agl.LLM(endpoint=base_url, model=oracle.MODEL)})
            config = agl.RolloutConfig(max_attempts=2, retry_condition=["failed"])
            queued = await store.enqueue_rollout(TASKS[0].to_dict(), resources_id=resources.resources_id, config=config)
            while not await store.query_attempts(queued.rollout_id):
                await asyncio.sleep(0.02)
        store = agl.LightningStoreClient(store_url)
        rollout, (attempt,) = (
            await store.get_rollout_by_id(queued.rollout_id),
            await store.query_attempts(queued.rollout_id),
        )
        await store.update_rollout(queued.rollout_id, status="cancelled")
        await store.close()
    assert (rollout.status, attempt.status) == ("requeuing", "failed")


async def until(condition, within_s):
    """Whether the condition holds within so many seconds."""
    deadline = time.monotonic() + within_s
    while not (held := await condition()) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return held


async def test_cancelled_rollouts_end_within_a_second_and_others_get_their_places(store_url):
    hanging = HangingServer()
    replies = oracle.serve(oracle.app(oracle.replay(TASKS)))
    with replies as base_url, oracle.serve(hanging) as silent_url:
        async with running(store_url, concurrency=2) as (_, store):

            async def everyone_asked():
                return hanging.asked == 2

            async def played():
                return (await store.get_rollout_by_id(waiting)).status == "succeeded"

            async def everyone_left():
                return hanging.left == 2

            late = await enqueue(store, silent_url, TASKS[:2])
            assert await until(everyone_asked, 10)
            (waiting,) = await enqueue(store, base_url, TASKS[:1])  # there is no place for it
            for rollout in late:
                await store.update_rollout(rollout, status="cancelled")
            assert await until(everyone_left, 1.0)
            assert await until(played, 2.0)
            assert hanging.asked == 2  # nobody has tried again
        rollouts = [await store.get_rollout_by_id(rollout) for rollout in late]
        attempts = [len(await store.query_attempts(rollout)) for rollout in late]
    assert ([rollout.status for rollout in rollouts], attempts) == (["cancelled"] * 2, [1, 1])


async def test_the_next_rollout_begins_while_the_last_one_is_reported_and_no_third(store_url, monkeypatch):
    told, asked, add_span = asyncio.Event(), [], RetryingStore.add_span

    async def held(store, span):
        await told.wait()
        return await add_span(store, span)

    monkeypatch.setattr(RetryingStore, "add_span", held)
    with oracle.serve(oracle.app(oracle.replay(TASKS), on_request=asked.append)) as base_url:
        async with running(store_url, concurrency=1) as (_, store):
            rollouts = await enqueue(store, base_url, TASKS[:3])

            async def two_played():
                return len(asked) == 4  # a statement and the answer of each

            async def statuses():
                return [(await store.get_rollout_by_id(rollout)).status for rollout in rollouts]

            async def all_succeeded():
                return await statuses() == ["succeeded"] * 3

            assert await until(two_played, 10)
            await asyncio.sleep(0.3)  # fifteen polls
            assert await statuses() == ["preparing", "preparing", "queuing"]  # no span has arrived
            told.set()
            assert await until(all_succeeded, 10)


async def test_a_statement_that_still_runs_does_not_hold_the_place_of_a_cancelled_rollout(store_url):
    agent = SqlLitAgent(CFG)
    with open_backend("sqlite") as backend, oracle.serve(oracle.app(oracle.replay(TASKS))) as base_url:
        slow = OneSlowStatement(backend, 4.0)
        agent.made = DbBench("strict", backend=slow)
        task = next(task for task in TASKS if task.gold.sql)
        async with running(store_url, concurrency=1, agent=agent) as (_, store):
            (late,) = await enqueue(store, base_url, [task])
            await asyncio.to_thread(slow.started.wait, 10)
            (waiting,) = await enqueue(store, base_url, [task])
            await store.update_rollout(late, status="cancelled")

            async def played():
                return (await store.get_rollout_by_id(waiting)).status == "succeeded"

            assert await until(played, 2.0)
            assert not slow.ended.is_set()


async def test_all_rollouts_in_flight_may_wait_for_their_databases_at_once(store_url):
    """40 are more than the 32 threads that a pool has by default on the largest machine."""
    agent = SqlLitAgent(CFG)
    with open_backend("sqlite") as backend, oracle.serve(oracle.app(oracle.replay(TASKS))) as base_url:
        agent.made = DbBench("strict", backend=Meeting(backend, 40))
        task = next(task for task in TASKS if task.gold.sql)
        async with running(store_url, concurrency=40, agent=agent) as (_, store):
            ended = await play(store, base_url, [task] * 40, attempts=1)
    assert [rollout.status for rollout, _ in ended] == ["succeeded"] * 40


class OneSlowStatement:
    """A backend whose first statement takes `seconds`."""

    def __init__(self, backend, seconds):
        self._backend, self._seconds = backend, seconds
        self.started, self.ended = threading.Event(), threading.Event()

    def open(self, *args, **kwargs):
        database = self._backend.open(*args, **kwargs)
        run = database.run

        def slowly(query):
            if not self.started.is_set():
                self.started.set()
                time.sleep(self._seconds)
                self.ended.set()
            return run(query)

        database.run = slowly
        return database


class Meeting:
    """A backend that opens a database once `count` are asked for at the same time."""

    def __init__(self, backend, count):
        self._backend, self._everyone = backend, threading.Barrier(count, timeout=20)

    def open(self, *args, **kwargs):
        self._everyone.wait()
        self.open = self._backend.open  # judges open one more
        return self._backend.open(*args, **kwargs)


async def test_a_reward_that_raises_loses_its_rollout_and_nothing_else(store_url, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("of the user's own")

    monkeypatch.setattr(scoring, "reward", broken)
    with oracle.serve(oracle.app(oracle.replay(TASKS))) as base_url:
        async with running(store_url) as (_, store):
            ((_, spans),) = await play(store, base_url, TASKS[:1])
    outcome = reported(spans)
    assert outcome is not None
    assert (outcome.reward, outcome.earned.reason) == (None, "reward_error")


async def test_a_function_of_the_users_own_is_asked_in_the_runner_with_the_task_as_it_was_queued(store_url, tmp_path):
    (tmp_path / "my.py").write_text("def f(record):\n    return record.num_turns + len(record.task['id']) / 100\n")
    cfg = load_config(None, ["agent.turn_timeout_s=5", f"rollout.reward={{agentbench: 1, {tmp_path}/my.py:f: 0.5}}"])
    with oracle.serve(oracle.app(oracle.replay(TASKS))) as base_url:
        async with running(store_url, cfg) as (_, store):
            ended = await play(store, base_url, TASKS)
    for task, (_, spans) in zip(TASKS, ended, strict=True):
        outcome = reported(spans)
        assert outcome is not None
        # right, 1, and half of two turns and a hundredth for each letter of the id
        assert outcome.reward == pytest.approx(1.0 + 0.5 * (2 + len(task.id) / 100))


WRONG = [oracle.calls(oracle.call("commit_final_answer", {"answers": ["no such thing"]}))]


def scored_by(url):
    return load_config(None, ["agent.turn_timeout_s=5", f"reward_model.url={url}", "reward_model.timeout_s=0.5"])


async def test_the_score_joins_the_reward_of_a_right_rollout_and_only_the_log_of_a_wrong_one(store_url):
    task = next(task for task in TASKS if not task.changes_state)
    for script, reward in ((oracle.replay(TASKS), 1.2), (oracle.recite(WRONG), 0.0)):
        with oracle.serve(oracle.app(script)) as base_url, serve_scores(lambda _: 100.0) as url:
            async with running(store_url, scored_by(url)) as (_, store):
                ((_, spans),) = await play(store, base_url, [task])
        outcome = reported(spans)
        assert outcome is not None
        assert outcome.reward == pytest.approx(reward)  # tanh(100) = 1: 1 + 0.2, or the preset's 0
        assert outcome.scorer == ScorerResult(100.0, "scored", truncated=False)


async def test_a_scorer_that_is_gone_costs_nobody_the_reward_for_correctness_and_none_is_played_again(store_url):
    task = next(task for task in TASKS if not task.changes_state)
    for script, expected in ((oracle.replay(TASKS), 1.0), (oracle.recite(WRONG), 0.0)):
        with oracle.serve(oracle.app(script)) as base_url:
            async with running(store_url, scored_by(f"http://127.0.0.1:{free_port()}")) as (_, store):
                ((rollout, spans),) = await play(store, base_url, [task])
                attempts = await store.query_attempts(rollout.rollout_id)
        outcome = reported(spans)
        assert outcome is not None
        assert (outcome.reward, outcome.earned.parts["shaping"], outcome.score_failure) == (
            expected, 0.0, "scorer_unavailable",
        )  # fmt: skip
        assert [attempt.status for attempt in attempts] == ["succeeded"]
        assert outcome.scorer_down_s > 0


def test_only_a_rollout_that_asked_in_vain_says_for_how_long_the_scorer_is_down():
    agent = SqlLitAgent(scored_by("http://127.0.0.1:1"))
    agent.rewarder._scorer = SimpleNamespace(down_s=130.0)
    record = RolloutRecord("t", "k", "max_turns", Score(0.0, "no_answer"), 1, 0, [], 1, 1, 1.0)

    def down_s(scorer_result):
        rollout = Rollout("g", {}, played=record, scorer=scorer_result)
        agent.rewarder.reward(rollout, {})
        return rollout.scorer_down_s

    others = [None, ScorerResult(None, "no_answer"), ScorerResult(None, "scorer_refused"), ScorerResult(1.0)]
    assert [down_s(each) for each in others] == [0.0] * 4
    assert down_s(ScorerResult(None, "scorer_unavailable")) == 130.0


async def test_without_a_judge_the_score_is_the_reward_and_nothing_is_played_again(store_url, tmp_path):
    (tmp_path / "mine.py").write_text("class Mine:\n    def reset(self, **row):\n        pass\n")
    question = RowTask("q-0", "Mine", {"prompt": "What is it?", "answer": "5ecret"})
    answer = oracle.recite([{"role": "assistant", "content": "Thunder."}])
    with oracle.serve(oracle.app(answer)) as base_url, serve_scores(lambda _: 1.0) as url:
        settings = [f"env.type={tmp_path}/mine.py:Mine", f"reward_model.url={url}"]
        async with running(store_url, load_config(None, settings)) as (_, store):
            ((rollout, spans),) = await play(store, base_url, [question])
            attempts = await store.query_attempts(rollout.rollout_id)
    outcome = reported(spans)
    assert outcome is not None
    assert (outcome.reward, outcome.earned.reason) == (pytest.approx(math.tanh(1.0)), "scored")
    assert [attempt.status for attempt in attempts] == ["succeeded"]
    assert all("5ecret" not in span.model_dump_json() for span in spans)


OWN = """
class Mine:
    def reset(self, good, **row):
        if not good:
            raise OSError("no docker")

    def get_reward(self):
        return 2.5
"""


async def test_an_environment_of_the_users_own_gives_its_reward_and_is_not_played_again_where_it_raises(
    store_url, tmp_path
):
    (tmp_path / "mine.py").write_text(OWN)
    tasks = [RowTask(f"r-{good}", "Mine", {"prompt": "?", "good": good}) for good in (True, False)]
    answer = oracle.recite([{"role": "assistant", "content": "Thunder."}])
    with oracle.serve(oracle.app(answer)) as base_url:
        async with running(store_url, load_config(None, [f"env.type={tmp_path}/mine.py:Mine"])) as (_, store):
            ended = await play(store, base_url, tasks)
            tries = [len(await store.query_attempts(rollout.rollout_id)) for rollout, _ in ended]
    good, bad = (reported(spans) for _, spans in ended)
    assert good is not None and bad is not None
    assert (good.earned, good.record.success) == (Reward(2.5, "own_reward"), None)
    assert (bad.earned, bad.record.stop_reason) == (Reward(None, "reset_error"), "environment_error")
    assert "OSError: no docker" in bad.record.error
    assert tries == [1, 1]


async def test_it_ends_with_the_trainer_and_with_the_store(monkeypatch):
    monkeypatch.setattr(runner, "STORE_GONE_S", 1.0)
    port = free_port()
    process = start_store(port)
    try:
        async with running(f"http://127.0.0.1:{port}") as (task, store):
            await store.update_worker(TRAINER_WORKER, {"state": "running"})
            await asyncio.sleep(3)
            assert not task.done()
            await store.update_worker(TRAINER_WORKER, {"state": "finished"})
            await asyncio.wait_for(asyncio.shield(task), 6)
        async with running(f"http://127.0.0.1:{port}") as (task, store):
            await store.update_worker(TRAINER_WORKER, {"state": "running"})
            process.kill()
            started = time.monotonic()
            await asyncio.wait_for(asyncio.shield(task), 30)
            assert time.monotonic() - started > 1.0
    finally:
        process.kill()
        process.wait(10)


async def test_runners_whose_clocks_are_off_play_and_end_with_the_trainer(store_url, monkeypatch):
    monkeypatch.setattr(algorithm, "HEARTBEAT_S", 0.3)
    store = RetryingStore(store_url)
    trainer = asyncio.create_task(algorithm.heartbeat(store, "run"))
    with (
        oracle.serve(oracle.app(oracle.replay(TASKS), latency_s=0.2)) as base_url,
        runner_ahead(store_url, 600.0) as ahead,
        runner_ahead(store_url, -600.0) as behind,
    ):
        assert {await asyncio.to_thread(each.stdout.readline) for each in (ahead, behind)} == {"plays\n"}
        ended, players = await play(store, base_url, TASKS * 4), set()
        for rollout, spans in ended:
            (attempt,) = await store.query_attempts(rollout.rollout_id)
            players.add(attempt.worker_id)
            times = [rollout.start_time, attempt.start_time, attempt.last_heartbeat_time, rollout.end_time]
            assert (reported(spans).reward, times) == (1.0, sorted(times))
            assert abs(time.time() - rollout.end_time) < 60  # by the store's clock, which is this one
        assert len(players) == 2
        await asyncio.sleep(7)  # more than the limit
        assert (ahead.poll(), behind.poll()) == (None, None)
        trainer.cancel()
        await algorithm.tell_store(store, {"state": "finished"})
        assert [await asyncio.to_thread(each.wait, 20) for each in (ahead, behind)] == [0, 0]
    await store.close()


@pytest.mark.parametrize("ahead_s", [600.0, -600.0], ids=["ahead", "behind"])
async def test_it_ends_with_the_trainer_whatever_the_clock_of_the_store_says(monkeypatch, caplog, ahead_s):
    monkeypatch.setattr(algorithm, "HEARTBEAT_S", 0.3)
    monkeypatch.setattr(heartbeats, "TRAINER_GONE_S", 4.0)
    port = free_port()
    process = start_store(port, ahead_s=ahead_s)
    try:
        for last_words in [{"state": "finished"}, None]:
            async with running(f"http://127.0.0.1:{port}") as (task, store):
                trainer = asyncio.create_task(algorithm.heartbeat(store, "run"))
                await asyncio.sleep(7)  # more than the limit
                assert not task.done()
                trainer.cancel()
                if last_words:
                    await algorithm.tell_store(store, last_words)
                await asyncio.wait_for(asyncio.shield(task), 12)
            assert ("the trainer has been silent" in caplog.text) == (last_words is None)
    finally:
        process.kill()
        process.wait(10)
