"""`--reward ranking`: an LLM, here a real HTTP server, ranks the rollouts of a group that has ended."""

import json
from functools import partial

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from agentgrpo.checks import require
from dbbench_adapter.datatypes import Score
from sql_agent import oracle
from sql_agent.credit.grpo import GroupRelative
from sql_agent.datatypes import FunctionReward
from sql_agent.reward_functions import RewardRecord, RewardUnavailable
from sql_agent.reward_functions import judge as judge_module
from sql_agent.reward_functions.datatypes import LoadedReward
from sql_agent.reward_functions.ranking import LlmRanker, labels_of, read_places
from sql_agent.rewards import NO_JUDGE, summed_reward
from sql_agent.settings.groups import JudgeConfig, RewardModelConfig
from sql_agent.settings.load import load_config
from sql_agent.settings.main_job import RolloutConfig
from sql_agent.source.datatypes import PendingGroup, Rollout
from sql_agent.source.dynamic_sampling import credit_groups
from sql_agent.source.scoring import Rewarder
from sql_agent.source.source import Source
from sql_agent.tests.records import ROW, make_record

WEIGHTS = {"agentbench": 1.0, "ranking": 0.5}


class Longest:
    """A judge that prefers long conversations, and between equally long ones the first that it reads."""

    def __init__(self, answer=None):
        self.bodies, self._answer = [], answer

    async def reply(self, request):
        self.bodies.append(await request.json())
        if self._answer is not None:
            return self._answer
        parts = [part.partition(":\n") for part in self.bodies[-1]["messages"][1]["content"].split("\n\n")]
        shown = [part for part in parts if part[0] != "All begin with"]
        best = sorted(shown, key=lambda one: -len(one[2]))
        places = {label: place for place, (label, _, _) in enumerate(best, 1)}
        return JSONResponse({"choices": [{"message": {"content": json.dumps({"places": places})}}]})

    def serve(self):
        return oracle.serve(Starlette(routes=[Route("/v1/chat/completions", self.reply, methods=["POST"])]))


def ranker(url, folder, **settings):
    cfg = JudgeConfig(url=url, model="big", rubric=folder / "r", **{"timeout_s": 5.0, "attempts": 1} | settings)
    return LlmRanker(cfg, "Prefer full answers.", folder / "judge")


def played(*answers):
    said = [[{"role": "user", "content": "Why?"}, {"role": "assistant", "content": answer}] for answer in answers]
    return [RewardRecord.of(make_record(Score(None, NO_JUDGE), messages=each), {"id": "t-0"}) for each in said]


@pytest.mark.parametrize(
    ("places", "values"),
    [
        ([1, 2, 3], [1.0, 0.5, 0.0]),
        ([2, 1, 2], [0.25, 1.0, 0.25]),  # the two last: none is worse, one is as good: 0.5 of 2
        ([1, 1], [0.5, 0.5]),
        ([7, 3], [0.0, 1.0]),  # only the order counts
        ([2.0, 1], [0.0, 1.0]),
    ],
)
def test_a_value_is_the_share_of_the_others_that_are_worse_ties_half(places, values):
    labels = labels_of(len(places))
    assert read_places(json.dumps({"places": dict(zip(labels, places, strict=True))}), labels) == values


@pytest.mark.parametrize(
    "reply",
    [
        "A > B",
        '{"places": {"A": 1}}',
        '{"places": {"A": 1, "B": 0}}',
        '{"places": {"A": 1, "B": true}}',
        '{"places": 1}',
        '{"places": {"A": 1, "B": 1.5}}',
    ],
)
def test_a_reply_without_a_place_for_each_is_nonsense(reply):
    with pytest.raises(RewardUnavailable, match=r"the judge replied .* expected") as caught:
        read_places(reply, ["A", "B"])
    assert caught.value.reason == "judge_nonsense"


def test_more_than_26_rollouts_have_labels_of_their_own():
    assert labels_of(28)[24:] == ["Y", "Z", "A1", "B1"]
    assert len({*labels_of(200)}) == 200


async def test_both_orders_are_asked_so_that_what_stands_first_gains_nothing(tmp_path):
    """The judge prefers the first of two that are equally long: each of them is once the better one."""
    judge = Longest()
    with judge.serve() as url:
        assert await ranker(url, tmp_path)(played("abc", "xyz", "much longer")) == [0.25, 0.25, 1.0]
        assert await ranker(url, tmp_path)(played("abc", "xyz", "much longer")) == [0.25, 0.25, 1.0]
    first, second = (body["messages"][1]["content"] for body in judge.bodies)  # the same group is not asked about twice
    assert first == (
        'All begin with:\n{"role": "user", "content": "Why?"}\n\n'
        'A:\n{"role": "assistant", "content": "abc"}\n\n'
        'B:\n{"role": "assistant", "content": "xyz"}\n\n'
        'C:\n{"role": "assistant", "content": "much longer"}'
    )
    assert second.index("xyz") < second.index("abc")


async def test_equal_conversations_are_sent_once_and_tie(tmp_path):
    judge = Longest()
    with judge.serve() as url:
        assert await ranker(url, tmp_path)(played("ab", "abcdef", "ab", "ab")) == [0.0, 1.0, 0.0, 0.0]
        assert await ranker(url, tmp_path)(played("ab", "ab")) == [0.5, 0.5]
    assert len(judge.bodies) == 2


async def test_calls_that_differ_by_the_random_ids_of_a_server_are_equal(tmp_path):
    def called(name):
        call = {"id": name, "type": "function", "function": {"name": "execute_sql", "arguments": "{}"}}
        said = [
            {"role": "user", "content": "Why?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": name, "content": "1"},
        ]
        return RewardRecord.of(make_record(Score(None, NO_JUDGE), messages=said), {"id": "t-0"})

    judge = Longest()
    with judge.serve() as url:
        assert await ranker(url, tmp_path)([called("chatcmpl-tool-0a"), called("chatcmpl-tool-9f")]) == [0.5, 0.5]
    assert judge.bodies == []


async def test_what_all_begin_with_is_sent_once_so_that_each_keeps_its_share_of_the_characters(tmp_path):
    asked = {"role": "user", "content": "CREATE TABLE t (a) " * 200}
    said = [[asked, {"role": "assistant", "content": answer}] for answer in ("no", "yes " * 40)]
    records = [RewardRecord.of(make_record(Score(None, NO_JUDGE), messages=each), {"id": "t-0"}) for each in said]
    judge = Longest()
    with judge.serve() as url:
        await ranker(url, tmp_path, max_chars=1000)(records)
    text = judge.bodies[0]["messages"][1]["content"]
    assert text.count("characters are left out") == 1
    assert "yes " * 40 in text
    assert len(text) < 1100


# in a group -----------------------------------------------------------------------------------------------------------


class Answers:
    """Ends every rollout at once with the next answer of its task and the reward that a runner gives it."""

    def __init__(self, weights=WEIGHTS, **answers):
        self._weights, self._answers, self._queued = weights, {k: iter(v) for k, v in answers.items()}, []
        self._late = []

    async def enqueue(self, slots, *, step, validate):
        self._queued += [rollout for slot in slots for rollout in slot.groups[-1]]

    async def collect(self):
        for rollout in self._queued:
            value, answer = next(self._answers[rollout.task_id])
            if answer == "late":
                self._late.append(rollout)
                continue
            [record] = played(answer)
            rollout.played = make_record(Score(value, "match" if value else "wrong_rows"), messages=record.messages)
            if value is None:
                rollout.played = make_record(Score(None, "db_unavailable"))
            given = {"ranking": FunctionReward(0.5)}
            rollout.earn(summed_reward(rollout.played, self._weights, given))
            rollout.row, rollout.settled = ROW, True
        self._queued = []

    async def end(self, slots):
        for rollout in self._late:
            rollout.lost = "step_deadline"


def source(transport, rank, weights=WEIGHTS, **settings):
    return Source(
        transport,
        RolloutConfig(poll_s=0.01, reward=weights, **settings),
        RewardModelConfig(),
        GroupRelative(),
        seed=0,
        ending_s=0.0,
        max_broken_fraction=1.0,
        tasks=[{"id": "other"}],
        credit=partial(credit_groups, estimator=GroupRelative()),
        keep=lambda *_, **__: None,
        ranker=rank,
    )


def slot(task, size=2, **fields):
    return PendingGroup(0, groups=[[Rollout("0", {"id": task}, **fields) for _ in range(size)]])


async def test_the_places_replace_the_ties_of_a_group_and_its_rewards_differ_before_it_is_filtered(tmp_path):
    """Both are right, so without the ranking the group would have zero variance and give way to another task."""
    judge = Longest()
    with judge.serve() as url:
        asked = source(Answers(why=[(1.0, "because"), (1.0, "because of it")]), ranker(url, tmp_path), max_resamples=1)
        [group], _ = await asked.batch([slot("why")], step=1)
    # 1 for right, and half of the place
    assert [(r.task_id, r.reward, r.earned.parts["ranking"]) for r in group] == [("why", 1.0, 0.0), ("why", 1.5, 1.0)]
    assert [round(r.advantage, 3) for r in group] == [-0.707, 0.707]


async def test_a_lost_rollout_is_not_ranked_and_a_validation_is_not_either(tmp_path):
    judge = Longest()
    with judge.serve() as url:
        rank = ranker(url, tmp_path)
        lost = Answers(why=[(1.0, "b"), (None, ""), (0.0, "because")])
        [group], _ = await source(lost, rank, max_lost_fraction=1.0).batch([slot("why", 3)], step=1)
        assert [r.reward for r in group] == [1.0, None, 0.5]
        measured = Answers(why=[(1.0, "b"), (0.0, "because")])
        [group], _ = await source(measured, rank).batch([slot("why", temperature=0.0)], step=1, validate=True)
        assert [r.reward for r in group] == [1.25, 0.25]
    assert len(judge.bodies) == 2


async def test_a_group_that_loses_a_rollout_at_the_deadline_of_its_step_is_ranked_without_it(tmp_path):
    with Longest().serve() as url:
        answers = Answers(why=[(1.0, "b"), (1.0, "late"), (1.0, "because")])
        asked = source(answers, ranker(url, tmp_path), max_lost_fraction=1.0, step_timeout_s=0.2)
        [group], _ = await asked.batch([slot("why", 3)], step=1)
    assert [(r.reward, r.lost) for r in group] == [(1.0, None), (None, "step_deadline"), (1.5, None)]


async def test_a_group_is_replaced_once_it_is_ranked(tmp_path):
    """Equal answers tie, so the first group has zero variance and another task takes its place."""
    with Longest().serve() as url:
        answers = Answers(same=[(1.0, "b"), (1.0, "b")], other=[(1.0, "b"), (1.0, "because")])
        [group], _ = await source(answers, ranker(url, tmp_path), max_resamples=1).batch([slot("same")], step=1)
    assert [(r.task_id, r.reward) for r in group] == [("other", 1.0), ("other", 1.5)]


@pytest.mark.parametrize(
    "answer",
    [
        JSONResponse({"choices": [{"message": {"content": "All are fine."}}]}),
        PlainTextResponse("I read no such thing", 400),
    ],
    ids=["nonsense", "refused"],
)
async def test_what_keeps_the_judge_from_ranking_earns_the_least_for_the_whole_group(tmp_path, answer):
    """Were it lost or left out, a policy that would come last could learn to write it."""
    with Longest(answer).serve() as url:
        asked = source(Answers(why=[(1.0, "b"), (0.0, "because")]), ranker(url, tmp_path))
        [group], _ = await asked.batch([slot("why")], step=1)
    assert [(r.reward, r.earned.parts["ranking"]) for r in group] == [(1.0, 0.0), (0.0, 0.0)]


async def test_a_folder_that_cannot_be_written_costs_the_ranking_and_not_the_run(tmp_path):
    (tmp_path / "judge").write_text("a file in its place")
    with Longest().serve() as url:
        asked = source(Answers(why=[(1.0, "b"), (0.0, "because")]), ranker(url, tmp_path), max_lost_fraction=1.0)
        [group], metrics = await asked.batch([slot("why")], step=1)
    assert [r.reward for r in group] == [1.0, 0.0]
    assert metrics["rollout/unshaped/judge_unavailable"] == 2


@pytest.mark.parametrize(
    ("weights", "rewards"), [(WEIGHTS, [1.0, 0.0]), ({"ranking": 1.0}, [None, None])], ids=["beside", "alone"]
)
async def test_without_the_judge_a_group_is_rewarded_without_its_ranking(tmp_path, monkeypatch, weights, rewards):
    monkeypatch.setattr(judge_module, "FIRST_PAUSE_S", 0.01)
    with Longest(PlainTextResponse("away", 503)).serve() as url:
        answers = Answers(weights, why=[(1.0, "b"), (0.0, "because")])
        asked = source(answers, ranker(url, tmp_path), weights, max_lost_fraction=1.0)
        [group], metrics = await asked.batch([slot("why")], step=1)
    assert [r.reward for r in group] == rewards
    if weights == WEIGHTS:
        assert metrics["rollout/unshaped/judge_unavailable"] == 2
    else:
        assert {r.lost for r in group} == {"judge_unavailable"}


async def test_a_rollout_waits_for_no_thread_to_get_its_tie(tmp_path):
    """A tie that took a thread was late beside slow functions, and its rollout was lost."""

    called: list[object] = []
    alone = LoadedReward("ranking", lambda record: called.append(record), tmp_path, "")
    functions = [LoadedReward("concise", lambda _: 1.0, tmp_path, ""), alone]
    weights = {"my.py:concise": 1.0, "ranking": 0.5}
    rewarder = Rewarder(RolloutConfig(reward=weights), RewardModelConfig(), functions, threads=1)
    rollout = Rollout("0", {"id": "why"}, played=make_record(Score(None, NO_JUDGE)))
    await rewarder(rollout)
    assert rewarder.rewards_alone and called == []
    assert (rollout.reward, rollout.earned.terms) == (1.25, {"concise": 1.0, "ranking": 0.25})


# before a run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["rollout.reward=ranking"], "rollout.reward names ranking, and no LLM is given"),
        (
            ["rollout.reward=ranking", "rollout.success_reward=0.5", "judge={url: http://h:1, model: m, rubric: f}"],
            "success_reward is given, and the reward is a ranking",
        ),
        (
            [
                "algorithm=apo",
                "base_url=http://h:1/v1",
                "model=m",
                "apo.base_url=http://h:1/v1",
                "apo.gradient_model=m",
                "rollout.reward=ranking",
                "judge={url: http://h:1, model: m, rubric: f}",
            ],
            "APO has no groups to rank",
        ),
        (
            ["rollout.reward=ranking", "judge={url: http://h:1, model: m, rubric: f, timeout_s: 100000}"],
            "rollout.step_timeout_s",
        ),
    ],
)
def test_a_ranking_that_cannot_be_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        load_config(None, settings)


def test_a_run_is_refused_while_the_judge_only_scores(tmp_path):
    (tmp_path / "rubric.txt").write_text("Be fair.")
    given = {"model": "big", "rubric": tmp_path / "rubric.txt", "timeout_s": 5.0}
    scores = Longest(JSONResponse({"choices": [{"message": {"content": '{"score": 1}'}}]}))
    with scores.serve() as url, pytest.raises(ValueError, match=r"\(judge_nonsense\).*JUDGE_API_KEY"):
        require(ranking=JudgeConfig(url=url, **given))
    with Longest().serve() as url:
        require(ranking=JudgeConfig(url=url, **given))
