"""Episodes in one process: how each end is named, and what becomes the sequence that is trained."""

import json
import time
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from dbbench_adapter.datatypes import Score
from dbbench_adapter.engines import BackendUnavailable, TableError
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.protocols import solution
from sql_agent.environments.dbbench import DbBench
from sql_agent.local.datatypes import GREEDY, Sample
from sql_agent.local.rollouts import Player
from sql_agent.settings.groups import AgentConfig

LIMITS = AgentConfig(max_turns=3, max_tokens=200)
TASK = generate_tasks(1, seed=5)[0]


@pytest.fixture(scope="module")
def tokenizer(random_policy_folder):
    return AutoTokenizer.from_pretrained(random_policy_folder)


class Scripted:
    """Stands in for a policy: the k-th turn of each rollout says the k-th reply of its script; notes its prompts."""

    def __init__(self, tokenizer, *scripts, max_positions: int = 10_000) -> None:
        self.tokenizer, self.max_positions = tokenizer, max_positions
        self._left = {place: list(script) for place, script in enumerate(scripts)}
        self.prompts: list[list[int]] = []

    def generate(self, prompts, sampling, *, max_new_tokens):
        self.prompts += map(list, prompts)
        going = [place for place, left in self._left.items() if left][: len(prompts)]
        return [self._sample(self._left[place].pop(0)) for place in going]

    def _sample(self, text):
        cut = text.endswith("...")
        ids = self.tokenizer.encode(text if cut else f"{text}<|im_end|>", add_special_tokens=False)
        return Sample(tuple(ids), tuple(-0.5 for _ in ids), "length" if cut else "stop")


def written(message) -> str:
    calls = [c["function"] for c in message["tool_calls"]]
    return "".join(
        f"<tool_call>\n{json.dumps({'name': c['name'], 'arguments': json.loads(c['arguments'])})}\n</tool_call>"
        for c in calls
    )


def play(tokenizer, replies, environment=None, limits=LIMITS, **more):
    policy = Scripted(tokenizer, replies, **more)
    if environment is not None:
        return Player(policy, environment, limits).play([TASK], [GREEDY])[0], policy
    with DbBench("strict") as bench:
        return Player(policy, bench, limits).play([TASK], [GREEDY])[0], policy


def test_the_oracles_episode_is_right_and_one_sequence(tokenizer):
    run, commit = (written(message) for message in solution(TASK))
    (record, trajectory), policy = play(tokenizer, [run, commit])
    assert (record.stop_reason, record.score.value, record.num_turns) == ("answered", 1.0, 2)
    first, second = policy.prompts
    sampled = tokenizer.encode(f"{run}<|im_end|>", add_special_tokens=False)
    assert list(trajectory.ids[: trajectory.prompt_tokens]) == first
    assert second[: len(first) + len(sampled)] == first + sampled
    end = tokenizer.encode(f"{commit}<|im_end|>", add_special_tokens=False)
    assert list(trajectory.ids) == second + end
    between = len(second) - len(first) - len(sampled)
    assert list(trajectory.sampled) == [0] * len(first) + [1] * len(sampled) + [0] * between + [1] * len(end)
    assert trajectory.turn_ends == (len(first) + len(sampled), len(second) + len(end))
    assert [lp == -0.5 for lp in trajectory.log_probs] == [bool(bit) for bit in trajectory.sampled]
    assert record.completion_tokens == len(sampled) + len(end)
    assert record.prompt_tokens == len(first) + len(second)


ASK = '<tool_call>\n{"name": "execute_sql", "arguments": {"query": "SELECT 1"}}\n</tool_call>'


class Slow(Scripted):
    """Takes its time for the first reply."""

    def generate(self, prompts, sampling, *, max_new_tokens):
        samples = super().generate(prompts, sampling, max_new_tokens=max_new_tokens)
        time.sleep(0.5)
        return samples


def test_a_rollout_that_runs_into_its_wall_clock_is_lost_by_the_call_that_was_open_as_in_the_main_job(tokenizer):
    """The reply that was late is in no row; the right answer of another one that came in time stays right."""
    run, commit = (written(message) for message in solution(TASK))
    with DbBench("strict") as bench:
        policy = Slow(tokenizer, [run, commit])
        record, row = Player(policy, bench, LIMITS, timeout_s=0.4).play([TASK], [GREEDY])[0]
        in_time, _ = Player(Slow(tokenizer, [run, commit]), bench, LIMITS, timeout_s=300).play([TASK], [GREEDY])[0]
    assert (record.stop_reason, record.score, record.num_turns) == ("timeout", Score(None, "model_deadline"), 0)
    assert record.error == "its rollout_timeout_s=0.4 passed with a model call open"
    assert (row, len(policy.prompts)) == (None, 1)
    assert (in_time.stop_reason, in_time.score.value) == ("answered", 1.0)


@pytest.mark.parametrize(
    ("replies", "stop", "turns"),
    [
        pytest.param([ASK, ASK, ASK], "max_turns", 3, id="never_commits"),
        pytest.param(["no call", "none", "none"], "max_turns", 3, id="never_calls"),
        pytest.param(["and so on ..."], "max_tokens", 1, id="never_ends"),
        pytest.param(
            ['<tool_call>\n{"name": "commit_final_answer", "arguments": {"answers": 5}}\n</tool_call>'],
            "malformed",
            1,
            id="answers_that_are_no_list",
        ),
    ],
)
def test_ends_of_the_policys_doing_are_judged(tokenizer, replies, stop, turns):
    record = play(tokenizer, replies)[0][0]
    assert (record.stop_reason, record.num_turns, record.score.value) == (stop, turns, 0.0)


def test_a_full_context_ends_a_rollout_that_has_spoken(tokenizer):
    _, policy = play(tokenizer, [ASK, ASK, ASK])
    (record, _), _ = play(tokenizer, [ASK, ASK, ASK], max_positions=len(policy.prompts[1]))
    assert (record.stop_reason, record.num_turns) == ("max_tokens", 1)
    assert record.score.value == 0.0


def test_a_prompt_that_fills_the_context_is_nobodys_fault(tokenizer):
    (record, row), _ = play(tokenizer, [], max_positions=5)
    assert record.score == Score(None, "no_reply")
    assert row is None


class Broken:
    """DB-Bench with one method of its episodes, or its opening, that fails."""

    tools = DbBench("strict").tools

    def __init__(self, where: str, failure: Exception) -> None:
        self._bench, self._where, self._failure = DbBench("strict"), where, failure

    def __getattr__(self, name):
        return getattr(self._bench, name)

    def _fail(self, *_args):
        raise self._failure

    def open(self, task, limits):
        if self._where == "open":
            self._fail()
        return SimpleNamespace(malformed_calls=0, refused_statements=0, close=lambda: None, answer=self._fail)

    def judge(self, _episode):
        return self._fail()


@pytest.mark.parametrize(
    ("where", "failure", "reason"),
    [
        ("open", BackendUnavailable("gone"), "db_unavailable"),
        ("open", TableError("too wide"), "table_error"),
        ("call", BackendUnavailable("gone"), "db_unavailable"),
    ],
)
def test_what_the_database_does_to_a_rollout_is_none_and_not_zero(tokenizer, where, failure, reason):
    record = play(tokenizer, [ASK], environment=Broken(where, failure))[0][0]
    assert (record.stop_reason, record.score, record.error) == (reason, Score(None, reason), str(failure))


def test_rollouts_side_by_side_keep_their_own_episodes_and_order(tokenizer):
    tasks = generate_tasks(3, seed=7)
    scripts = [[written(message) for message in solution(task)] for task in tasks]
    scripts[1] = ["and so on ..."]
    with DbBench("strict") as bench:
        rollouts = Player(Scripted(tokenizer, *scripts), bench, LIMITS).play(tasks, [GREEDY] * 3)
    assert [record.task_id for record, _ in rollouts] == [task.id for task in tasks]
    assert [record.score.value for record, _ in rollouts] == [1.0, 0.0, 1.0]


def test_plain_text_protocols_are_played_too(tokenizer):
    replies = [message["content"] for message in solution(TASK, "text")]
    with DbBench("strict", "text") as bench:
        player = Player(Scripted(tokenizer, replies), bench, replace_protocol(LIMITS, "text"))
        record = player.play([TASK], [GREEDY])[0][0]
    assert (record.stop_reason, record.score.value) == ("answered", 1.0)


def replace_protocol(limits: AgentConfig, protocol: str) -> AgentConfig:
    return limits.model_copy(update={"protocol": protocol, "max_turns": 15})
