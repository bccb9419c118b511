"""The conversation as a person has it: through a terminal, and through pipes."""

import json
import os
import pty
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from sql_agent.commands.interactive import LEARNT, main
from sql_agent.local.tasks import entered
from sql_agent.settings.groups import EnvironmentSettings
from sql_agent.tests.conftest import random_policy_folder  # noqa: F401  a fixture
from sql_agent.tiny_policy.make import make_tiny_policy
from sql_agent.trained_on import TaskSource, TrainedOn, environment_flags, trained_further, write_trained_on

ROOT = Path(__file__).parents[3]
QUIET = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TERM": "xterm", "COLUMNS": "100"}
COMMAND = [sys.executable, "-m", "agentgrpo", "interactive", "--device", "cpu"]


@pytest.fixture(scope="module")
def tiny_policy() -> str:
    make_tiny_policy(ROOT / "models" / "tiny-sql")
    return str(ROOT / "models" / "tiny-sql")


class Terminal:
    """A command in a pseudo-terminal of its own."""

    def __init__(self, line: list[str]) -> None:
        self._own, theirs = pty.openpty()
        self.process = subprocess.Popen(
            line, cwd=ROOT, env=QUIET, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=take_terminal,
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def wait_for(self, words: str, timeout_s: float = 120.0) -> str:
        """Everything that came since the last wait, once `words` are in it; once anything came for no words."""
        deadline = time.monotonic() + timeout_s
        while words not in self.seen or not self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self._own], [], [], 0.2)[0]:
                self.seen += os.read(self._own, 65536).decode("utf-8", "replace")
        end = self.seen.index(words) + len(words)
        shown, self.seen = self.seen[:end], self.seen[end:]
        return shown

    def interrupt(self, words: str) -> str:
        """Ctrl-C at the prompt. One that comes between the prompt and the read that waits for a line is seen with the
        next key only (Python's readline), so it is pressed again, as a person would."""
        for _ in range(5):
            self.type("\x03")
            with suppress(AssertionError):
                return self.wait_for(words, timeout_s=10.0)
        raise AssertionError(self.seen)


def take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.slow
def test_a_conversation_in_a_terminal(tiny_policy, heard_signals):
    terminal = Terminal([*COMMAND, "--model_path", tiny_policy, "--max_new_tokens", "3000"])
    terminal.wait_for("> ")
    terminal.type(":task 3\n")
    shown = terminal.wait_for(" s\x1b[0m\r\n")
    assert "\x1b[" in shown  # colours
    in_order = r"  execute_sql  SELECT .*  → \[.*  commit_final_answer  .*  → Committed\."
    assert re.search(in_order, plain(shown), re.DOTALL)
    assert re.search(r"judge: (correct|wrong \(\w+\))  2 replies, \d+ tokens, \d+\.\d s", plain(shown))
    terminal.wait_for("> ")
    terminal.type(":nothing\n")
    terminal.wait_for(":nothing is no command")
    terminal.wait_for("> ")
    terminal.interrupt("Ctrl-D ends")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.process.wait(30) == 0


@pytest.mark.slow
def test_ctrl_c_stops_the_reply_and_the_conversation_goes_on(
    random_policy_folder,  # noqa: F811  which never ends a reply
    heard_signals,
):
    terminal = Terminal([*COMMAND, "--model_path", str(random_policy_folder), "--task", "gsm8k"])
    terminal.wait_for("> ")
    terminal.type("Ann has 3 eggs and eats one. How many are left?\n")
    terminal.wait_for("left?\r\n")
    terminal.wait_for("")
    os.kill(terminal.process.pid, signal.SIGINT)
    shown = terminal.wait_for(" s\x1b[0m\r\n")
    assert "stopped; the reply so far stays in the conversation" in plain(shown)
    terminal.wait_for("> ")
    terminal.type(":quit\n")
    assert terminal.process.wait(30) == 0


@pytest.mark.slow
def test_through_pipes_a_persons_own_database_is_asked_about_and_stays_as_it_was(tiny_policy, tmp_path):
    file = tmp_path / "shop.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE fruit (name TEXT, price INT)")
        connection.execute("INSERT INTO fruit VALUES ('apple', 3), ('pear', 5)")
    before = file.read_bytes()
    lines = ":tasks\nDrop every row with `price` is 5.\n:tables\n:new\n:tables\n"
    done = subprocess.run(
        [*COMMAND, "--model_path", tiny_policy, "--database", str(file)],
        cwd=ROOT, env=QUIET, input=lines, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "no tasks at hand" in done.stdout
    assert "> Drop every row with `price` is 5.\n  execute_sql  DELETE FROM `fruit` WHERE `price` = 5\n" in done.stdout
    assert "no judge: the question is your own  2 replies" in done.stdout
    assert re.findall(r"fruit, \d rows?", done.stdout) == ["fruit, 2 rows", "fruit, 1 row", "fruit, 2 rows"]
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "-1"], "--temperature: expected greater than or equal to 0"),
        (["--max_new_tokens", "0"], "--max-tokens: expected greater than or equal to 1"),
        (["--data", "a.jsonl", "--database", "b.sqlite"], "--tasks about --database need --env text2sql"),
        (
            ["--task", "gsm8k", "--protocol", "lab"],
            "--protocol belongs to --env dbbench, this one is gsm8k; leave it out",
        ),
        (["--env", "mine.py:Shop", "--database", "b.sqlite"], "--database belongs to --env dbbench or text2sql, this"),
        (["--env", "agent"], "--env agent: an agent of your own calls the policy over HTTP"),
    ],
)
def test_flags_that_cannot_be_meant_are_named(arguments, words, capsys):
    with pytest.raises(SystemExit):
        main(["--model_path", "x", *arguments])
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--database", "gone.sqlite"], "--database gone.sqlite: no such file"),
        (["--data", "gone.jsonl"], r"gone\.jsonl: no such file"),
        (["--task", "gsm8k", "--data", "gone.jsonl"], r"gone\.jsonl: no such file"),
        (["--env", "text2sql"], "--env text2sql needs a database: --database FILE"),
        (["--env", "examples/own_environment/orders.py:Orders"], "give a file of rows, --tasks ROWS.jsonl"),
    ],
)
def test_what_is_not_there_is_said_before_the_model_is_read(arguments, words, monkeypatch):
    monkeypatch.setattr("sql_agent.commands.interactive.require", lambda **_: None)
    with pytest.raises(SystemExit, match=words):
        main(["--model_path", "nowhere", *arguments])


def test_task_n_of_a_file_is_its_row_n(tmp_path, monkeypatch):
    rows = [{"question": f"Question {n}?", "answer": f"#### {n}"} for n in range(10)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    talked = []
    monkeypatch.setattr("sql_agent.commands.interactive.require", lambda **_: None)
    monkeypatch.setattr("sql_agent.commands.interactive._converse", lambda cfg, subject, show: talked.append(subject))
    main(["--model_path", "x", "--task", "gsm8k", "--data", str(tmp_path / "own.jsonl")])
    assert [problem.question for problem in talked[0].tasks] == [row["question"] for row in rows]


@pytest.mark.parametrize(
    ("flags", "env", "protocol"),
    [
        ([], "gsm8k", "fc"),
        (["--env", "dbbench", "--protocol", "lab"], "dbbench", "lab"),
        (["--env", "dbbench"], "dbbench", "fc"),
    ],
)
def test_an_adapter_says_what_it_was_trained_on_unless_a_flag_does(tmp_path, monkeypatch, flags, env, protocol):
    write_trained_on(tmp_path, TrainedOn(env="gsm8k"))
    talked = []
    monkeypatch.setattr("sql_agent.commands.interactive.require", lambda **_: None)
    monkeypatch.setattr("sql_agent.commands.interactive._converse", lambda cfg, subject, show: talked.append(cfg))
    main(["--model_path", str(tmp_path), *flags])
    assert [(cfg.env, cfg.protocol) for cfg in talked] == [(env, protocol)]


def test_a_missing_checkpoint_is_named_before_flags_that_it_would_have_answered(tmp_path):
    (tmp_path / "checkpoints/global_step_3").mkdir(parents=True)
    missing = tmp_path / "checkpoints/global_step_12/actor/huggingface"
    with pytest.raises(SystemExit) as ended:
        main(["--model", str(missing), "--database", "shop.sqlite", "--tasks", "questions.json"])
    assert str(ended.value).startswith(f"error: {missing} is no folder; ")
    assert str(ended.value).endswith(f"; {tmp_path}/checkpoints has global_step_3")


def test_a_task_that_the_model_was_trained_on_is_said_to_be_one(random_policy_folder, tmp_path, capsys, monkeypatch):  # noqa: F811
    rows = [{"question": f"Ann has {number} eggs. How many are left?", "answer": "#### 2"} for number in (3, 4)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with entered(EnvironmentSettings("gsm8k")) as environment:
        first, _ = environment.read_tasks(tmp_path / "own.jsonl")
        record = TrainedOn(env="gsm8k", learnt=(environment.fingerprint(first),))
    model = tmp_path / "model"
    shutil.copytree(random_policy_folder, model)
    write_trained_on(model, record)
    typed = iter([":task 2", ":task 1", ":quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    main(["--model", str(model), "--tasks", str(tmp_path / "own.jsonl"), "--max-tokens", "1", "--device", "cpu"])
    second, first = capsys.readouterr().out.split("Ann has 4 eggs")[1].split("Ann has 3 eggs")
    assert (LEARNT in second, LEARNT in first) == (False, True)


def test_a_model_folder_names_no_program_that_would_run(tmp_path, capsys):
    (tmp_path / "own.py").write_text("raise SystemExit('this file was run')")
    (tmp_path / "trained_on.json").write_text(json.dumps({"env": f"{tmp_path}/own.py:Own"}))
    with pytest.raises(SystemExit, match="2"):
        main(["--model_path", str(tmp_path)])
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith(
        f"error: {tmp_path}/trained_on.json says that the model was trained on {tmp_path}/own.py:Own, a program that "
        f"is not part of this project; if you trust it, give --env {tmp_path}/own.py:Own"
    )


@pytest.mark.parametrize("text", ["", "[]", '{"protocol": "lab"}', "no JSON"])
def test_a_model_that_does_not_say_it_is_taken_for_dbbenchs(tmp_path, text):
    (tmp_path / "trained_on.json").write_text(text)
    assert environment_flags(tmp_path) == {} == environment_flags(tmp_path / "nowhere")


def test_a_model_says_how_its_prompts_showed_a_database(tmp_path):
    settings = EnvironmentSettings("text2sql", database="shop.db", schema_form="linked")
    source = TaskSource(command="agentgrpo sft", tasks="questions.json", learnt=1, held_out=1)
    write_trained_on(tmp_path, trained_further(TrainedOn(), source, settings=settings))
    assert environment_flags(tmp_path) == {"env": "text2sql", "schema_form": "linked"}


def test_a_database_is_closed_when_ctrl_c_comes_twice(random_policy_folder, monkeypatch):  # noqa: F811
    from transformers import AutoTokenizer

    from sql_agent.environments.dbbench import DbBench

    def twice(*_, **__):
        raise KeyboardInterrupt

    policy = SimpleNamespace(
        tokenizer=AutoTokenizer.from_pretrained(random_policy_folder), max_positions=9_999, device="cpu", generate=twice
    )
    opened, open_episode = [], DbBench.open
    monkeypatch.setattr(DbBench, "open", lambda *given: opened.append(open_episode(*given)) or opened[-1])
    monkeypatch.setattr("sql_agent.commands.interactive.require", lambda **_: None)
    monkeypatch.setattr("sql_agent.local.start.start_policy", lambda *_, **__: policy)
    monkeypatch.setattr("builtins.input", lambda prompt: ":task 1")
    with pytest.raises(SystemExit, match="130"):
        main(["--model_path", str(random_policy_folder)])
    assert len(opened) == 1
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        opened[0].snapshot()


def test_the_flags_have_the_names_of_the_other_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for flag in (
        "--max-tokens N Tokens of one reply. (default 512)",
        "--temperature X Sampling temperature; 0 is greedy. (default 0.0)",
    ):
        assert flag in shown
    for name in ("model", "env", "tasks", "database", "backend", "protocol", "device"):
        assert f"--{name}" in shown


@pytest.mark.slow
def test_the_command_is_not_taken_for_a_test():
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "scripts", "--ignore", "scripts/tests"],
        cwd=ROOT, env=QUIET, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert "test_interactive" not in listed.stdout and "no tests collected" in listed.stdout
