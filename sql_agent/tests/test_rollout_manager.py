"""From verl's prompt rows to verl's batch, with a real store and runner and a scripted model server."""

import asyncio
import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import requests

from agentgrpo.agl_without_litellm import agl
from agentgrpo.machine import free_port
from dbbench_adapter.export import write_verl_parquet
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.protocols import gold_answers
from sql_agent import oracle
from sql_agent.lightning.agent import SqlLitAgent
from sql_agent.lightning.runner import ConcurrentRunner, PassiveTracer
from sql_agent.lightning.store import RetryingStore
from sql_agent.settings.load import load_config
from sql_agent.source import run_context, stops
from sql_agent.source.batch import CREDIT
from sql_agent.source.run_context import RunContext
from sql_agent.tests.conftest import runner_ahead, start_store
from sql_agent.tests.test_ranking import Longest

pytestmark = pytest.mark.slow

KNOWN = generate_tasks(2, seed=3, split="train")
UNKNOWN = generate_tasks(1, seed=4, split="train")[0]
"""Of this one the model server knows nothing: it answers 404, which is no doing of the policy."""
SETTINGS = [
    "agent.rollout_timeout_s=15",
    "agent.turn_timeout_s=5",
    "rollout.span_timeout_s=1",
    "rollout.max_resamples=0",
]


@pytest.fixture
def play(store_url, tmp_path):
    """Runs batches through a manager: `play(tasks, settings, runner=True, replacements=(), script=)`.

    Returns (batch, metrics) of the last of `steps` batches. `replacements` are the training tasks that a group without
    spread may give way to; without any, none does.
    """

    def run(
        tasks,
        *settings,
        runner=True,
        replacements=(),
        script=None,
        store=store_url,
        steps=1,
        open_groups=None,
        validate=False,
    ):
        import torch
        from verl import DataProto

        from sql_agent.verl_side.rollout_manager import RolloutManager

        cfg = load_config(None, [f"run_dir={tmp_path}", *SETTINGS, *settings])
        if cfg.trainer.max_off_policy_steps:
            cfg = cfg.model_copy(update={"llm_proxy": False})  # here the runner traces
        train_file = tmp_path / "train.parquet"
        write_verl_parquet([*tasks, *replacements], train_file)
        if open_groups:
            (tmp_path / run_context.OPEN_GROUPS).write_text(json.dumps(open_groups))
        with oracle.serve(oracle.app(script or oracle.replay(KNOWN), model="policy")) as base_url:
            address = base_url.removeprefix("http://").removesuffix("/v1")
            context = RunContext(cfg, "run", store, 0, lambda _: None)
            run_context.enter(context)
            config = SimpleNamespace(
                actor_rollout_ref=SimpleNamespace(model=SimpleNamespace(path="policy")),
                data=SimpleNamespace(train_files=str(train_file)),
                trainer=SimpleNamespace(resume_from_path=str(tmp_path) if open_groups else None),
            )
            manager = RolloutManager(config, SimpleNamespace(_load_balancer=SimpleNamespace(addresses=[address])))
            rows = [task for task in tasks for _ in range(2)]  # a group of two each, as verl repeats them
            prompts = DataProto.from_dict(
                tensors={"dummy": torch.zeros(len(rows), 1)},
                non_tensors={
                    "extra_info": np.array([{"task": json.dumps(task.to_dict())} for task in rows], dtype=object),
                    "uid": np.array([task.id for task in rows], dtype=object),
                },
                meta_info={"global_steps": 1, "validate": validate},
            )
            stop = threading.Event()
            thread = threading.Thread(target=_work, args=(cfg, store, stop))
            if runner:
                thread.start()
            try:
                for prompts.meta_info["global_steps"] in range(1, steps):
                    manager.generate_sequences(prompts)
                prompts.meta_info["global_steps"] = steps
                return manager.generate_sequences(prompts), dict(context.step_metrics) | {
                    "open": context.open_groups(),
                    "due": [slot.due for slot in manager.source.open],
                }
            finally:
                stop.set()
                if runner:
                    thread.join(20)

    return run


def _work(cfg, store_url, stop):
    async def work():
        store = agl.LightningStoreClient(store_url)
        worker = ConcurrentRunner(PassiveTracer(), concurrency=4, poll_s=0.02, store_url=store_url)
        worker.init(agent=SqlLitAgent(cfg))
        worker.init_worker(0, store)
        await worker.iter(event=stop)
        await store.close()

    asyncio.run(work())


def sampled_text(batch, row):
    """What the mask marks as sampled, back as text: the scripted server's ids are bytes."""
    responses, mask = batch.batch["responses"][row], batch.batch["response_mask"][row].bool()
    return bytes(responses[mask].tolist()).decode()


def test_rows_answer_the_prompts_one_to_one_and_only_sampled_ids_are_trained(play):
    batch, metrics = play(KNOWN)
    for row, task in enumerate(task for task in KNOWN for _ in range(2)):
        sql = oracle.call("execute_sql", {"query": task.gold.sql})
        commit = oracle.call("commit_final_answer", {"answers": gold_answers(task)})
        replies = [oracle.calls(sql), oracle.calls(commit)]
        assert sampled_text(batch, row) == bytes(oracle.byte_ids(replies)).decode()
        last = int(batch.batch["response_mask"][row].nonzero().max())
        assert batch.batch["rm_scores"][row].nonzero().tolist() == [[last]]
        assert batch.batch["rm_scores"][row, last] == 1.0
    assert (metrics["reward/mean"], metrics["reward/unjudged_frac"]) == (1.0, 0.0)
    assert (metrics["group/count"], metrics["group/zero_std_frac"], metrics["group/all_right_frac"]) == (2.0, 1.0, 1.0)
    assert (metrics["rollout/turns"], metrics["prefix/broken_frac"]) == (2.0, 0.0)


def test_a_trajectory_says_what_the_judge_compared(play, tmp_path):
    task = next(task for task in KNOWN if not task.changes_state)
    play([task])
    (file,) = (tmp_path / "trajectories").iterdir()
    compared = json.loads(file.read_text().splitlines()[0])["comparison"]
    assert (compared["submitted"], compared["reference"]) == (task.gold.sql, task.gold.sql)
    assert compared["expected"]["count"] == len(task.gold.rows or ())


def test_lost_rollouts_are_masked_and_counted_by_reason(play):
    batch, metrics = play([KNOWN[0], UNKNOWN])
    assert batch.batch["response_mask"].sum(dim=1).bool().tolist() == [True, True, False, False]
    assert batch.batch["rm_scores"].sum(dim=1).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert (metrics["reward/unjudged_frac"], metrics["rollout/lost/model_unavailable"]) == (0.5, 2.0)
    assert metrics["reward/mean"] == 1.0  # the lost ones are no zeros


def test_a_step_that_loses_too_much_stops_with_the_reason(play):
    with pytest.raises(RuntimeError, match=r"2 of 2 rollouts were lost.*'model_unavailable' \(2 times; the first: "):
        play([UNKNOWN])


def test_steps_that_break_too_many_rollouts_stop_the_run(play, monkeypatch):
    """The scripted server writes the number of messages in front of them, so that every second prompt is another."""
    written = oracle.byte_ids
    monkeypatch.setattr(oracle, "byte_ids", lambda history: [len(history), *written(history)])
    monkeypatch.setattr(stops, "STEPS", 1)
    words = r"100% of the rollouts broke.*rollout.max_broken_fraction=0.5.*'template' \(4 times"
    with pytest.raises(RuntimeError, match=words):
        play(KNOWN, "rollout.max_broken_fraction=0.5")
    _, metrics = play(KNOWN, "rollout.max_broken_fraction=1")
    assert metrics["prefix/broken_frac"] == 1.0


def test_a_step_whose_reward_model_is_gone_stops_and_says_so(play):
    """No share of lost rollouts would stop this one."""
    port = free_port()
    settings = [f"reward_model.url=http://127.0.0.1:{port}", "reward_model.timeout_s=1", "reward_model.give_up_s=1"]
    words = rf"http://127.0.0.1:{port} has given no score for \d s.*agentgrpo reward serve --model MERGED --port {port}"
    with pytest.raises(RuntimeError, match=words):
        play(KNOWN, *settings, "rollout.max_lost_fraction=1")


@pytest.mark.parametrize(
    ("settings", "held_s"), [([], 0.0), (["trainer.max_off_policy_steps=2", "llm_proxy=true"], 2 * 600.0)]
)
def test_the_store_gives_a_rollout_time_to_be_judged_after_its_deadline(play, store_url, settings, held_s):
    """Or it would be played a second time while its verdict is on its way, or new weights hold its calls."""

    async def timeouts():
        store = RetryingStore(store_url)
        try:
            return {each.rollout_id: each.config.timeout_seconds for each in await store.query_rollouts()}
        finally:
            await store.close()

    before = asyncio.run(timeouts())  # other tests use the same store
    play(KNOWN, "trainer.steps=1", *settings)
    ours = {seconds for number, seconds in asyncio.run(timeouts()).items() if number not in before}
    # 15 s to play, 60 for the call that is open, the judge and the end, no reward to wait for, 30 for the machine
    assert ours == {105.0 + held_s}


def test_without_a_runner_the_step_ends_at_its_deadline(play):
    settings = ["rollout.step_timeout_s=1", "agent.rollout_timeout_s=1", "agent.turn_timeout_s=0.3"]
    with pytest.raises(RuntimeError, match=r"'step_deadline' \(4 times\).*start more runners"):
        play(KNOWN, *settings, "agent.statement_timeout_s=0.3", runner=False)


def test_the_seconds_to_the_batch_are_the_trainers_own_whatever_the_runners_clock_says(play, store_url):
    with runner_ahead(store_url, 600.0, *SETTINGS):
        _, metrics = play(KNOWN, runner=False)
    assert 0 < metrics["time/batch_ready_s"] < 2
    assert metrics["time/batch_ready_s"] < metrics["time/rollout_s"] < 100


def test_a_rollout_that_is_given_up_ends_for_the_seconds_to_the_batch_when_it_is_given_up(play):
    settings = ["rollout.step_timeout_s=2", "agent.rollout_timeout_s=1", "agent.turn_timeout_s=0.3"]
    lenient = ["agent.statement_timeout_s=0.3", "rollout.max_lost_fraction=1"]
    _, metrics = play(KNOWN, *settings, *lenient, runner=False)
    assert metrics["time/batch_ready_s"] < 1 < 2 <= metrics["time/rollout_s"]


def half_right(task, others):
    """A script that solves `others`, and `task` in the first of two rollouts only."""
    replies, asked = oracle.replay([task, *others]), []

    def answer(history):
        if task.question not in str(history) or history[-1]["role"] == "tool":
            return replies(history)
        asked.append(task)
        return (
            replies(history) if len(asked) == 1 else oracle.calls(oracle.call("commit_final_answer", {"answers": []}))
        )

    return answer


def test_a_zero_variance_group_gives_way_to_another_task(play, tmp_path):
    first, replacement = KNOWN
    batch, metrics = play(
        [first], "rollout.max_resamples=2", replacements=[replacement], script=half_right(replacement, [first])
    )
    rewards = batch.batch["rm_scores"].sum(dim=1).tolist()
    assert sorted(rewards) == [0.0, 1.0]
    assert replacement.gold.sql in sampled_text(batch, rewards.index(1.0))
    assert {name: value for name, value in metrics.items() if name.startswith("group/")} == {
        "group/count": 1.0,
        "group/zero_std_frac": 0.0,
        "group/all_right_frac": 0.0,
        "group/all_wrong_frac": 0.0,
        "group/lone_frac": 0.0,
        "group/played": 2.0,
        "group/set_aside_frac": 0.5,
        "group/set_aside/all_right": 1.0,
        "group/resampling_too_late": 0.0,
    }
    assert (metrics["rollout/count"], metrics["reward/mean"]) == (
        4.0,
        1.0,
    )  # the reward is that of the task the batch began with
    lines = [json.loads(line) for line in (tmp_path / "trajectories/train_000001.jsonl").read_text().splitlines()]
    # one of two right: mean 0.5, unbiased std 0.7071, so -/+ 0.7071
    assert sorted((line["task_id"], line["reward"], line["set_aside"], line["advantage"]) for line in lines) == sorted([
        (first.id, 1.0, "all_right", None),
        (first.id, 1.0, "all_right", None),
        (replacement.id, 0.0, None, pytest.approx(-0.7071, abs=1e-4)),
        (replacement.id, 1.0, None, pytest.approx(0.7071, abs=1e-4)),
    ])  # fmt: skip


def test_the_rollouts_of_a_group_are_ranked_where_the_reward_names_it(play, tmp_path):
    """The right one has the longer conversation, which the judge of these tests prefers: 1 and half of its place."""
    first = KNOWN[0]
    (tmp_path / "rubric.txt").write_text("Prefer long answers.")
    with Longest().serve() as url:
        settings = [
            "rollout.reward={agentbench: 1.0, ranking: 0.5}",
            f"judge={{url: {url}, model: big, rubric: {tmp_path / 'rubric.txt'}, timeout_s: 30}}",
        ]
        play([first], *settings, script=half_right(first, []))
    lines = [json.loads(line) for line in (tmp_path / "trajectories" / "train_000001.jsonl").read_text().splitlines()]
    assert sorted((line["reward"], line["reward_parts"]["ranking"]) for line in lines) == [(0.0, 0.0), (1.5, 1.0)]


def test_a_group_that_no_time_was_left_to_replace_is_trained_on_and_counted(play):
    """A rollout may take as long as the whole step, so a second one would not end in time."""
    first, replacement = KNOWN
    settings = ["rollout.max_resamples=2", "rollout.step_timeout_s=15"]
    batch, metrics = play([first], *settings, replacements=[replacement], script=half_right(replacement, [first]))
    assert all(first.gold.sql in sampled_text(batch, row) for row in range(2))
    assert (metrics["group/resampling_too_late"], metrics["group/played"], metrics["group/zero_std_frac"]) == (
        1.0,
        1.0,
        1.0,
    )


def test_where_no_draw_has_spread_the_first_one_is_trained_on(play):
    first, replacement = KNOWN
    batch, metrics = play([first], "rollout.max_resamples=1", replacements=[replacement])
    assert all(first.gold.sql in sampled_text(batch, row) for row in range(2))
    assert (metrics["group/zero_std_frac"], metrics["group/set_aside/all_right"]) == (1.0, 1.0)


@pytest.fixture
def new_store_url():
    port = free_port()
    process = start_store(port)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(20)


def in_store(url):
    """Rollouts, spans and published resources in the store; the states of the rollouts."""
    statistics = requests.get(f"{url}/v1/agl/statistics", timeout=5).json()
    rollouts = requests.get(f"{url}/v1/agl/rollouts", timeout=5).json()["items"]
    numbers = [statistics[name] for name in ("total_rollouts", "total_spans", "total_resources")]
    return numbers, {rollout["status"] for rollout in rollouts}


def test_the_store_holds_no_spans_between_steps(play, new_store_url):
    batch, _ = play(KNOWN, store=new_store_url, steps=3)
    assert batch.batch["rm_scores"].sum(dim=1).tolist() == [1.0] * 4
    assert in_store(new_store_url) == ([12, 0, 1], {"succeeded"})  # 3 steps of 2 tasks twice; one address


def test_a_rollout_that_ends_as_its_step_does_leaves_nothing(play, new_store_url, monkeypatch):
    async def silent(self, **_):  # all of them end, and the manager does not hear of it in time
        return []

    monkeypatch.setattr(RetryingStore, "wait_for_rollouts", silent)
    settings = ["rollout.step_timeout_s=5", "agent.rollout_timeout_s=4", "agent.turn_timeout_s=1.3"]
    _, metrics = play(
        KNOWN, *settings, "agent.statement_timeout_s=1", "rollout.max_lost_fraction=1", store=new_store_url
    )
    assert metrics["rollout/lost/step_deadline"] == 4.0
    assert in_store(new_store_url) == ([4, 0, 1], {"cancelled"})


# reward functions -----------------------------------------------------------------------------------------------------


def lines_of(folder):
    return [json.loads(line) for line in (folder / "trajectories" / "train_000001.jsonl").read_text().splitlines()]


def test_rewards_of_turns_are_credited_by_turn_and_the_trajectories_say_what_verl_trains_on(play, tmp_path):
    (tmp_path / "my.py").write_text(
        "import itertools\ncount = itertools.count()\ndef f(record):\n    return [float(next(count)), 0]\n"
    )
    batch, metrics = play(KNOWN[:1], f"rollout.reward={tmp_path}/my.py:f")
    scores, mask = batch.batch["rm_scores"], batch.batch["response_mask"]
    sql = oracle.byte_ids([oracle.calls(oracle.call("execute_sql", {"query": KNOWN[0].gold.sql}))])
    ends = [len(sql) - 1, int(mask[0].nonzero().max())]
    assert sorted(scores[:, ends].tolist()) == [[0.0, 0.0], [0.0, 1.0]]
    # {0, 0, 1, 0}: mean 1/4, std 1/2: the first turn of the better rollout has 1.5 - 0.5, the other's -0.5 - 0.5
    credited = batch.batch[CREDIT]
    np.testing.assert_allclose(sorted(credited[:, ends].tolist()), [[-1.0, -0.5], [1.0, -0.5]], atol=1e-4)
    assert sorted(line["turn_advantages"] for line in lines_of(tmp_path)) == sorted(credited[:, ends].tolist())
    assert (metrics["reward/f"], metrics["reward/mean"], metrics["group/zero_std_frac"]) == (0.5, 0.5, 0.0)


def test_a_function_that_fails_loses_its_rollouts_with_the_traceback_in_the_trajectory(play, tmp_path):
    wanted = KNOWN[0].id
    (tmp_path / "my.py").write_text(f"def f(record):\n    return 1 / (record.task['id'] == {wanted!r})\n")
    settings = "rollout.reward={agentbench: 1, " + f"{tmp_path}/my.py:f" + ": 0.5}"
    batch, metrics = play(KNOWN, settings)
    assert batch.batch["rm_scores"].sum(dim=1).tolist() == [1.5, 1.5, 0.0, 0.0]
    assert (metrics["rollout/lost/reward_error"], metrics["reward/f/none_frac"]) == (2.0, 0.5)
    lost = [line["reward_error"] for line in lines_of(tmp_path) if line["lost"]]
    assert len(lost) == 2
    assert all("ZeroDivisionError" in trace and 'my.py", line 2, in f' in trace for trace in lost)
    where = r'File ".*my.py", line 2, in f: ZeroDivisionError: division by zero'
    words = rf"2 of 2 rollouts were lost.*'reward_error' \(2 times; the first: {where}\).*has the traceback"
    with pytest.raises(RuntimeError, match=words):
        play(KNOWN[1:], settings)


def test_a_judge_that_is_gone_leaves_correctness_and_stops_the_run_where_that_is_not_allowed(play, tmp_path):
    (tmp_path / "rubric.txt").write_text("Be fair.")
    judge = f"judge={{url: http://127.0.0.1:{free_port()}/v1, model: m, rubric: {tmp_path}/rubric.txt, attempts: 1}}"
    settings = ["rollout.reward={agentbench: 1, judge: 0.5}", judge]
    batch, metrics = play(KNOWN, *settings, "rollout.max_lost_fraction=1")
    assert batch.batch["rm_scores"].sum(dim=1).tolist() == [1.0] * 4
    assert (metrics["rollout/unshaped/judge_unavailable"], metrics["reward/judge/none_frac"]) == (4.0, 1.0)
    with pytest.raises(RuntimeError, match=r"4 of 4 rollouts were lost.*'judge_unavailable'.*judge.concurrency"):
        play(KNOWN, *settings)


def test_with_a_lag_one_batch_more_is_open_and_the_last_step_opens_none(play):
    settings = ["trainer.max_off_policy_steps=1", "llm_proxy=true", "trainer.steps=2"]
    _, first = play(KNOWN, *settings)
    assert (first["lag/open_groups"], first["open"]["batches"]) == (2.0, 2)
    assert [slot["batch"] for slot in first["open"]["slots"]] == [2, 2]
    assert first["due"] == [2, 2]  # step 2 is the last that may train what step 1 began
    _, last = play(KNOWN, *settings, steps=2)
    assert (last["lag/open_groups"], last["open"]) == (0.0, {"batches": 2, "slots": []})


def test_a_resumed_run_plays_the_open_groups_of_its_checkpoint_again(play):
    left = {"batches": 2, "slots": [{"number": 1, "task": KNOWN[1].to_dict(), "batch": 2}]}
    batch, metrics = play(
        [KNOWN[0]], "trainer.max_off_policy_steps=1", "llm_proxy=true", "trainer.steps=1", open_groups=left
    )
    sql = oracle.call("execute_sql", {"query": KNOWN[1].gold.sql})
    assert bytes(oracle.byte_ids([oracle.calls(sql)])).decode() in sampled_text(batch, 0)  # not verl's task of the step
    assert metrics["open"] == {"batches": 2, "slots": []}


def test_a_run_that_goes_on_without_its_lag_plays_the_open_groups_first_and_keeps_those_that_wait(play):
    left = [{"number": number, "task": task.to_dict(), "batch": 2 + number} for number, task in enumerate(KNOWN)]
    batch, metrics = play([KNOWN[1]], "trainer.steps=2", open_groups={"batches": 3, "slots": left})
    sql = oracle.call("execute_sql", {"query": KNOWN[0].gold.sql})
    assert bytes(oracle.byte_ids([oracle.calls(sql)])).decode() in sampled_text(batch, 0)
    assert metrics["open"] == {"batches": 3, "slots": left[1:]}


@pytest.mark.parametrize(("lag", "first_out"), [(1, True), (0, None)])
def test_with_a_lag_replacements_and_validations_do_not_wait_behind_batches_that_are_open(
    play, new_store_url, lag, first_out
):
    first, replacement = KNOWN
    settings = [f"trainer.max_off_policy_steps={lag}", f"llm_proxy={lag > 0}", "trainer.steps=1"]
    script = half_right(replacement, [first])
    store = {"script": script, "store": new_store_url}
    play([first], *settings, "rollout.max_resamples=1", replacements=[replacement], **store)
    play([first], *settings, validate=True, **store)
    found = requests.get(f"{new_store_url}/v1/agl/rollouts", timeout=5).json()["items"]
    queued = sorted((each["mode"], each["input"]["id"], str(each["metadata"].get("first"))) for each in found)
    assert queued == sorted([
        *[("train", first.id, "None")] * 2, *[("train", replacement.id, str(first_out))] * 2,
        *[("val", first.id, str(first_out))] * 2,
    ])  # fmt: skip


@pytest.mark.parametrize(("planned", "begun"), [(20, 6), (3, 4), (2, 2)])
def test_with_a_lag_no_more_begins_than_the_planned_steps_still_train(planned, begun):
    """`trainer.minutes` had planned the end at the next step, and whole batches began that no step took."""
    from sql_agent.verl_side.rollout_manager import RolloutManager

    def drawn(*_):
        return [SimpleNamespace(groups=[[1, 2]], batch=0, due=0) for _ in range(2)]

    cfg = load_config(None, ["trainer.steps=20", "trainer.max_off_policy_steps=2", "llm_proxy=true"])
    manager = SimpleNamespace(
        run=SimpleNamespace(cfg=cfg, steps=planned), source=SimpleNamespace(open=[]), _batches=None, _resumed=None,
        _drawn=drawn,
    )  # fmt: skip
    assert len(RolloutManager._begun(manager, drawn(), step=2)) == begun
