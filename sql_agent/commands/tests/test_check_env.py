"""What the command finds: each file below has one thing that a policy could break, and it is named."""

import json
from pathlib import Path

import pytest

from sql_agent.commands.check_env import main
from sql_agent.play.scripted import random_calls

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_environment"
GAME = '''
class Game:
    {extra}
    seen = []

    def reset(self, secret, **row):
        self.secret, self.hit = secret, False
        {reset}

    def guess(self, number: int) -> str:
        """Guess.

        Args:
            number: The guess.
        """
        {guess}
        self.hit = number == self.secret
        return "right" if self.hit else "wrong"

    def get_reward(self):
        {reward}
        return float(self.hit)
'''
ROWS = [{"prompt": "Guess my number.", "secret": n, "reference": [{"name": "guess", "arguments": {"number": n}}]}
        for n in (1000, 2000, 3000)]  # fmt: skip
SOLVED = "solved = property(lambda self: self.hit)"


@pytest.fixture
def check(tmp_path, capsys):
    """Checks the game with these lines in it; gives the exit status and what was printed, blanks collapsed."""

    def check(rows=ROWS, extra=SOLVED, reset="pass", guess="pass", reward="pass", options=()):
        (tmp_path / "mine.py").write_text(GAME.format(extra=extra, reset=reset, guess=guess, reward=reward))
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        status = main([f"{tmp_path}/mine.py:Game", "--tasks", str(tmp_path / "rows.jsonl"), *options])
        return status, " ".join(capsys.readouterr().out.split())

    return check


def test_the_example_shows_its_tools_and_its_prompt_and_has_no_problem(capsys):
    status = main([f"{EXAMPLE}/orders.py:Orders", "--tasks", str(EXAMPLE / "rows.jsonl"), "--limit", "2"])
    printed = " ".join(capsys.readouterr().out.split())
    assert status == 0
    assert (
        '{"name": "execute_sql", "description": "Run one SQL statement on the database and return its rows."' in printed
    )
    assert "user: Additional table information about the question: The table is called orders" in printed
    for row in ("nothing 2 0 0 0 0 of 2 0", "odd calls 12 0 0 0 0 of 12 0", "reference 2 1 1 1 2 of 2 0"):
        assert row in printed
    assert printed.endswith("no problems found")


def test_a_game_without_a_fault_has_none(check):
    status, printed = check()
    assert (status, printed[-17:]) == (0, "no problems found")
    assert "reference 3 1 1 1 3 of 3 0" in printed


def test_a_file_that_draws_lots_leaks_nothing(check):
    draw = "import random; self.hit = number == self.secret; return str((self.hit, random.random()))"
    assert check(reset="import random; return str(random.random())", guess=draw)[0] == 0


@pytest.mark.parametrize(("lines", "words"), [
    pytest.param({"guess": "return {}[number]"}, "a tool raised KeyError in", id="a_fault_in_a_tool"),
    pytest.param({"reset": "self.x = 1 / 0"}, "lost under reset_error", id="reset_raises"),
    pytest.param({"reward": "raise OSError('gone')"}, "lost under get_reward_error", id="get_reward_raises"),
    pytest.param({"guess": "while number < 0: pass", "options": ("--call-timeout", "0.3")},
                 "lost under tool_deadline (task 'rows-1'; the last call was guess({\"number\": -1})) tool: it did not "
                 "return within 0.3 s", id="a_tool_hangs"),
    pytest.param({"extra": "solved = True"}, "nothing solved 3 of 3", id="doing_nothing_solves"),
    pytest.param({"reward": "return 0.5"}, "nothing is worth 0.5 on 6 of 6 episodes", id="doing_nothing_pays"),
    pytest.param({"guess": "self.secret = number"}, "random calls solved 12 of 12", id="random_calls_solve"),
    pytest.param({"reset": "self.secret = 0"}, "the reference does not solve 3 of 3 tasks", id="wrong_reference"),
    pytest.param({"guess": "self.n = getattr(self, 'n', 0) + 1; return str(self.n)"},
                 "`reset` does not reset everything. after guess({\"number\": 1000}): '1', then ",
                 id="the_object_remembers"),
    pytest.param({"guess": "self.seen.append(number); return str(len(self.seen))"},
                 "on a new object, so something outside of it", id="the_class_remembers"),
    pytest.param({"guess": "type(self).hit = number == self.secret; return str(self.hit)", "reset": "Game.turn = self",
                  "reward": "return float(Game.turn is self)"},
                 "beside an episode of another task", id="two_episodes_share"),
    pytest.param({"rows": [{**row, "prompt": f"Guess {row['secret']}."} for row in ROWS]},
                 "the value of `secret` stands in the prompt of 3 of 3 tasks, for example 'rows-1': 'Guess 1000.'",
                 id="the_prompt_has_the_answer"),
    pytest.param({"reset": "return f' It is not {secret}.'"}, "the value of `secret` stands in the prompt of 3 of 3",
                 id="what_reset_returns_has_the_answer"),
])  # fmt: skip
def test_what_a_policy_could_break_is_a_problem(check, lines, words):
    status, printed = check(**lines)
    assert status == 1
    assert f"problem: {words}" in printed or f"{words}" in printed.partition("problem: ")[2]


@pytest.mark.parametrize(("lines", "words"), [
    pytest.param({"guess": "raise ValueError('Game over.')"}, "the policy reads {'error': 'Game over.'}", id="raises"),
    pytest.param({"guess": "return 'x' * 5000"}, "a result has 5,000 characters", id="a_long_result"),
    pytest.param({"guess": "print('hello')"}, "it prints: 'hello", id="prints"),
    pytest.param({"reward": "return -1.0 if self.secret < 0 else 0.0", "extra": "x = 1"},
                 "every episode was worth 0: nothing here shows that a task can be solved", id="no_spread"),
])  # fmt: skip
def test_what_may_be_meant_so_is_a_note(check, lines, words):
    rows = [{name: row[name] for name in ("prompt", "secret")} for row in ROWS]
    status, printed = check(rows, **lines)
    assert status == 0
    assert words in printed.partition("note: ")[2]


def test_random_calls_take_the_values_that_a_description_names():
    schema = {"type": "string", "description": 'One of "up", "down" or `left`.'}
    tool = {"function": {"name": "move", "parameters": {"properties": {"to": schema}, "required": ["to"]}}}
    replies = [reply for seed in range(4) for reply in random_calls([tool], ["word"], seed)]
    calls = [reply["tool_calls"][0]["function"] for reply in replies if reply.get("tool_calls")]
    assert {"up", "down", "left"} <= {json.loads(each["arguments"])["to"] for each in calls}


def test_a_class_that_gives_no_reward_is_said_to_need_one(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("class Game:\n    def reset(self, **row):\n        return ' Go.'\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Play."}\n')
    assert main([f"{tmp_path}/mine.py:Game", "--tasks", str(tmp_path / "rows.jsonl")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "user: Play. Go." in printed
    assert "note: it gives neither a verdict nor a reward (`get_reward`)" in printed


def test_a_file_that_does_not_fit_ends_the_check_before_any_play(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("class Game\n")
    assert main([f"{tmp_path}/mine.py:Game"]) == 2
    assert "mine.py:1: SyntaxError" in " ".join(capsys.readouterr().out.split())


def test_without_rows_it_asks_for_them(tmp_path, capsys):
    assert main([f"{EXAMPLE}/orders.py:Orders"]) == 2
    assert "makes no tasks; give a file of rows" in " ".join(capsys.readouterr().out.split())
