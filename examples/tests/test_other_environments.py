"""examples/other_environments: what becomes of a rollout whose worker, a real process, answers or does not.

The slow tests train verifiers' and OpenEnv's environments where the Python environments of the page are made.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import agentlightning as agl
import pytest

from agentgrpo.user_files import UserFileError, load_object
from sql_agent.tests.conftest import train_small_policy

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "other_environments"
agent_of, WorkerError = (load_object(f"{EXAMPLE}/other_python.py:{name}")[0] for name in ("agent_of", "WorkerError"))
LLM = agl.LLM(endpoint="http://127.0.0.1:1/v1", model="policy")

SCRIPTED = f"""
import asyncio, contextlib, os, subprocess, sys, time
sys.path.append({str(EXAMPLE)!r})
import worker
worker.END_S = 0.5

class Environment:
    def __init__(self):
        self.together, self.cancelled = asyncio.Barrier(2), 0

    def serving(self):
        return contextlib.nullcontext()

    async def play(self, row, policy):
        print("this is no answer")
        return await getattr(self, row["do"])()

    async def meet(self):
        await self.together.wait()
        return 0.5

    async def child(self):
        return len(subprocess.run(["cat"], capture_output=True, timeout=10).stdout)

    async def pid(self):
        return os.getpid()

    async def fail(self):
        raise KeyError("a word of the environment")

    async def die(self):
        os._exit(3)

    async def block(self):
        time.sleep(60)

    async def wait(self):
        await asyncio.sleep(60)

    async def pause(self):
        await asyncio.sleep(1)

asyncio.run(worker.serve(Environment))
"""


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Plays rows one after another, or those of a tuple at once, and gives their rewards or errors."""
    monkeypatch.setitem(agent_of.__globals__, "CANCEL_S", 0.2)

    def play(*rows, script=SCRIPTED):
        (tmp_path / "scripted.py").write_text(script)
        agent = agent_of(sys.executable, worker=tmp_path / "scripted.py")

        async def one(do):
            async with asyncio.timeout(1.0 if do in ("block", "wait") else 60.0):
                return await agent({"do": do}, llm=LLM)

        async def all_rows():
            results = []
            for row in rows:
                each = [one(do) for do in (row if isinstance(row, tuple) else (row,))]
                results += await asyncio.gather(*each, return_exceptions=True)
            return results

        return asyncio.run(all_rows())

    return play


def test_rollouts_share_a_worker_that_plays_them_at_once(play):
    # each of two waits for the other
    one, other, *pids = play(("meet", "meet"), "pid", "pid")
    assert (one, other) == (0.5, 0.5)
    assert pids[0] == pids[1] != os.getpid()


def test_what_a_process_of_the_environment_reads_is_no_row(play):
    assert play(("child", "pid"))[0] == 0


def test_what_the_environment_raises_is_the_error_of_its_rollout_alone(play):
    before, error, after = play("pid", "fail", "pid")
    assert isinstance(error, WorkerError)
    assert re.search(r"(?s)^Traceback.*scripted\.py.*in fail.*KeyError: 'a word of the environment'", str(error))
    assert before == after


def test_a_worker_that_dies_loses_its_rollouts_and_another_plays_the_next(play):
    before, waiting, died, after = play("pid", ("wait", "die"), "pid")
    for error in (waiting, died):
        assert isinstance(error, WorkerError) and "the worker ended with status 3" in str(error)
    assert isinstance(after, int) and after != before


def test_a_rollout_that_takes_too_long_is_ended_and_its_worker_lives(play):
    before, late, _, after = play("pid", "wait", "pause", "pid")
    assert isinstance(late, TimeoutError)
    assert before == after


def test_a_worker_that_is_silent_after_the_deadline_is_replaced(play):
    before, late, next_one, after = play("pid", "block", "pid", "pid")
    assert isinstance(late, TimeoutError)
    # one that was sent to the silent worker is lost with it
    assert isinstance(next_one, WorkerError) and "ended with status -9" in str(next_one)
    assert isinstance(after, int) and after != before


def test_a_line_that_is_no_answer_ends_the_worker(play):
    rubbish = "print('{\"id\": 0}', flush=True)\ninput()\nprint('Loading weights: 50%', flush=True)\ninput()\n"
    [error] = play("pid", script=rubbish)
    assert "status -9: it wrote b'Loading weights: 50%\\n', which is no answer" in str(error)


def test_a_worker_that_does_not_start_says_why(play, monkeypatch):
    [error] = play("pid", script=SCRIPTED.replace("asyncio.Barrier(2)", "1 / 0"))
    assert "ZeroDivisionError" in str(error)
    monkeypatch.setitem(agent_of.__globals__, "START_S", 0.2)
    [error] = play("pid", script="import time\ntime.sleep(60)")
    assert str(error).endswith("was not ready after 0.2 s")


def test_a_worker_ends_with_its_parent_even_if_an_episode_blocks_it(tmp_path):
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    with subprocess.Popen([sys.executable, tmp_path / "scripted.py"], stdin=-1, stdout=-1, text=True) as worker:
        assert worker.stdin and worker.stdout
        assert json.loads(worker.stdout.readline()) == {"id": 0}
        worker.stdin.write(json.dumps({"id": 1, "row": {"do": "block"}, "policy": {}}) + "\n")
        worker.stdin.close()  # as the kernel does it
        assert worker.wait(10) == 1


def test_a_python_that_is_not_there_is_named_before_the_run():
    with pytest.raises(UserFileError, match=r"there is no .*/\.venv-none/bin/python; make that environment"):
        agent_of(".venv-none/bin/python")


def python_of(variable, folder):
    python = Path(os.environ.get(variable, ROOT / folder / "bin" / "python"))
    if not python.is_file():
        pytest.skip(f"needs the Python environment of examples/other_environments/README.md: {python}, or {variable}")
    return str(python)


def train(tmp_path, example, rows):
    flags = ["--agent", f"{EXAMPLE}/{example}.py:agent", "--train-file", str(rows)]
    settings = ["agent.max_tokens=96", "rollout.trajectories_per_step=16", "rollout.max_resamples=0"]
    run = train_small_policy(tmp_path / "run", *flags, settings=settings)
    assert len(run.rollouts) == 16  # four tasks, four rollouts each
    assert {(rollout["lost"], rollout["score"]["reason"]) for rollout in run.rollouts} == {(None, "own_reward")}
    assert run.metrics["policy/grad_norm"] > 0
    assert run.metrics["engine/probs_diff_max"] < 1e-3
    assert run.metrics["prefix/broken_frac"] == 0.0
    return run.rollouts


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_environment_of_openenv_is_trained_as_its_command_makes_it(tmp_path, monkeypatch):
    python = python_of("OPENENV_PYTHON", ".venv-openenv")
    subprocess.run([Path(python).with_name("openenv"), "init", "echo_env"], cwd=tmp_path, check=True, timeout=120)
    monkeypatch.setenv("OPENENV_PYTHON", python)
    monkeypatch.setenv("ECHO_ENV", str(tmp_path / "echo_env"))
    for rollout in train(tmp_path, "echo", EXAMPLE / "tasks.jsonl"):
        said = [message["content"] or "" for message in rollout["messages"] if message["role"] == "assistant"]
        # a tenth for each character of a reply, at most 1
        assert rollout["reward"] == pytest.approx(sum(min(len(text) / 10, 1.0) for text in said))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_environment_of_verifiers_is_trained_as_it_is(tmp_path, monkeypatch):
    python = python_of("VERIFIERS_PYTHON", ".venv-verifiers")
    [rows] = re.findall(r"-c '(.*?)'", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    lines = subprocess.run([python, "-c", rows], check=True, timeout=120, capture_output=True).stdout
    (tmp_path / "rows.jsonl").write_bytes(lines)
    monkeypatch.setenv("VERIFIERS_PYTHON", python)
    answers = {row["prompt"]: row["answer"] for row in map(json.loads, lines.splitlines())}
    for rollout in train(tmp_path, "glossary", tmp_path / "rows.jsonl"):
        answer, last = answers[rollout["messages"][0]["content"]], rollout["messages"][-1]
        found = last["role"] == "assistant" and answer.lower() in (last["content"] or "").lower()
        assert rollout["reward"] == float(found)
