"""The state machine of a rollout: replies, answers, limits, losses and the names of ends."""

from types import SimpleNamespace
from typing import get_args

import pytest

from dbbench_adapter.datatypes import Score
from dbbench_adapter.engines import BackendUnavailable, TableError
from dbbench_adapter.interaction import ENDS, STOPS, CallingEpisode, Status, Stop
from sql_agent.environments.base import EpisodeLostError
from sql_agent.play.state import Play
from sql_agent.settings.groups import AgentConfig

TASK = SimpleNamespace(id="t", kind="k")
ASK = {"role": "user", "content": "?"}


class Shop(CallingEpisode):
    observation = " In stock: 2."
    failure: Exception | None = None

    def _answer_call(self, name, arguments):
        if name == "fail":
            raise self.failure
        if name == "end":
            self.status = "completed"
        return f"{name} {arguments}"

    def close(self):
        pass


class World:
    tools = ()

    def __init__(self, failure=None):
        self._failure = failure

    def messages(self, _task):
        return [ASK]

    def open(self, _task, _limits):
        episode = Shop()
        episode.failure = self._failure
        return episode

    def judge(self, _episode):
        return Score(1.0, "match")

    def comparison(self, _episode):
        return None

    def max_replies(self, limits):
        return limits.max_turns


def calls(*names):
    made = [
        {"id": f"c{k}", "type": "function", "function": {"name": n, "arguments": "{}"}} for k, n in enumerate(names)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(number, name):
    return {"role": "tool", "tool_call_id": f"c{number}", "content": f"{name} {{}}"}


def play(*replies, failure=None, max_turns=2, cut=False):
    rollout = Play(TASK, World(failure), AgentConfig(max_turns=max_turns))
    rollout.open()
    for reply in replies:
        rollout.step(reply, cut=cut)
    rollout.judge()
    return rollout


def test_every_end_has_a_meaning_and_every_outcome_an_end():
    assert set(ENDS) == set(get_args(Stop))
    assert set(STOPS) == set(get_args(Status))


def test_calls_run_in_order_up_to_the_one_that_ends_the_episode():
    reply = calls("look", "end", "look")
    rollout = play(reply)
    prompt = {"role": "user", "content": "? In stock: 2."}
    assert rollout.messages == [prompt, reply, result(0, "look"), result(1, "end")]
    assert (rollout.stop, rollout.num_turns, rollout.score) == ("answered", 1, Score(1.0, "match"))


@pytest.mark.parametrize(("said", "stop"), [
    pytest.param([calls("look")], None, id="the_rollout_goes_on"),
    pytest.param([calls("look"), calls("look")], "max_turns", id="out_of_turns"),
    pytest.param([calls("look"), calls("end")], "answered", id="the_episode_ends_in_the_last_turn"),
    pytest.param([{"role": "assistant", "content": "2"}], "answered", id="a_reply_without_a_call"),
    pytest.param([{"role": "assistant", "tool_calls": ["look"]}], "malformed", id="a_call_that_is_none"),
])  # fmt: skip
def test_how_a_rollout_ends(said, stop):
    assert play(*said).stop == stop


def test_a_reply_that_is_cut_is_not_answered():
    reply = calls("look")
    rollout = play(reply, cut=True)
    assert (rollout.stop, rollout.messages[1:], rollout.score) == ("max_tokens", [reply], Score(1.0, "match"))


@pytest.mark.parametrize(("failure", "stop", "reason"), [
    (BackendUnavailable("gone"), "db_unavailable", "db_unavailable"),
    (TableError("gone"), "table_error", "table_error"),
    (EpisodeLostError("tool_deadline", "gone"), "environment_error", "tool_deadline"),
])  # fmt: skip
def test_a_failure_of_the_world_loses_the_rollout_and_keeps_the_answers_before_it(failure, stop, reason):
    reply = calls("look", "fail", "look")
    rollout = play(reply, failure=failure)
    assert (rollout.stop, rollout.score, rollout.error) == (stop, Score(None, reason), "gone")
    assert rollout.messages[1:] == [reply, result(0, "look")]
    assert ENDS[rollout.stop] == "lost"


def test_a_rollout_without_a_reply_has_no_verdict():
    assert play().score == Score(None, "no_reply")
