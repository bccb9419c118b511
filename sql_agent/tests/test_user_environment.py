"""Environments of your own: TRL's form as TRL treats it, what the base class adds, errors that name the place."""

import json
import sqlite3
import threading
from pathlib import Path

import pytest

from agentgrpo.user_files import UserFileError
from dbbench_adapter.datatypes import Score
from sql_agent import oracle
from sql_agent.datatypes import OWN_REWARD, Reward, RolloutRecord
from sql_agent.environments.base import EpisodeLostError, make_environment, with_observation
from sql_agent.play.served import run_rollout
from sql_agent.rewards import REWARDS, reward
from sql_agent.settings.groups import AgentConfig, DataConfig, EnvironmentSettings
from sql_agent.settings.load import load_config
from sql_agent.tests.conftest import forget_user_files

GAME = '''
import sqlite3, sys, time

class Game:
    """A number is guessed."""

    def __init__(self):
        self.episodes = 0

    def reset(self, secret, **row):
        self.secret, self.hit = secret, False
        self.episodes += 1
        self._db = sqlite3.connect(":memory:")  # refuses every other thread
        return " You have three tries."

    def guess(self, number: int, politely: bool = False) -> str:
        """Guess the number.

        Args:
            number: The guess.
            politely: Whether to say please.

        Returns:
            How it compares.
        """
        if number == 13:
            raise KeyError("unlucky")
        if number == 14:
            while True:
                try:
                    time.sleep(0.001)
                except Exception:
                    pass
        if number == 15:
            sys.exit(3)
        self.hit = number == self.secret
        return self._db.execute("SELECT ?", ("right" if self.hit else "wrong",)).fetchone()[0]

    async def hint(self) -> int:
        """Ask whether the number is odd."""
        return self.secret % 2

    def get_reward(self):
        if self.secret == 0:
            raise ZeroDivisionError("no reward today")
        return {1: None, 2: float("nan")}.get(self.secret, 2.5 if self.hit else -1.0)

    def _private(self):
        pass
'''
TASKSET = """
from sql_agent.environments.base import Environment, Taskset

class Shelf(Taskset):
    def messages(self, task):
        return []
"""
ROWS = [{"prompt": "Guess it.", "secret": 7}, {"prompt": [{"role": "user", "content": "Guess."}], "secret": 9}]
LIMITS = AgentConfig()


@pytest.fixture
def own(tmp_path):
    """Makes the environment NAME of a file with this text, and reads the rows."""

    def make(text=GAME, name="Game", rows=ROWS, timeout_s=20.0):
        (tmp_path / "mine.py").write_text(text)
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        environment = make_environment(EnvironmentSettings(f"{tmp_path}/mine.py:{name}", call_timeout_s=timeout_s))
        return environment, environment.read_tasks(file)

    return make


async def play(environment, task, *replies, **config):
    """The record of a rollout against a model that gives these replies."""
    with oracle.serve(oracle.app(oracle.recite(list(replies)))) as url, environment:
        limits = AgentConfig(**config)
        return await run_rollout(task, environment=environment, base_url=url, model="oracle", config=limits)


def guess(number):
    return oracle.calls(oracle.call("guess", {"number": number}))


# TRL's form ---------------------------------------------------------------------------------------------------------


def test_public_methods_are_the_tools_with_the_schemas_that_transformers_derives(own):
    environment, _ = own()
    number = {"type": "integer", "description": "The guess."}
    politely = {"type": "boolean", "description": "Whether to say please."}
    assert environment.tools == [
        {"type": "function", "function": {
            "name": "guess", "description": "Guess the number.",
            "parameters": {"type": "object", "properties": {"number": number, "politely": politely},
                           "required": ["number"]}}},
        {"type": "function", "function": {
            "name": "hint", "description": "Ask whether the number is odd.",
            "parameters": {"type": "object", "properties": {}}}},
    ]  # fmt: skip


def test_what_reset_returns_follows_in_the_last_message_of_the_prompt(own):
    environment, tasks = own()
    with environment:
        for task, said in zip(tasks, ["Guess it.", "Guess."], strict=True):
            episode = environment.open(task, LIMITS)
            assert with_observation(environment.messages(task), episode) == [
                {"role": "user", "content": f"{said} You have three tries."}
            ]


@pytest.mark.parametrize(("name", "arguments", "answer", "malformed"), [
    ("guess", '{"number": 7}', "right", 0),
    ("hint", "{}", "1", 0),  # str() of what a tool returns; awaited where it is awaitable
    ("guess", '{"number": 13}', str({"error": "'unlucky'"}), 0),  # an exception is an observation
    ("gues", "{}", str({"error": "Tool gues not found."}), 1),
    ("_private", "{}", str({"error": "Tool _private not found."}), 1),
    ("reset", '{"secret": 1}', str({"error": "Tool reset not found."}), 1),
    ("get_reward", "{}", str({"error": "Tool get_reward not found."}), 1),
    ("guess", "{}", str({"error": "Game.guess() missing 1 required positional argument: 'number'"}), 1),
    ("guess", '{"n": 7}', str({"error": "Game.guess() got an unexpected keyword argument 'n'"}), 1),
    ("guess", "[7]", str({"error": "the arguments of guess are a JSON object, its arguments by name"}), 1),
    ("guess", "{number", str({"error": "the arguments of guess do not parse; they are a JSON object"}), 1),
    ("guess", "[" * 100_000, str({"error": "the arguments of guess do not parse; they are a JSON object"}), 1),
])  # fmt: skip
def test_a_call_is_answered_as_trl_answers_it(own, name, arguments, answer, malformed):
    environment, tasks = own()
    with environment:
        episode = environment.open(tasks[0], LIMITS)
        assert (episode.call_tool(name, arguments), episode.malformed_calls) == (answer, malformed)


async def test_a_rollout_ends_with_a_reply_without_a_call_and_get_reward_is_its_reward(own):
    environment, tasks = own()
    record = await play(environment, tasks[0], guess(7), {"role": "assistant", "content": "It is 7."})
    assert [(m["role"], m["content"]) for m in record.messages] == [
        ("user", "Guess it. You have three tries."), ("assistant", None), ("tool", "right"), ("assistant", "It is 7."),
    ]  # fmt: skip
    assert (record.stop_reason, record.score, record.success) == ("answered", Score(2.5, OWN_REWARD), None)


async def test_out_of_turns_the_reward_is_asked_for_all_the_same(own):
    environment, tasks = own()
    record = await play(environment, tasks[0], guess(3), max_turns=2)
    assert (record.stop_reason, record.num_turns, record.score) == ("max_turns", 2, Score(-1.0, OWN_REWARD))


def test_an_object_plays_one_episode_after_the_other_always_in_its_own_thread(own):
    environment, tasks = own()
    with environment:
        for _ in range(2):
            episode = environment.open(tasks[0], LIMITS)
            other = environment.open(tasks[1], LIMITS)
            threads = [threading.Thread(target=e.call_tool, args=("guess", '{"number": 7}')) for e in (episode, other)]
            for thread in threads:
                thread.start()
                thread.join()
            assert (environment.judge(episode).value, environment.judge(other).value) == (2.5, -1.0)
            episode.close()
            other.close()
        again = environment.open(tasks[0], LIMITS)
        assert again._instance.object.episodes == 3


def test_a_function_that_makes_objects_does_as_well(own):
    environment, tasks = own(GAME + "\ndef make():\n    return Game()\n", "make")
    with environment:
        assert environment.open(tasks[0], LIMITS).call_tool("guess", '{"number": 7}') == "right"


# what user code may do ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "reason", "told"), [
    (14, "tool_deadline", "did not return within 0.3 s"),
    (15, "tool_error", "sys.exit(3)"),
])  # fmt: skip
async def test_a_tool_that_hangs_or_ends_the_process_loses_its_rollout_only(own, number, reason, told):
    environment, tasks = own(timeout_s=0.3)
    before = set(threading.enumerate())
    record = await play(environment, tasks[0], guess(number))
    assert (record.stop_reason, record.score) == ("environment_error", Score(None, reason))
    assert told in record.error
    left = [t for t in set(threading.enumerate()) - before if t.name == "environment"]
    for thread in left:
        thread.join(10)  # a loop in Python is broken off
    assert not any(thread.is_alive() for thread in left)


@pytest.mark.parametrize(("secret", "score", "told"), [
    (0, Score(None, "get_reward_error"), "ZeroDivisionError: no reward today"),
    (1, Score(None, "no_reward"), None),
    (2, Score(None, "reward_not_finite"), "get_reward returned nan"),
])  # fmt: skip
async def test_a_reward_that_cannot_be_had_loses_the_rollout_with_the_traceback(own, secret, score, told):
    environment, tasks = own(rows=[{"prompt": "?", "secret": secret}])
    record = await play(environment, tasks[0], {"role": "assistant", "content": "no"})
    assert record.score == score
    assert told is None or told in record.error


@pytest.mark.parametrize(("body", "reason", "told"), [
    ("raise OSError('no docker')", "reset_error", 'mine.py", line 3, in reset'),
    ("__import__('time').sleep(5)", "reset_deadline", "did not return within 0.3 s"),
    ("return 5", "reset_error", "reset returned 5, expected a text or None"),
    ("raise Lost('server_down')", "server_down", "server_down"),
])  # fmt: skip
async def test_a_reset_that_fails_loses_the_rollout_before_the_first_reply(own, body, reason, told):
    text = f"class Game:\n    def reset(self, **row):\n        {body}\nfrom sql_agent.environments.tools import Lost\n"
    environment, tasks = own(text, timeout_s=0.3)
    record = await play(environment, tasks[0], {"role": "assistant", "content": "no"})
    assert (record.stop_reason, record.score, record.num_turns) == ("environment_error", Score(None, reason), 0)
    assert told in record.error


# the base class -------------------------------------------------------------------------------------------------------

ORDERS = '''
from sql_agent.environments.tools import ToolEnvironment

class Orders(ToolEnvironment):
    max_turns = 4
    closed = 0

    @classmethod
    def prompt(cls, row):
        return "How many " + row["what"] + "?"

    def submit(self, count: int) -> str:
        """Answer.

        Args:
            count: How many.
        """
        self.said, self.done = count, True
        return "Thank you."

    def judge(self):
        if self.reply is not None:
            return 0.25, "talked"
        return self.said == self.row["count"]

    def close(self):
        type(self).closed += 1
'''
ORDER_ROWS = [{"what": "pears", "count": 3}, {"what": "figs", "count": 0}]


async def test_the_base_class_adds_prompt_verdict_limits_an_end_and_close(own):
    environment, tasks = own(ORDERS, "Orders", ORDER_ROWS)
    assert [tool["function"]["name"] for tool in environment.tools] == ["submit"]
    assert environment.max_replies(LIMITS) == 4
    assert environment.messages(tasks[0]) == [{"role": "user", "content": "How many pears?"}]
    said = [oracle.calls(oracle.call("submit", {"count": 3}))]
    right, wrong = [await play(environment, task, *said) for task in tasks]
    talked = await play(environment, tasks[0], {"role": "assistant", "content": "three"})
    assert [(r.stop_reason, r.score, r.success) for r in (right, wrong, talked)] == [
        ("answered", Score(1.0, "solved"), 1.0),
        ("answered", Score(0.0, "not_solved"), 0.0),
        ("answered", Score(0.25, "talked"), 0.0),
    ]
    assert environment.kind.closed == 3


async def test_a_base_class_without_tools_reads_the_one_reply(own):
    text = ORDERS[: ORDERS.index("    def submit")] + "    def judge(self):\n        return self.reply == '3'\n"
    environment, tasks = own(text, "Orders", ORDER_ROWS)
    record = await play(environment, tasks[0], {"role": "assistant", "content": "3"})
    assert (environment.tools, record.stop_reason, record.score) == ([], "answered", Score(1.0, "solved"))


def test_trl_sees_the_same_tools_in_a_subclass_of_the_base_class(own):
    import inspect

    environment, _ = own(ORDERS, "Orders", ORDER_ROWS)
    functions = [name for name, _ in inspect.getmembers(environment.kind, predicate=inspect.isfunction)]
    # grpo_trainer.py: all of these are tools but reset and get_reward and what begins with _
    assert [name for name in functions if not name.startswith("_")] == ["get_reward", "reset", "submit"]


@pytest.mark.parametrize(("returned", "score"), [
    ("None", Score(None, "not_judged")),
    ("(None, 'server_down')", Score(None, "server_down")),
    ("0.5", Score(0.5, "not_solved")),
])  # fmt: skip
def test_a_verdict_may_have_a_reason_and_be_missing(own, returned, score):
    text = ORDERS.replace('return 0.25, "talked"', f"return {returned}")
    environment, tasks = own(text, "Orders", ORDER_ROWS)
    with environment:
        episode = environment.open(tasks[0], LIMITS)
        episode.without_call("hm")
        assert environment.judge(episode) == score


def test_a_verdict_outside_of_0_to_1_is_an_error_that_names_the_place(own):
    environment, tasks = own(ORDERS.replace("return 0.25", "return 3"), "Orders", ORDER_ROWS)
    with environment:
        episode = environment.open(tasks[0], LIMITS)
        episode.without_call("hm")
        with pytest.raises(EpisodeLostError, match=r"mine.py:\d+: judge returned 3, expected a number in \[0, 1\]"):
            environment.judge(episode)


def test_a_class_with_neither_verdict_nor_reward_is_not_judged(own):
    environment, tasks = own("class Game:\n    def reset(self, **row):\n        pass\n")
    with environment:
        assert (environment.judged, environment.judge(environment.open(tasks[0], LIMITS))) == (
            False, Score(None, "no_judge"),
        )  # fmt: skip


async def test_the_example_of_the_page_plays(own):
    page = (Path(__file__).parents[2] / "doc" / "guides/environment.md").read_text()
    block = next(b for b in page.split("```python\n") if b.startswith("from sql_agent")).partition("```")[0]
    rows = [{"what": "pears", "count": 3}]
    replies = [oracle.calls(oracle.call("look", {})), oracle.calls(oracle.call("submit", {"count": 3}))]
    environment, tasks = own(f"{block}\ndef read_shelf():\n    return 'a pear'\n", "Count", rows)
    assert (await play(environment, tasks[0], *replies)).score == Score(1.0, "solved")
    forget_user_files()
    environment, tasks = own(f"{block}\ndef read_shelf():\n    pass\n", "Count", rows)
    assert (await play(environment, tasks[0], *replies)).score == Score(None, "shelf_away")


MAKER = (
    ORDERS
    + """
    @classmethod
    def load_split(cls, data, seed):
        if data.train_file is not None:
            return None
        made = [{"what": f"pears of tree {seed + n}", "count": n} for n in range(data.generate)]
        return made, [{"what": "figs", "count": 0, "id": "figs"}]

    @classmethod
    def reference(cls, row):
        return [{"content": "I count.", "name": "submit", "arguments": {"count": row["count"]}}]
"""
)


def test_a_class_may_make_its_own_tasks(own, tmp_path):
    environment, _ = own(MAKER, "Orders", ORDER_ROWS)
    split = environment.load_split(DataConfig(generate=2), seed=5)
    assert [(task.id, task.kind, task.row) for task in (*split.train, *split.val)] == [
        ("train-1", "Orders", {"what": "pears of tree 5", "count": 0}),
        ("train-2", "Orders", {"what": "pears of tree 6", "count": 1}),
        ("figs", "Orders", {"what": "figs", "count": 0, "id": "figs"}),
    ]
    of_file = environment.load_split(DataConfig(train_file=tmp_path / "rows.jsonl"), seed=5)
    assert sorted(task.row["what"] for task in (*of_file.train, *of_file.val)) == ["figs", "pears"]


@pytest.mark.parametrize(("returned", "words"), [
    ("[]", r"mine.py:\d+: load_split returned \[\], expected two lists of rows"),
    ("[5], []", r"mine.py:\d+, row 1 of train: expected a JSON object .*, found int"),
    ("[], [{'count': 1}]", r"mine.py:\d+, row 1 of held_out: its prompt .* raised KeyError: 'what'"),
    ("missing, []", r"mine.py:\d+: load_split raised NameError: name 'missing'"),
])  # fmt: skip
def test_own_tasks_that_do_not_fit_are_named(own, returned, words):
    environment, _ = own(MAKER.replace("return None", f"return {returned}"), "Orders", ORDER_ROWS)
    with pytest.raises(ValueError, match=words):
        environment.load_split(DataConfig(train_file=Path("rows.jsonl")), seed=0)


async def test_a_class_may_know_the_solution_of_a_row(own):
    environment, (pears, _) = own(MAKER, "Orders", ORDER_ROWS)
    (reply,) = environment.reference_replies(pears)
    assert (reply["content"], reply["tool_calls"][0]["function"]["name"]) == ("I count.", "submit")
    assert (await play(environment, pears, reply)).score == Score(1.0, "solved")


def test_strict_tools_forbid_arguments_that_a_tool_does_not_have(own):
    (loose,) = own(ORDERS, "Orders", ORDER_ROWS)[0].tools
    forget_user_files()
    (strict,) = own(ORDERS.replace("max_turns = 4", "strict_tools = True"), "Orders", ORDER_ROWS)[0].tools
    assert strict["function"]["parameters"] == {**loose["function"]["parameters"], "additionalProperties": False}


# from a reward to success ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("line", "success"), [
    ("pass", None),  # a reward of 2.5, or of 1, says nothing of success
    ("solved = None", None),
    ("solved = property(lambda self: self.hit)", 1.0),
])  # fmt: skip
def test_success_is_what_the_class_says_and_unknown_otherwise(own, line, success):
    environment, tasks = own(GAME.replace("def __init__", f"{line}\n    def __init__"))
    with environment:
        episode = environment.open(tasks[0], LIMITS)
        episode.call_tool("guess", '{"number": 7}')
        score = environment.judge(episode)
    record = RolloutRecord("t", "k", "answered", score, 1, 0, [], 1, 1, 0.1)
    assert (score.value, record.success) == (2.5, success)
    parts = {} if success is None else {"correctness": 1.0}
    for preset in REWARDS.values():  # no preset applies: the reward is the class's
        assert reward(record, preset) == Reward(2.5, OWN_REWARD, parts)


# the split ------------------------------------------------------------------------------------------------------------


def test_a_file_is_split_by_the_seed_and_rows_that_say_the_same_stay_together(own, tmp_path):
    rows = [{"prompt": "", "secret": n // 2} for n in range(20)]  # each number twice
    environment, _ = own(rows=rows)
    data = DataConfig(train_file=tmp_path / "rows.jsonl", held_out_fraction=0.3)
    split = environment.load_split(data, 0)
    held_out = {task.row["secret"] for task in split.val}
    assert (len(split.train), len(split.val), len(held_out)) == (14, 6, 3)
    assert held_out.isdisjoint(task.row["secret"] for task in split.train)
    assert own(rows=rows)[0].load_split(data, 0) == split
    assert environment.task(json.loads(json.dumps(split.val[0].to_dict()))) == split.val[0]


def test_a_column_that_a_row_lacks_is_none_as_in_a_dataset(own):
    _, tasks = own(rows=[{"prompt": "a", "secret": 1}, {"prompt": "b", "secret": 2, "id": "x", "kind": "even"}])
    assert [(task.id, task.kind, task.row) for task in tasks] == [
        ("rows-1", "Game", {"prompt": "a", "secret": 1, "id": None, "kind": None}),
        ("x", "even", {"prompt": "b", "secret": 2, "id": "x", "kind": "even"}),
    ]


# errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "name", "words"), [
    pytest.param("class Game\n", "Game", r"mine.py:1: SyntaxError: expected ':': class Game", id="syntax"),
    pytest.param("\nimport nothing_there\n", "Game",
                 r"mine.py:2: importing it raised ModuleNotFoundError: No module named 'nothing_there'", id="import"),
    pytest.param("import sys\nsys.exit(0)\n", "Game", r"mine.py:2: .*SystemExit.*__main__", id="a_script"),
    pytest.param(GAME + "trainer = print\ntrainer.train()\n", "Game",
                 r"mine.py:51: trainer.train\(\) starts a training as soon as .* under if __name__", id="a_training"),
    pytest.param(GAME, "Gane", r"mine.py has no 'Gane'; it defines Game", id="no_such_name"),
    pytest.param("class Game:\n    pass\n", "Game", r"mine.py:1: class Game has no method `reset`", id="no_reset"),
    pytest.param(GAME.replace("Ask whether the number is odd.", ""), "Game",
                 r"mine.py:39: Game.hint .* no docstring.*begins with `_`", id="no_docstring"),
    pytest.param(GAME.replace("number: int", "number"), "Game",
                 r"mine.py:16: Game.guess .*number is missing a type hint", id="no_type_hint"),
    pytest.param(GAME.replace("            number: The guess.\n", ""), "Game",
                 r"mine.py:16: Game.guess .*no description for the argument 'number'", id="no_description"),
    pytest.param("Game = 5\n", "Game", "Game is 5, expected a class", id="no_class"),
    pytest.param("Game = {'a': int}\n", "Game", "is a dict of environments; name one of them", id="dict"),
    pytest.param(TASKSET, "Shelf", r"mine.py:4: class Shelf says what can be asked \(Taskset\) and not where it is "
                 r"played; derive it from sql_agent.environments.base.Environment; it lacks from_settings, judge, "
                 r"max_replies, open, read_split, task", id="only_a_taskset"),
    pytest.param(TASKSET.replace("(Taskset)", "(Environment)"), "Shelf",
                 r"mine.py:4: class Shelf lacks from_settings, .* of sql_agent.environments.base.Environment",
                 id="half_an_environment"),
    pytest.param(ORDERS.replace("    @classmethod\n", ""), "Orders",
                 r"mine.py:4: .*Orders.prompt has to be a classmethod", id="prompt"),
    pytest.param(MAKER.replace("    @classmethod\n    def load_split", "    def load_split"), "Orders",
                 r"mine.py:4: .*Orders.load_split has to be a classmethod", id="load_split"),
])  # fmt: skip
def test_a_file_that_does_not_fit_is_named_with_its_line_and_the_remedy(own, text, name, words):
    with pytest.raises(UserFileError, match=words):
        own(text, name)


@pytest.mark.parametrize(("rows", "words"), [
    ([{"prompt": "a", "secret": 1}, {"question": "b", "secret": 2}], r"rows.jsonl, line 2: no `prompt`.*mine.py:4"),
    ([{"prompt": "a"}], r"mine.py:10: reset does not take the columns of .*rows.jsonl, line 1 \(prompt\).*'secret'"),
    ([{"prompt": 5, "secret": 1}], "line 1: its prompt is 5, expected a text, or a list of messages"),
    ([{"prompt": [{"content": "a"}], "secret": 1}], "its prompt has a message"),
    ([{"prompt": "a", "secret": 1, "id": 1}, {"prompt": "b", "secret": 1, "id": 1}], "line 2: its id '1' is also"),
    (["a", "b"], "line 1: expected a JSON object with the columns of a row, found str"),
    ([], "no rows"),
])  # fmt: skip
def test_rows_that_do_not_fit_are_named(own, rows, words):
    with pytest.raises(ValueError, match=words):
        own(rows=rows)


@pytest.mark.parametrize(("name", "words"), [
    ("missing.py:Game", r"missing.py cannot be read \(No such file or directory\); give FILE.py:NAME, a path from /"),
    ("no_such_module:Game", "there is no module 'no_such_module'; install its package"),
    ("json:", "write FILE.py:NAME or module:NAME"),
])  # fmt: skip
def test_a_name_that_leads_nowhere_is_refused(name, words):
    with pytest.raises(UserFileError, match=words):
        make_environment(load_config(None, [f"env.type={json.dumps(name)}"]).environment)


def test_an_installed_package_names_its_environments_as_entry_points(own, tmp_path, monkeypatch):
    package = tmp_path / "site"
    (package / "shop-1.0.dist-info").mkdir(parents=True)
    (package / "shop-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (package / "shop-1.0.dist-info" / "entry_points.txt").write_text(
        "[agentgrpo.environments]\nguess = shop_env:Game\n"
    )
    (package / "shop_env.py").write_text(GAME)
    monkeypatch.syspath_prepend(str(package))
    environment = make_environment(load_config(None, ["env.type=guess"]).environment)
    assert [tool["function"]["name"] for tool in environment.tools] == ["guess", "hint"]


def test_an_object_that_cannot_be_made_is_found_before_the_run(own):
    environment, _ = own(GAME.replace("self.episodes = 0", "raise OSError('no docker')", 1))
    with pytest.raises(UserFileError, match=r"(?s)mine.py:4: Game\(\) cannot be made.*line 8.*OSError: no docker"):
        environment.check_episodes()


def test_a_file_that_changes_while_a_run_goes_on_does_not_change_the_run(own):
    def tools():
        environment, _ = own(texts.pop())
        return [tool["function"]["name"] for tool in environment.tools]

    texts = [GAME.replace("def hint", "def help_me"), GAME.replace("def hint", "def help_me"), GAME]
    assert tools() == tools() == ["guess", "hint"]
    forget_user_files()  # as in the next command
    assert tools() == ["guess", "help_me"]


def test_a_sqlite_connection_of_the_class_would_refuse_another_thread():
    """What `_db` of the game above guards: without a thread of its own every call but the first would raise."""
    connection, errors = sqlite3.connect(":memory:"), []

    def use():
        try:
            connection.execute("SELECT 1")
        except sqlite3.ProgrammingError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(errors) == 1


def test_a_class_of_the_interface_itself_is_taken_as_it_is(own, tmp_path):
    (tmp_path / "rows.jsonl").touch()
    name = f"{Path(__file__).parents[2]}/sql_agent/environments/dbbench.py:DbBench"
    assert make_environment(EnvironmentSettings(name)).tools[0]["function"]["name"] == "execute_sql"
