"""`--algorithm apo`: agent-lightning's own APO, store, runners and poml, against endpoints that answer over HTTP."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from openai import APIStatusError
from starlette.responses import JSONResponse

from agentgrpo.machine import free_port
from agentgrpo.printed_commands import install_extra
from agentgrpo.processes import folders_of, processes_of
from agentgrpo.run_folder import last_run_id
from sql_agent import oracle
from sql_agent.environments.dbbench import DbBench
from sql_agent.model_servers.ask import failure_text
from sql_agent.settings.groups import DataConfig
from sql_agent.settings.load import load_config
from sql_agent.tests.conftest import HangingServer, wait_for
from sql_agent.train_sql_agent import main

ROOT = Path(__file__).parents[2]
INSTALLED = importlib.util.find_spec("poml") is not None
with_poml = pytest.mark.skipif(not INSTALLED, reason="poml is not installed; it is the extra apo of pyproject.toml")
KEY = "sk-of-the-optimiser"
OF_CRITIC = f"Bearer {KEY}".encode()
GOOD = "Be CAREFUL. Call execute_sql, then commit_final_answer."
SMALL = {
    "data.generate": 24, "data.val_limit": 8, "rollout.n_runners": 1, "apo.selection_tasks": 8, "apo.val_batch_size": 4,
    "apo.gradient_batch_size": 2, "apo.beam_rounds": 1, "apo.beam_width": 1, "apo.branch_factor": 3,
}  # fmt: skip
SPLIT = DbBench("strict").load_split(DataConfig(generate=24, val_limit=8), 0)


def careful(lost=frozenset()):
    """A policy that knows every answer, and says one only if its instructions hold CAREFUL; no answer about `lost`."""
    know = oracle.replay([*SPLIT.train, *SPLIT.val])
    nothing = oracle.calls(oracle.call("commit_final_answer", {"answers": ["no idea"]}))

    def answer(history):
        if any(question in history[1]["content"] for question in lost):
            return {"status": 500, "content": "out of order"}
        return know(history) if "CAREFUL" in history[0]["content"] else nothing

    return answer


def optimiser(edits):
    """Writes the same critique each time, and these edits one after another."""
    left = iter(edits)

    def answer(history):
        is_edit = any("Preserve" in message["content"] for message in history if message["role"] == "system")
        return {"role": "assistant", "content": next(left) if is_edit else "- ask for care"}

    return answer


def command(policy, optimiser_url, run_dir, **settings):
    flags = ["--algorithm", "apo", "--base-url", policy, "--model", oracle.MODEL, "--run-dir", str(run_dir)]
    flags += ["--apo-base-url", optimiser_url, "--apo-model", "critic", "--set"]
    return [*flags, *(f"{name}={value}" for name, value in {**SMALL, **settings}.items())]


def start(*args):
    environment = {**os.environ, "OPENAI_API_KEY": KEY}
    environment.pop("AGL_MANAGED_STORE", None)
    return subprocess.Popen(
        [sys.executable, "sql_agent/train_sql_agent.py", *args], cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def search(*args):
    process = start(*args)
    out, _ = process.communicate(timeout=900)
    return SimpleNamespace(code=process.returncode, out=out)


def of_version(run_dir, version):
    """Text, parent and results of a candidate; the results as (tasks, n, reward, judged, solved, lost)."""
    content = json.loads((run_dir / "candidates.json").read_text())
    (found,) = (each for each in content["candidates"] if each["version"] == version)
    return found["instructions"], found["parent"], [tuple(each.values()) for each in found["results"]]


def left_behind(run_id, patience_s=30.0):
    deadline = time.monotonic() + patience_s
    while (left := (processes_of(run_id, forks=True), folders_of(run_id))) != ([], []):
        if time.monotonic() > deadline:
            return left
        time.sleep(0.2)
    return [], []


# what is refused before anything starts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm=apo", "base_url=http://h:1/v1"], "missing: --model, --apo-base-url, --apo-model"),
        (["base_url=http://h:1/v1"], "base_url names a policy that is served already, which GRPO cannot train"),
        (["base_url=http://key@h:1/v1"], "a key is read from POLICY_API_KEY"),
        (["apo.base_url=http://key@h:1/v1"], "a key is read from OPENAI_API_KEY"),
        (
            ["algorithm=apo", "base_url=http://h:1/v1", "model=m", "apo.base_url=http://h:1/v1", "apo.gradient_model=c",
             "llm_proxy=true"],
            "uses no LLM proxy; leave --llm-proxy out",
        ),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(overrides, words):
    with pytest.raises(ValueError, match=words):
        load_config(None, overrides)


def test_a_dry_run_says_what_a_search_may_cost(capsys):
    assert main([*command("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1", "unused"), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    # 24 tasks: 8 to select on, 16 for critiques; 3 edits of a critique and an edit each. Held-out tasks twice, 16;
    # selection tasks once before, and 8 in the round; 3 x 2 rollouts for critiques; 4 tasks for each of 1 + 3 texts
    assert "tasks: 16 to train on, 8 held out; left out: too long 0" in printed
    assert "selection tasks, apart from these: 8" in printed
    assert "1 rounds, each of 3 edits at most; at most 6 critiques and edits by critic" in printed
    assert "and 54 rollouts of oracle at http://127.0.0.1:1/v1" in printed


def test_tasks_that_are_too_few_are_refused(capsys):
    too_few = {"apo.selection_tasks": 24}
    assert main([*command("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1", "unused", **too_few), "--dry-run"]) == 2
    words = "24 tasks to train on and 8 held-out ones are too few: apo.selection_tasks=24 are taken from the first"
    assert words in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--apo-model", "writer"], "does not serve 'writer'; it serves critic: name one with --apo-model"),
        (["--model", "other"], "does not serve 'other'; it serves oracle: name one with --model"),
        (["--env", "gsm8k"], "the tasks of environment gsm8k bring their whole prompt; change it there"),
    ],
)
@with_poml
def test_a_model_that_is_not_served_and_an_environment_without_instructions_are_refused(flags, words, tmp_path, capsys):
    with (
        oracle.serve(oracle.app(careful())) as policy,
        oracle.serve(oracle.app(optimiser([]), model="critic")) as critic,
    ):
        try:
            main([*command(policy, critic, tmp_path / "run"), *flags])
            error = capsys.readouterr().err
        except SystemExit as refused:
            error = str(refused)
    assert words in error
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.skipif(INSTALLED, reason="poml is installed")
def test_poml_is_asked_for_before_anything_starts(tmp_path, capsys):
    with oracle.serve(oracle.app(careful())) as policy:
        assert main(command(policy, "http://127.0.0.1:1/v1", tmp_path / "run")) == 2
    assert (
        f"needs the package poml, which is not installed; install the extra apo: `{install_extra('apo')}`"
        in capsys.readouterr().err
    )


# a search -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
@with_poml
def test_the_best_instructions_are_found_written_and_used(tmp_path, capsys):
    """The first edit names no tool, the second is good, the third is the second again; two held-out tasks are lost."""
    run, asked, keys = tmp_path / "run", [], {"policy": [], "critic": []}
    lost = {task.question for task in SPLIT.val[:2]}
    critic = oracle.app(optimiser(["Be CAREFUL.", f"{GOOD}\n", GOOD]), model="critic", on_request=asked.append)

    def watched(name, app):
        async def watch(scope, receive, send):
            if scope["type"] == "http":
                keys[name].append(dict(scope["headers"])[b"authorization"])
            await app(scope, receive, send)

        return watch

    with (
        oracle.serve(watched("policy", oracle.app(careful(lost)))) as policy,
        oracle.serve(watched("critic", critic)) as critic_url,
    ):
        ended = search(*command(policy, critic_url, run))
        assert ended.code == 0, ended.out
        assert {name: set(sent) for name, sent in keys.items()} == {"policy": {b"Bearer -"}, "critic": {OF_CRITIC}}
        assert (run / "prompt.txt").read_text() == f"{GOOD}\n"
        from dbbench_adapter.tasks.load import write_tasks
        from sql_agent.evaluate import main as evaluate

        write_tasks(tmp_path / "held_out.jsonl", SPLIT.val[2:])
        evaluate([
            "--base-url", policy, "--model", oracle.MODEL, "--tasks", str(tmp_path / "held_out.jsonl"),
            "--instructions", str(run / "prompt.txt"), "--output", str(tmp_path / "out.jsonl"),
        ])  # fmt: skip
    assert "all 6 6 6 100.0 %" in " ".join(capsys.readouterr().out.replace("│", " ").split())

    of_lost = {"model_unavailable": 2}
    assert of_version(run, "v0") == (
        DbBench("strict").instructions,
        None,
        [
            ("held-out", 8, 0.0, 6, 0, of_lost),  # a rollout without a verdict is not a 0, and not in the mean
            ("selection", 8, 0.0, 8, 0, {}),
            *[("gradient", 2, 0.0, 2, 0, {})] * 3,
            ("selection", 4, 0.0, 4, 0, {}),
        ],
    )
    assert of_version(run, "v1") == (
        GOOD,
        "v0",
        [("selection", 4, 1.0, 4, 4, {}), ("selection", 8, 1.0, 8, 8, {}), ("held-out", 8, 1.0, 6, 6, of_lost)],
    )
    rejected = json.loads((run / "candidates.json").read_text())["rejected"]
    assert [(each["parent"], each["reason"], each["instructions"]) for each in rejected] == [
        ("v0", "lacks_marks", "Be CAREFUL."),
        ("v0", "known", GOOD),
    ]
    # Wilson's intervals of 0 and 6 of 6: 1.96^2 / (6 + 1.96^2) = 39.0 %; six of six changed: p = 2 / 2^6
    for line in (
        "v1 (from v0): held-out reward 1.000, solved 6 of 6, lost 2",  # upstream's own mean, of what it is given
        "held-out success before  0.0% of 6 (95 % interval 0.0% to 39.0%)",
        "held-out success after   100.0% of 6 (95 % interval 61.0% to 100.0%)",
        "change                   6 of 6 tasks newly solved, 0 no longer solved: clear (McNemar's exact test, p = "
        "0.031)",
        "requests to the optimiser 6; rejected edits: lacks_marks 1, known 1",
    ):
        assert line in ended.out, ended.out

    assert len(asked) == 6  # three critiques and three edits, each answered at once
    conversations = [text for body in asked if "no idea" in (text := json.dumps(body["messages"]))]
    assert len(conversations) >= 1  # a critique reads what the policy did, in each of APO's forms
    assert [task.question for task in SPLIT.val if any(task.question in json.dumps(body) for body in asked)] == []
    written = ended.out + "".join(path.read_text() for path in run.rglob("*") if path.is_file())
    assert KEY not in written
    assert left_behind(last_run_id(run)) == ([], [])


@pytest.mark.parametrize(
    ("key", "shown"),
    [("sk-1", "***"), ("", "sk-1")],  # no key was sent, so none is hidden
)
def test_a_failure_is_told_without_the_key_that_was_sent(key, shown):
    assert failure_text(ValueError("wrong key sk-1"), hide=key) == f"ValueError: wrong key {shown}"
    said = "a" * 1_996  # a text is cut at 2,000 characters
    answer = httpx2.Response(401, json={"error": f"{said} sk-1"}, request=httpx2.Request("POST", "http://localhost"))
    refused = APIStatusError("wrong key", response=answer, body=None)
    assert failure_text(refused, hide=key) == "APIStatusError: Error code: 401 - " + f"{said} {shown}"[:2_000]


@pytest.mark.slow
@pytest.mark.timeout(900)
@with_poml
def test_an_optimiser_that_refuses_ends_the_search_in_words_that_hide_the_key(tmp_path):
    async def refusing(scope, receive, send):
        if scope["path"].endswith("/models"):
            await oracle.app(optimiser([]), model="critic")(scope, receive, send)
        else:
            await JSONResponse({"error": {"message": f"wrong key {KEY}"}}, 401)(scope, receive, send)

    with oracle.serve(oracle.app(careful())) as policy, oracle.serve(refusing) as critic:
        ended = search(*command(policy, critic, tmp_path / "run", **{"apo.selection_tasks": 2, "data.val_limit": 2}))
    assert ended.code == 1
    assert f"the model at {critic} failed for 3 edits in a row, the last time with AuthenticationError" in ended.out
    assert "its key is read from OPENAI_API_KEY" in ended.out
    assert KEY not in ended.out + (tmp_path / "run" / "candidates.json").read_text()
    assert left_behind(last_run_id(tmp_path / "run")) == ([], [])


@pytest.mark.slow
@pytest.mark.timeout(900)
@with_poml
def test_a_policy_that_is_gone_ends_the_search_and_counts_as_no_score(tmp_path):
    questions = {task.question for task in [*SPLIT.train, *SPLIT.val]}
    with (
        oracle.serve(oracle.app(careful(questions))) as policy,
        oracle.serve(oracle.app(optimiser([]), model="critic")) as critic,
    ):
        ended = search(*command(policy, critic, tmp_path / "run"))
    assert ended.code == 1
    assert "8 of 8 rollouts were lost" in ended.out
    assert "the most frequent reason is 'model_unavailable' (8 times; the first: " in ended.out
    assert of_version(tmp_path / "run", "v0")[2] == [("held-out", 8, None, 0, 0, {"model_unavailable": 8})]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "sign",
    [pytest.param(signal.SIGKILL, marks=pytest.mark.full("test_clean.py kills what is guarded")), signal.SIGTERM],
)
@with_poml
def test_a_search_that_is_killed_leaves_no_process_and_no_folder(sign, tmp_path, heard_signals):
    """The policy never answers, so its rollouts are in flight."""

    class Hanging(HangingServer):
        async def __call__(self, scope, receive, send):
            if scope.get("path", "").endswith("/models"):
                await oracle.app(careful())(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)

    hanging, run = Hanging(), tmp_path / "run"
    with oracle.serve(hanging) as policy, oracle.serve(oracle.app(optimiser([]), model="critic")) as critic:
        process = start(*command(policy, critic, run))
        deadline = time.monotonic() + 200
        while hanging.asked < 8 and time.monotonic() < deadline:
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.1)
        run_id = last_run_id(run)
        assert processes_of(run_id, forks=True)
        process.send_signal(sign)
        out, _ = process.communicate(timeout=120)
        assert hanging.wait_until_left(8, 30)
    assert process.returncode == (-signal.SIGKILL if sign == signal.SIGKILL else 130), out
    assert left_behind(run_id) == ([], [])


# a real policy ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1500)
@with_poml
@pytest.mark.full("serves a policy: three minutes")
def test_the_small_policy_on_vllm_is_measured_as_evaluate_measures_it(tmp_path):
    """An edit and a real policy: held-out success before is what `sql_agent.evaluate` counts on the same tasks."""
    from dbbench_adapter.tasks.load import write_tasks
    from sql_agent.evaluate import main as evaluate
    from sql_agent.tiny_policy.make import make_tiny_policy

    model, port, run = ROOT / "models" / "tiny-sql", free_port(), tmp_path / "run"
    make_tiny_policy(model)
    serve = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--served-model-name", "oracle"]
    serve += ["--port", str(port), "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"]
    serve += ["--generation-config", "vllm", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    with (tmp_path / "vllm.log").open("w") as log:
        server = subprocess.Popen(serve, stdout=log, stderr=log, env=environment, cwd=ROOT)
    url = f"http://127.0.0.1:{port}/v1"
    edit = DbBench("strict").instructions + "\nLook at the table before you answer."
    try:
        wait_for(f"{url}/models", server, timeout_s=600)
        with oracle.serve(oracle.app(optimiser([edit]), model="critic")) as critic:
            skills = "[delete,order_by_single_column]"  # about half are solved
            ended = search(*command(url, critic, run, **{"data.skills": skills, "data.val_limit": 16,
                                                         "data.generate": 48, "agent.max_tokens": 128,
                                                         "apo.branch_factor": 1}))  # fmt: skip
        assert ended.code == 0, ended.out
        data = DataConfig(generate=48, val_limit=16, skills=("delete", "order_by_single_column"))
        write_tasks(tmp_path / "held_out.jsonl", DbBench("strict").load_split(data, 0).val)
        solved = []
        for number, flags in enumerate(([], ["--instructions", str(run / "prompt.txt")])):
            out = tmp_path / f"{number}.jsonl"
            evaluate(["--base-url", url, "--model", "oracle", "--tasks", str(tmp_path / "held_out.jsonl"),
                      "--max-tokens", "128", "--output", str(out), *flags])  # fmt: skip
            rows = [json.loads(line) for line in out.read_text().splitlines()]
            solved.append(Counter(row["score"]["value"] for row in rows)[1.0])
    finally:
        server.terminate()
        server.wait(60)
    print(ended.out)
    ((_, _, seed), (text, parent, edited)) = (of_version(run, version) for version in ("v0", "v1"))
    best = edited if (run / "prompt.txt").read_text().strip() == edit else seed
    held_out = [each[4] for each in seed if each[0] == "held-out"], [each[4] for each in best if each[0] == "held-out"]
    assert (held_out[0][0], held_out[1][-1]) == tuple(solved)
    assert 0 < solved[0] < 16
    assert (text, parent) == (edit, "v0")
    assert [each[5] for each in [*seed, *edited]] == [{}] * len([*seed, *edited])  # nothing was lost
