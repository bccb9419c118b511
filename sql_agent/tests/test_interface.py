"""The commands as functions: what they type, what they return, how they fail, and that they end what they start."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import agentgrpo
from agentgrpo.run_folder import begin
from dbbench_adapter.tasks.load import load_tasks
from scripts.tests.report_run import make_run
from sql_agent import interface, oracle
from sql_agent.interface import Evaluation, command_words, failure, single_settings
from sql_agent.report.reading import HeldOut, ValidationChange
from sql_agent.settings.groups import DataConfig
from sql_agent.settings.main_job import TrainerConfig
from sql_agent.settings.train import TrainConfig
from sql_agent.startup.flags import parse_train_args, resolve
from sql_agent.success_rate import Rate

ROOT = Path(__file__).parents[2]
PAGE = re.search(
    r"## From Python\n.*?```python\n(.*?)```", (ROOT / "doc" / "guides/training.md").read_text(), re.DOTALL
)[1]  # type: ignore[index]


def test_keywords_are_typed_as_flags():
    flags = {
        "run_dir": Path("runs/mine"),
        "lora": True,
        "debug": False,
        "model": None,
        "num_tasks": 8,
        "train_agents": ["clerk", "critic"],
        "reward": {"agentbench": 1, "my.py:short": 0.2},
        "set": {"trainer.steps": 2, "data.skills": ["select"], "data.train_file": Path("a b.json")},
    }
    assert [*command_words(flags)] == [
        "--run-dir=runs/mine",
        "--lora",
        "--num-tasks=8",
        "--train-agents=clerk,critic",
        "--reward=agentbench=1",
        "--reward=my.py:short=0.2",
        "--set=trainer.steps=2",
        '--set=data.skills=["select"]',
        '--set=data.train_file="a b.json"',
    ]


def test_code_is_named_by_its_module_or_file():
    assert [*command_words({"reward": {command_words: 1}})] == ["--reward=sql_agent.interface:command_words=1"]
    both = [*command_words({"reward": [command_words, failure]})]
    assert both == ["--reward=sql_agent.interface:command_words", "--reward=sql_agent.interface:failure"]
    with pytest.raises(TypeError, match=r'reward is .*: write it to a file, and give its place, reward="FILE.py:NAME"'):
        agentgrpo.train(reward=lambda record: 1.0)


def test_a_command_does_its_work_and_prints_what_it_says(tmp_path, capsys):
    agentgrpo.command("tasks generate", num_tasks=4, output=tmp_path / "tasks.json")
    assert len(json.loads((tmp_path / "tasks.json").read_text())) == 4
    assert str(tmp_path / "tasks.json") in capsys.readouterr().out


def test_a_command_that_fails_raises_its_own_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"^no command 'sfft'; did you mean sft\?; `agentgrpo --help` lists"):
        agentgrpo.command("sfft")
    with pytest.raises(RuntimeError, match=r"nowhere\.json: no such file;"):
        agentgrpo.command("tasks validate", tmp_path / "nowhere.json")


def test_settings_of_every_form_are_checked_by_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^config: trainer.stepps: unknown setting; did you mean trainer.steps\?$"):
        agentgrpo.train({"trainer.stepps": 2}, model="nowhere")  # no run begins if the setting is lost
    settings = TrainConfig(trainer=TrainerConfig(steps=2))
    with pytest.raises(ValueError, match=r"^unrecognized arguments: --run-dirr; did you mean --run-dir\?$"):
        agentgrpo.train(settings, run_dirr="runs/mine")
    assert list(tmp_path.iterdir()) == []


def test_a_group_of_settings_leaves_its_other_settings_alone(tmp_path):
    """The flag's file and the preset's number stay beside the group that is given whole."""
    settings = TrainConfig(data=DataConfig(train_batch_size=3), trainer=TrainerConfig(steps=2))
    given = settings.model_dump(mode="json", exclude_unset=True)
    for tree in (given, {"data.train_batch_size": 3, "trainer": {"steps": 2}}):
        words = command_words(
            {"train_file": tmp_path / "q.json", "ci_fast": True, "set": dict(single_settings(tree, TrainConfig))}
        )
        cfg = resolve(parse_train_args([*words]))
        assert (cfg.data.train_file, cfg.data.train_batch_size, cfg.data.val_limit) == (tmp_path / "q.json", 3, 8)
        assert (cfg.trainer.steps, cfg.trainer.save_every) == (2, 1)


def test_settings_are_given_once():
    with pytest.raises(TypeError, match="set is the first argument"):
        agentgrpo.train(set={"trainer.steps": 2}, dry_run=True)


def test_only_the_settings_that_were_given_are_typed(monkeypatch):
    """The others are the preset's, or those of a file of settings."""
    given = []
    monkeypatch.setattr(interface, "command", lambda name, **flags: given.append(flags["set"]))
    monkeypatch.setattr(interface, "report", lambda run_dir: run_dir)
    agentgrpo.train(TrainConfig(trainer=TrainerConfig(steps=2)), ci_fast=True)
    assert given == [{"trainer.steps": 2}]


@pytest.mark.parametrize("how", [{"dry_run": True}, {"algorithm": "apo"}, {"settings": {"algorithm": "apo"}}])
def test_what_leaves_no_run_is_told_which_function_to_call(how):
    with pytest.raises(ValueError, match=r'call agentgrpo\.command\("train", \.\.\.\) for them'):
        agentgrpo.train(**how)


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (2, ["step 1\n", "config: a: wrong\n", "config: b: wrong\n"], ValueError("config: a: wrong\nconfig: b: wrong")),
        (2, ["usage: agentgrpo local ...\n", "agentgrpo local: error: --seed: no\n"], ValueError("--seed: no")),
        (1, ["step 1\n", "error: the disk is full\n", "  /dev/sda\n"], RuntimeError("the disk is full\n  /dev/sda")),
        (1, ["--tasks: nowhere\n"], RuntimeError("--tasks: nowhere")),
        (-9, [], RuntimeError("the command ended with status -9")),
    ],
)
def test_the_message_is_what_the_command_said_was_wrong(status, said, expected):
    found = failure(status, said)
    assert (type(found), str(found)) == (type(expected), str(expected))


def test_a_run_is_opened_with_what_the_report_shows(tmp_path):
    run = agentgrpo.report(make_run(tmp_path / "run"))
    (tmp_path / "run/checkpoints/global_step_2/actor/huggingface").mkdir(parents=True)
    assert run == agentgrpo.read_run(str(tmp_path / "run"))
    assert (run.folder, run.report, run.state) == (tmp_path / "run", tmp_path / "run" / "report.html", "finished")
    assert run.report.is_file()
    assert [row["train_step"] for row in run.metrics] == [0, 1, 2]
    assert run.held_out == [HeldOut(0, 2, 5), HeldOut(2, 2, 5)]
    assert run.change == ValidationChange(tasks=5, gained=1, lost=1)
    assert run.checkpoints == [tmp_path / "run/checkpoints/global_step_2/actor/huggingface"]


def test_a_run_in_one_process_is_opened(tmp_path):
    rows = [
        {"train_step": 0, "held_out": {"n": 4, "judged": 4, "correct": 1}},
        {"train_step": 1, "reward/mean": 0.5, "rollout/stop": {"answered": 3, "max_turns": 1}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"train_step": 2, "ba')
    start = {"kind": "local", "steps": 1, "argv": ["agentgrpo local", "--seed", "3"]}
    begin(tmp_path, {"seed": 3}, start, resumed=False)
    for epoch in (2, 10):
        (tmp_path / f"epoch_{epoch}").mkdir()
        (tmp_path / f"epoch_{epoch}/adapter_config.json").touch()
    (tmp_path / "epoch_11.part").mkdir()  # of a run that was killed while it wrote
    run = agentgrpo.read_run(tmp_path)
    assert (run.folder, run.kind, run.settings, run.state) == (tmp_path, "local", {"seed": 3}, "finished")
    assert run.model == tmp_path / "epoch_10"
    assert run.held_out == [HeldOut(0, 1, 4)]
    ends = {"rollout/stop/answered": 0.75, "rollout/stop/max_turns": 0.25}
    assert run.metrics[1] == {"train_step": 1, "reward/mean": 0.5, **ends}


def test_an_evaluation_counts_tasks_not_rollouts_for_its_interval():
    def row(task, kind, value):
        return {"task_id": task, "kind": kind, "score": {"value": value, "reason": "match"}}

    rows = [row("a", "select", 1.0), row("b", "select", 0.5), row("c", "update", None), row("a", "select", 1.0)]
    found = Evaluation(Path("e.jsonl"), rows)
    # 3 judged, of two tasks: b is not solved; drawing two tasks of two gives 0 to 1
    assert (found.success.n, found.success.judged, found.success.correct, found.success.interval) == (4, 3, 2, (0, 1))
    assert found.by_kind["update"] == Rate(n=1, judged=0, correct=0)


def test_every_public_function_is_there_and_importing_takes_nothing():
    code = "import agentgrpo, sys; print(sorted(sys.modules.keys() & {'sql_agent', 'pydantic'}), dir(agentgrpo))"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.startswith("[] ")
    assert [name for name in agentgrpo.INTERFACE if not callable(getattr(agentgrpo, name)) or name not in said] == []
    with pytest.raises(AttributeError, match="module 'agentgrpo' has no attribute 'trian'"):
        agentgrpo.trian  # noqa: B018


@pytest.fixture
def waits(tmp_path, monkeypatch):
    """A command that begins, waits for a minute, and says how it ended; `begun` holds its pid."""
    (tmp_path / "sitecustomize.py").write_text(
        "import agentgrpo.main\nagentgrpo.main.COMMANDS['wait'] = ('waits', 'waits for a minute')\n"
    )
    (tmp_path / "waits.py").write_text(
        "import os, pathlib, time\n"
        "from agentgrpo.processes import ends_in_order\n"
        "def main():\n"
        "    with ends_in_order():\n"
        "        print('begun', flush=True)\n"
        f"        pathlib.Path({str(tmp_path / 'begun')!r}).write_text(str(os.getpid()))\n"
        "        time.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    return tmp_path / "begun"


def begun(file: Path) -> int:
    deadline = time.monotonic() + 60
    while not (file.is_file() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(file.read_text())


def test_ctrl_c_ends_the_command_in_order(waits, capsys, heard_signals):
    sessions = []

    def interrupt():
        sessions.append(os.getsid(begun(waits)))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        agentgrpo.command("wait")
    assert sessions != [os.getsid(0)]  # in this one a terminal would interrupt it a second time, while it ends
    assert capsys.readouterr().out.endswith("\nstopped\n")
    assert not Path(f"/proc/{begun(waits)}").exists()


def test_a_command_ends_with_the_process_that_called_it(waits):
    notebook = subprocess.Popen([sys.executable, "-c", "import agentgrpo; agentgrpo.command('wait')"], cwd=ROOT)
    pid = begun(waits)
    notebook.kill()
    notebook.wait()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_cells_of_the_page_train_and_measure(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shorter = '"agent.max_tokens": 96, "rollout.max_resamples": 0, "data.train_batch_size": 4'
    before, after, cells = *PAGE.replace('"data.train_batch_size": 4', shorter).split("measured = "), {}
    exec(before, cells)
    assert cells["run"].settings["agent"]["max_tokens"] == 96
    tuned, run = cells["tuned"], cells["run"]
    assert (tuned.model, (tuned.model / "config.json").is_file()) == (Path("runs/tuned"), True)
    assert [row["train_step"] for row in run.metrics] == [0, 1]
    assert [point.step for point in run.held_out] == [0, 1]
    assert (run.change.tasks, run.state) == (run.held_out[0].judged, "finished")
    assert (run.checkpoints[-1] / "config.json").is_file()
    assert cells["again"] == run
    said = capsys.readouterr().out
    assert "step 1/1" in said and str(run.report) in said

    tasks = load_tasks(tmp_path / "data" / "tasks.json")
    with oracle.serve(oracle.app(oracle.replay(tasks), model="mine")) as url:
        exec("measured = " + after.replace("http://127.0.0.1:8000/v1", url), cells)
    measured = cells["measured"]
    assert (measured.success, len(measured.rows)) == (Rate(n=4, judged=4, correct=4), 4)
    assert agentgrpo.report("runs/trained") == run
