"""Environments of the user's own in the local loop: rollouts as in `evaluate`, and what their rewards count as."""

import json

import pytest
from transformers import AutoTokenizer

from dbbench_adapter.datatypes import Score
from sql_agent import oracle
from sql_agent.datatypes import OWN_REWARD, Reward, RolloutRecord
from sql_agent.environments.base import make_environment
from sql_agent.local.datatypes import GREEDY
from sql_agent.local.presets import success_rate
from sql_agent.local.rollouts import Player
from sql_agent.play.served import run_rollout
from sql_agent.settings.groups import AgentConfig, EnvironmentSettings
from sql_agent.source.datatypes import Rollout
from sql_agent.source.dynamic_sampling import zero_variance
from sql_agent.success_rate import Rate
from sql_agent.tests.records import make_record, make_result, rewarded
from sql_agent.tests.test_local_rollouts import Scripted, written

GAME = '''
class Game:
    """A number is guessed."""

    solved = None

    def reset(self, secret, **row):
        if secret == 3:
            raise OSError("no table")
        self.secret, self.hit = secret, False
        return " You have three tries."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: The guess.
        """
        if number == 13:
            raise KeyError("unlucky")
        if number == 15:
            raise SystemExit
        self.hit = number == self.secret
        return "right" if self.hit else "wrong"

    def get_reward(self):
        if self.secret == 0:
            raise ZeroDivisionError("no reward today")
        if self.secret == 7:
            self.solved = self.hit
        return {1: None, 2: float("nan")}.get(self.secret, 2.5 if self.hit else -1.0)



class Silent:
    """A text is written, and nobody judges it."""

    def reset(self, **row):
        pass
'''


@pytest.fixture(scope="module")
def tokenizer(random_policy_folder):
    return AutoTokenizer.from_pretrained(random_policy_folder)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    file = tmp_path_factory.mktemp("own") / "mine.py"
    file.write_text(GAME)
    return file


def guess(*numbers):
    return oracle.calls(*(oracle.call("guess", {"number": number}, f"c{number}") for number in numbers))


def text(message) -> str:
    return written(message) if message.get("tool_calls") else message["content"]


def conversation(record: RolloutRecord) -> list:
    """Without the ids of calls, and the text around calls, which a server parses away."""
    return [
        (m["role"], [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in m["tool_calls"]])
        if m.get("tool_calls")
        else (m["role"], m["content"])
        for m in record.messages
    ]


SAY = {"role": "assistant", "content": "It is 7."}


@pytest.mark.parametrize(
    ("name", "secret", "replies", "stop", "score", "success"),
    [
        pytest.param(
            "Game", 7, [guess(7), SAY], "answered", Score(2.5, OWN_REWARD, {"correctness": 1.0}), 1.0, id="solved"
        ),
        pytest.param("Game", 9, [guess(7), SAY], "answered", Score(-1.0, OWN_REWARD), None, id="success_is_unknown"),
        pytest.param("Game", 9, [guess(1, 13, 9)] * 3, "max_turns", Score(2.5, OWN_REWARD), None, id="out_of_turns"),
        pytest.param("Game", 9, [guess(1, 15, 9)], "environment_error", Score(None, "tool_error"), None, id="exits"),
        pytest.param("Game", 3, [], "environment_error", Score(None, "reset_error"), None, id="reset_raises"),
        pytest.param("Game", 0, [SAY], "environment_error", Score(None, "get_reward_error"), None, id="reward_raises"),
        pytest.param("Game", 1, [SAY], "answered", Score(None, "no_reward"), None, id="no_reward"),
        pytest.param("Game", 2, [SAY], "environment_error", Score(None, "reward_not_finite"), None, id="not_finite"),
        pytest.param("Silent", 0, [SAY], "answered", Score(None, "no_judge"), None, id="without_a_judge"),
    ],
)
async def test_a_rollout_is_the_one_of_evaluate(tokenizer, file, name, secret, replies, stop, score, success):
    limits = AgentConfig(max_turns=3, max_tokens=200)
    settings = EnvironmentSettings(f"{file}:{name}")
    (file.parent / "rows.jsonl").write_text(json.dumps({"prompt": "Guess it.", "secret": secret}))
    with make_environment(settings) as environment:
        [task] = environment.read_tasks(file.parent / "rows.jsonl")
        policy = Scripted(tokenizer, [text(reply) for reply in replies])
        local = Player(policy, environment, limits).play([task], [GREEDY])[0][0]
        with oracle.serve(oracle.app(oracle.recite(replies))) as url:
            served = await run_rollout(task, environment=environment, base_url=url, model="oracle", config=limits)
    assert (local.stop_reason, local.score, local.success) == (stop, score, success)
    for field in ("stop_reason", "score", "success", "num_turns", "malformed_calls", "error"):
        assert getattr(local, field) == getattr(served, field), field
    assert conversation(local) == conversation(served)


def episodes(*rewards: tuple[float | None, float | None]) -> list[Rollout]:
    """Of rewards that the environment gives itself, each with what it says about success."""

    def rollout(value, success):
        score = Score(None, "reset_error") if value is None else Score(value, OWN_REWARD)
        if success is not None:
            score = Score(value, OWN_REWARD, {"correctness": success})
        return make_result("g", rewarded(make_record(score), Reward(value, score.reason)))

    return [rollout(value, success) for value, success in rewards]


def test_a_reward_of_one_is_no_success_unless_the_environment_says_so():
    assert success_rate(episodes((1.0, None), (1.0, 0.0), (0.5, 1.0), (None, None))) == Rate(4, 2, 1)


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([(1.0, None), (1.0, None)], "all_equal"),
        ([(0.1, 0.0), (0.1, 0.0)], "all_wrong"),
        ([(0.5, 1.0), (0.5, 1.0)], "all_right"),
        ([(0.5, 1.0), (None, None)], None),
    ],
)
def test_a_group_of_equal_rewards_says_what_is_known_about_success(rewards, reason):
    assert zero_variance(episodes(*rewards)) == reason
