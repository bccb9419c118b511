"""The training command refuses what cannot work, before anything expensive starts, and says what to do."""

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import requests

from agentgrpo.agl_without_litellm import agl
from agentgrpo.checks import Finding, UsageError, require
from agentgrpo.machine import free_port
from agentgrpo.printed_commands import agentgrpo_command, program_command
from agentgrpo.run_folder import write_start
from sql_agent import upstream_patches as patches
from sql_agent.commands import local
from sql_agent.lightning.child_processes import spawn
from sql_agent.report.page import render_page
from sql_agent.report.reading import read_run
from sql_agent.settings.load import dump_config, load_config
from sql_agent.settings.main_job import StoreConfig
from sql_agent.source.run_context import TrainingFailedError
from sql_agent.startup import preflight
from sql_agent.startup.flags import parse_train_args, resolve
from sql_agent.startup.preflight import use_cpu
from sql_agent.startup.resume import check_resume
from sql_agent.tests.conftest import checkpoint_of, start_store, wait_for
from sql_agent.train_sql_agent import main

APO = ["--algorithm", "apo", "--model", "m", "--base-url", "http://127.0.0.1:1/v1"]
APO += ["--apo-base-url", "http://127.0.0.1:1/v1", "--apo-model", "m"]


@pytest.fixture(autouse=True)
def fresh_environment(monkeypatch):
    monkeypatch.delenv("AGL_MANAGED_STORE", raising=False)
    monkeypatch.delenv("AGL_CURRENT_ROLE", raising=False)


def error_of(capsys, *arguments):
    assert main(list(arguments)) == 2
    return capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            ["--set", "trainer.stepz=3"],
            "config: trainer.stepz: unknown setting; did you mean trainer.steps?",
            id="misspelt_setting",
        ),
        pytest.param(
            ["--set", "learning_rate=1"], "unknown setting; did you mean optim.learning_rate?", id="in_another_group"
        ),
        pytest.param(["--set", "rollout.judge=strct"], "'bird'; did you mean strict?", id="misspelt_judge"),
        pytest.param(["--reward", "agentbnch"], "NAME; did you mean agentbench?", id="misspelt_reward"),
        pytest.param(["--env", "dbench"], "did you mean dbbench?", id="misspelt_environment"),
        pytest.param(["--set", "trainer.steps"], "write it as --set rollout.group_size=8", id="no_equals_sign"),
        pytest.param(["--reward-model-url", "http://h:99999"], "config: reward_model.url: ", id="no_port"),
        pytest.param(["--set", "data.generate={"], "--set data.generate is not YAML", id="not_yaml"),
        pytest.param(["--set", "agent.temperature=0"], "all rollouts of a group would be equal", id="no_sampling"),
        pytest.param(["--set", "agent.top_p=0.95"], "agent.top_p is 0.95: the sampler would leave out", id="top_p"),
        pytest.param(["--config", "nowhere.yaml"], "nowhere.yaml does not exist", id="missing_config"),
        pytest.param(["--model", "nowhere"], "nowhere is no folder, and no model of that name", id="missing_model"),
    ],
)
def test_what_cannot_work_is_refused(capsys, tmp_path, arguments, words):
    assert words in error_of(capsys, "--run-dir", str(tmp_path), *arguments)


@pytest.mark.parametrize(
    ("flags", "checkpoint", "left"),
    [
        ([], False, "there is no checkpoint yet, so the same command starts again"),
        ([], True, "the same command resumes from RUN/checkpoints/global_step_1"),
        (["--ci-fast"], False, "the same command starts again"),
        (["--ci"], True, "the same command starts again; with --resume auto it resumes from RUN/checkpoints/global_"),
        (APO, True, "the same command starts again"),
    ],
)
@pytest.mark.parametrize(
    "end", [KeyboardInterrupt(), TrainingFailedError("no runner is left")], ids=["ctrl_c", "fault"]
)
def test_a_run_that_ends_early_says_what_the_same_command_does(
    capsys, tmp_path, monkeypatch, flags, checkpoint, left, end
):
    """`--ci-fast` promised to go on, and set its whole checkpoint aside."""

    def ends(cfg, *_args, **_kwargs):
        if checkpoint:
            (cfg.run_dir / "checkpoints" / "global_step_1").mkdir(parents=True)
            (cfg.run_dir / "checkpoints" / "global_step_1" / "manifest.json").touch()
        raise type(end)(*end.args)  # another one for each, since notes stay on it

    monkeypatch.setattr("sql_agent.startup.command.check_servers", ends)
    status, line = (130, "stopped; ") if isinstance(end, KeyboardInterrupt) else (1, "error: no runner is left\n")
    assert main(["--run-dir", str(tmp_path), *flags]) == status
    assert line + left.replace("RUN", str(tmp_path)) in capsys.readouterr().err


def test_one_set_takes_several_settings_and_may_be_repeated():
    cfg = resolve(parse_train_args(["--set", "seed=4", "trainer.steps=3", "--ci", "--set", "seed=5"]))
    assert (cfg.seed, cfg.trainer.steps) == (5, 3)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said(capsys, tmp_path):
    assert "use --device cpu" in error_of(capsys, "--run-dir", str(tmp_path), "--device", "gpu", "--model", "nowhere")


def test_the_workers_of_a_cpu_are_another_setting_than_gpus(capsys, tmp_path):
    arguments = ["--run-dir", str(tmp_path), "--device", "cpu", "--set", "engine.n_gpus=2"]
    assert "use --set engine.n_gpus=1 cluster.workers_per_node=2" in error_of(capsys, *arguments)


def test_workers_of_a_cpu_are_refused_on_a_gpu(monkeypatch):
    monkeypatch.setattr("sql_agent.startup.preflight.count_gpus", lambda: 2)
    cfg = load_config(None, ["cluster.workers_per_node=2"])
    with pytest.raises(UsageError, match=r"use --device cpu, or one worker a GPU: --set engine.n_gpus=2"):
        use_cpu(cfg.engine, cfg.cluster)


@pytest.mark.parametrize(
    ("visible", "wanted", "there"),
    [(None, 4, 2), ("1", 2, 1), ("0, 1", 2, 2), ("", 2, 0), ("-1", 2, 0), ("1,-1,0", 2, 1)],
)
def test_more_gpus_than_there_are_is_refused(monkeypatch, tmp_path, visible, wanted, there):
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'GPU 0: H100'\necho '  MIG 1g'\necho 'GPU 1: H100'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cfg = load_config(None, [f"engine.n_gpus={wanted}"])
    if wanted <= there:
        assert not use_cpu(cfg.engine, cfg.cluster)
        return
    words = f"is {wanted}, but {there} can be used" if there else "on a CPU, whose workers are another setting"
    with pytest.raises(UsageError, match=words):
        use_cpu(cfg.engine, cfg.cluster)


@pytest.mark.parametrize(
    ("gpus", "settings", "words"),
    [
        (0, [], "this run is on a CPU, where each training worker has a model server beside it; leave it out"),
        (3, ["engine.n_gpus=2"], "beside 2 that train (engine.n_gpus), and 3 can be used here; lower one of the two"),
        (4, ["engine.n_gpus=2"], "verl sends weights to other GPUs with CuPy, which is not installed; `uv pip install"),
    ],
)
def test_gpus_of_model_servers_that_cannot_be_had_are_refused(monkeypatch, gpus, settings, words):
    monkeypatch.setattr("sql_agent.startup.preflight.count_gpus", lambda: gpus)
    cfg = load_config(None, ["cluster.sampler_gpus=2", *settings])
    with pytest.raises(UsageError, match=re.escape("cluster.sampler_gpus is 2, ") + ".*" + re.escape(words)):
        use_cpu(cfg.engine, cfg.cluster)


def test_on_a_cluster_the_gpus_of_its_nodes_count_and_not_those_of_this_machine(monkeypatch):
    monkeypatch.setattr("sql_agent.startup.preflight.count_gpus", lambda: 2)
    cfg = load_config(None, [])
    assert [use_cpu(cfg.engine, cfg.cluster, gpus) for gpus in (None, 0, 4)] == [False, True, False]
    cpu = load_config(None, ["engine.device=cpu"])
    assert use_cpu(cpu.engine, cpu.cluster, 4)


def test_gpus_that_cannot_share_the_model_are_refused_before_anything_loads(tmp_path, random_policy_folder):
    with pytest.raises(UsageError, match="is 3, which does not divide the 2 attention heads, 32 feed-forward rows"):
        require(model=random_policy_folder, tensor_parallel=3)


def test_a_library_that_is_not_the_one_we_change_is_refused_before_anything_loads(capsys, tmp_path, monkeypatch):
    serving = next(patch for patch in patches.PATCHES if "exact prompts" in patch.why)
    moved = dataclasses.replace(serving, module="vllm.entrypoints.openai.chat.serving")
    monkeypatch.setattr(patches, "PATCHES", (moved,))
    error = error_of(capsys, "--run-dir", str(tmp_path))
    assert "vllm.entrypoints.openai.chat.serving:OpenAIServingChat.render_chat_request is not where vllm 0.28" in error
    assert "(0.28.0+cpu is installed), so sql_agent.verl_side.plugin.exact_prompts:_wrap_chat_server cannot" in error


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("postgres", "error: unknown backend 'postgres'; known: sqlite, mariadb, mysql://user:password@host:port"),
        (
            "mysql://me:secret@127.0.0.1:nowhere",
            "error: 'mysql://me:***@127.0.0.1:nowhere' is no address, expected mysql://user:password@host:port; ",
        ),
        ("mysql://me:secret@127.0.0.1:1", "error: rollout.backend: database server at 127.0.0.1:1: (2003, "),
        ("mysql://me:secret@no-such-host.invalid", "error: rollout.backend: database server at no-such-host.invalid:"),
        ("mariadb", "error: rollout.backend: mariadb-install-db not found; install MariaDB"),
    ],
)
def test_a_backend_that_is_not_there_is_said_before_a_model_is_looked_for(
    capsys, tmp_path, monkeypatch, backend, words
):
    monkeypatch.setattr("dbbench_adapter.engines.mysql.server.shutil.which", lambda *_, **__: None)
    error = error_of(capsys, "--run-dir", str(tmp_path), "--model", "nowhere", "--set", f"rollout.backend={backend}")
    assert error.startswith(words)
    assert "secret" not in error
    assert "\n" not in error


def test_the_half_that_plays_nothing_needs_no_database(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("AGL_CURRENT_ROLE", "algorithm")
    backend = "rollout.backend=mysql://me:secret@127.0.0.1:1"
    error = error_of(capsys, "--run-dir", str(tmp_path), "--model", "nowhere", "--set", backend)
    assert error.startswith("error: nowhere is no folder")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lora", "--lora-rank", "0"], "error: --lora-rank is 0, expected 1 or more; leave it and --lora out"),
        (["--lora-rank", "0"], "error: --lora-rank is 0, expected 1 or more"),
        (["--lora-rank", "-3"], "error: --lora-rank is -3, expected 1 or more"),
        (["--lora", "--set", "lora.rank=0"], "error: --lora and lora.rank=0 contradict each other"),
        (["--set", "agent.temperature=.inf"], "config: agent.temperature: Input should be a finite number"),
        (["--set", "agent.temperature=.nan"], "config: agent.temperature: Input should be a finite number"),
        (["--set", "agent.temperature=inf"], "config: agent.temperature: "),
        (["--set", "optim.learning_rate=.inf"], "config: optim.learning_rate: Input should be a finite number"),
        (["--set", "rollout.step_timeout_s=.inf"], "config: rollout.step_timeout_s: Input should be a finite number"),
        (["--config", "doc"], "config file doc is a folder"),
        (["--set", f"seed={10**22}"], "config: seed: Input should be less than 4294967296"),
        (["--run-dir", "README.md"], "README.md is a file, expected a folder; name another --run-dir"),
        (["--run-dir", "README.md/run"], "README.md/run/run.json cannot be written (Not a directory); name another --"),
        (["--run-dir", "/proc/run"], "/proc/run/run.json cannot be written ("),
    ],
)
def test_a_careless_flag_is_refused_in_a_line(capsys, tmp_path, arguments, words):
    error = error_of(capsys, *(["--run-dir", str(tmp_path)] if "--run-dir" not in arguments else []), *arguments)
    assert words in error
    assert "\n" not in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *(
            ("AGL_CURRENT_ROLE", role, f"AGL_CURRENT_ROLE is {role!r}, expected algorithm, runner, both; or unset it")
            for role in ("boss", "", "Runner", "both,runner")
        ),
        *(("AGL_MANAGED_STORE", value, f"AGL_MANAGED_STORE is {value!r}, expected 0") for value in ("maybe", "", "2")),
    ],
)
def test_a_variable_that_says_nothing_known_is_refused_before_anything_is_moved(
    capsys, tmp_path, monkeypatch, name, value, words
):
    (tmp_path / "metrics.jsonl").write_text("an earlier run's")
    monkeypatch.setenv(name, value)
    assert error_of(capsys, "--run-dir", str(tmp_path), "--resume", "never").startswith(f"error: {words}")
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("value", ["0", "false", "No", " off "])
def test_a_store_is_kept_outside_in_all_of_agent_lightnings_words(capsys, tmp_path, monkeypatch, value):
    monkeypatch.setenv("AGL_MANAGED_STORE", value)
    address = f"http://127.0.0.1:{free_port()}"
    assert "no agent-lightning store answers" in error_of(
        capsys, "--run-dir", str(tmp_path), "--external-store-address", address
    )


@pytest.mark.parametrize(
    "content",
    [
        *(bytes(range(256)), b"\xff\xfe", b"\x00\x01", b"PK\x03\x04\x80"),
        pytest.param(b"seed: " + b"[" * 3000 + b"]" * 3000, id="3000_brackets"),  # a file from the network
    ],
)
def test_a_config_that_is_no_yaml_is_said_in_a_line(capsys, tmp_path, content):
    (tmp_path / "c.yaml").write_bytes(content)
    error = error_of(capsys, "--config", str(tmp_path / "c.yaml"))
    assert error.startswith(f"error: config file {tmp_path}/c.yaml is no")


def test_an_outside_store_has_to_be_meant(capsys, tmp_path):
    error = error_of(capsys, "--run-dir", str(tmp_path), "--external-store-address", "http://127.0.0.1:9999")
    assert "needs AGL_MANAGED_STORE=0" in error


def test_an_unmanaged_store_without_an_address_is_the_usual_one_which_is_said(capsys, tmp_path, monkeypatch):
    assert preflight.USUAL_STORE == "http://localhost:9999"
    port = free_port()  # the machine's own 9999 may be taken
    monkeypatch.setattr(preflight, "USUAL_STORE", f"http://localhost:{port}")
    monkeypatch.setenv("AGL_MANAGED_STORE", "0")
    said = error_of(capsys, "--run-dir", str(tmp_path))
    assert f"no --external-store-address: using the store at http://localhost:{port}\n" in said
    assert f"no agent-lightning store answers at http://localhost:{port}" in said
    assert said.endswith(f"start one with `{program_command('agl', 'store')} --host 127.0.0.1 --port {port}`")


def test_a_store_that_is_not_there_comes_with_the_command_that_starts_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("AGL_MANAGED_STORE", "0")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    error = error_of(capsys, "--run-dir", str(tmp_path), "--external-store-address", address)
    assert error.endswith(f"start one with `{program_command('agl', 'store')} --host 127.0.0.1 --port {port}`")


@pytest.mark.slow
def test_a_store_in_which_another_run_is_going_is_left_alone(capsys, tmp_path, monkeypatch, store_url):
    async def say(**stats):
        store = agl.LightningStoreClient(store_url)
        await store.update_worker("trainer", stats)
        await store.close()

    monkeypatch.setenv("AGL_MANAGED_STORE", "0")
    other = {"state": "running", "run_id": "other", "host": socket.gethostname()}
    arguments = ["--run-dir", str(tmp_path), "--external-store-address", store_url, "--model", "nowhere"]
    try:
        asyncio.run(say(**other, pid=os.getppid()))
        assert "belongs to run other, which is still going" in error_of(capsys, *arguments)
        # the same run, killed: its process is gone, so its store is free at once
        asyncio.run(say(**other, pid=2**22 - 1))
        assert "nowhere is no folder" in error_of(capsys, *arguments)
    finally:
        asyncio.run(say(state="idle"))


@pytest.mark.slow
@pytest.mark.parametrize("ahead_s", [600.0, -600.0], ids=["ahead", "behind"])
def test_whether_a_run_on_another_host_is_going_is_told_by_its_next_heartbeat(monkeypatch, ahead_s):
    monkeypatch.setenv("AGL_MANAGED_STORE", "0")
    monkeypatch.setattr(preflight, "NEXT_HEARTBEAT_S", 2.0)
    port = free_port()
    store, ended = start_store(port, ahead_s=ahead_s), threading.Event()
    cfg = StoreConfig(address=f"http://127.0.0.1:{port}")

    def beat(state="running"):
        told = {"heartbeat_stats": {"state": state, "run_id": "other", "host": "elsewhere", "pid": os.getpid()}}
        requests.post(f"{cfg.address}/v1/agl/workers/trainer", json=told, timeout=5).raise_for_status()

    def run():
        while not ended.wait(0.5):
            beat()

    elsewhere = threading.Thread(target=run)
    try:
        beat()
        elsewhere.start()
        with pytest.raises(UsageError, match="belongs to run other, which is still going"):
            preflight.check_store(cfg)
        ended.set()
        elsewhere.join()
        since = time.monotonic()
        assert preflight.check_store(cfg) == Finding(cfg.address)  # it was killed: nothing comes any more
        assert 2.0 < time.monotonic() - since < 5.0
        ending = threading.Timer(0.5, beat, ["finished"])
        ending.start()
        assert preflight.check_store(cfg) == Finding(cfg.address)  # it ends while it is waited for
        ending.join()
        since = time.monotonic()
        assert preflight.check_store(cfg) == Finding(cfg.address)
        assert time.monotonic() - since < 1.0  # a run that has ended, or none, is not waited for
    finally:
        ended.set()
        store.kill()
        store.wait(10)


@pytest.mark.slow
def test_a_store_that_asks_for_a_token_is_shown_the_one_that_its_user_set(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("AGL_MANAGED_STORE", "0")
    monkeypatch.setenv("AGENTGRPO_STORE_TOKEN", "the-token-of-the-store")
    port = free_port()
    where = ["--run-dir", str(tmp_path), "--external-store-address", f"http://127.0.0.1:{port}", "--model", "nowhere"]
    store = start_store(port)
    try:
        assert "nowhere is no folder" in error_of(capsys, *where)
        for token in ("another", ""):
            monkeypatch.setenv("AGENTGRPO_STORE_TOKEN", token)
            error = error_of(capsys, *where)
            assert error.endswith("asks for a token: set AGENTGRPO_STORE_TOKEN to what it was started with")
    finally:
        store.terminate()
        store.wait(20)


@pytest.mark.parametrize("role", ["algorithm", "runner"])
def test_commands_that_share_a_run_are_told_to_share_its_token(capsys, tmp_path, monkeypatch, role):
    monkeypatch.setenv("AGL_CURRENT_ROLE", role)
    monkeypatch.setenv("AGENTGRPO_TOKEN", "")
    assert "expected AGENTGRPO_TOKEN in the environment of each" in error_of(capsys, "--run-dir", str(tmp_path))


@pytest.mark.slow
def test_a_store_that_keeps_every_span_is_named_with_the_command_that_starts_one_that_does_not(
    capsys, tmp_path, monkeypatch, store_url
):
    monkeypatch.setenv("AGL_MANAGED_STORE", "0")

    def said(address):
        main(["--run-dir", str(tmp_path), "--external-store-address", address, "--model", "nowhere"])
        return capsys.readouterr().out

    port = free_port()
    command = [str(Path(sys.executable).with_name("agl")), "store", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}) as upstream:
        try:
            wait_for(f"http://127.0.0.1:{port}/v1/agl/health", upstream)
            words = said(f"http://127.0.0.1:{port}")
        finally:
            upstream.terminate()
    assert "keeps every span of every rollout, so it grows with each step" in words
    assert f"-m sql_agent.store_server --port {port}` frees what has been read and answers no page" in words
    assert "keeps every span" not in said(store_url)


def test_a_reward_model_that_is_not_there_is_named_with_the_command_that_starts_it(capsys, tmp_path):
    url = f"http://127.0.0.1:{free_port()}"
    error = error_of(capsys, "--run-dir", str(tmp_path), "--reward-model-url", url)
    assert f"no reward model is ready at {url}; start one with `{agentgrpo_command('reward serve')} " in error


OWN = """
class Shop:
    def reset(self, **row):
        pass

    def get_reward(self):
        return 1.0
"""


@pytest.mark.parametrize(("text", "rows", "words"), [
    pytest.param("class Shop\n", '{"prompt": "?"}', "shop.py:1: SyntaxError: expected ':'", id="syntax"),
    pytest.param(OWN, '{"question": "?"}', "rows.jsonl, line 1: no `prompt`; it has question. Add the column",
                 id="a_row_without_a_prompt"),
    pytest.param(OWN, '{"prompt": "?"}', "1 different row is too few to hold some out; give more, or held-out",
                 id="one_row"),
    pytest.param(OWN.replace("get_reward", "_reward"), '{"prompt": "?"}', "or give the class a `get_reward`",
                 id="neither_reward_nor_reward_model"),
])  # fmt: skip
def test_an_environment_of_your_own_that_does_not_fit_is_refused_by_a_dry_run_too(capsys, tmp_path, text, rows, words):
    (tmp_path / "shop.py").write_text(text)
    (tmp_path / "rows.jsonl").write_text(rows + "\n")
    own = ["--env", f"{tmp_path}/shop.py:Shop", "--train-file", str(tmp_path / "rows.jsonl")]
    assert words in error_of(capsys, "--run-dir", str(tmp_path), *own, "--dry-run")


def test_a_dry_run_finds_a_misspelt_model_folder_and_one_that_holds_no_model(capsys, tmp_path):
    (tmp_path / "models" / "mine").mkdir(parents=True)
    dry = ["--dry-run", "--device", "cpu", "--run-dir", str(tmp_path), "--model"]
    said = error_of(capsys, *dry, f"{tmp_path}/models/mime")
    assert said.startswith(f"error: {tmp_path}/models/mime is no folder; ")
    assert said.endswith(f"; did you mean {tmp_path}/models/mine?")
    assert f"{tmp_path}/models/mine/config.json is missing" in error_of(capsys, *dry, f"{tmp_path}/models/mine")


def test_a_dry_run_takes_an_id_on_the_hub_that_is_not_on_this_machine(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    not_here = "tasks and prompts: not known before the model is on this machine; the run fetches"
    dry = ["--dry-run", "--device", "cpu", "--run-dir", str(tmp_path), "--model"]
    assert main([*dry, "org/small"]) == 0
    assert f"{not_here} org/small from the hub\n" in capsys.readouterr().out
    assert main([*dry, "modles/tiny"]) == 0
    assert f"{not_here} modles/tiny from the hub; did you mean models/tiny?\n" in capsys.readouterr().out


def test_the_load_split_of_your_own_class_runs_once(capsys, tmp_path, random_policy_folder):
    """The tasks that were checked are those of the plan; another call might draw others, or take as long again."""
    (tmp_path / "shop.py").write_text(
        f"""
class Shop:
    @classmethod
    def load_split(cls, data, seed):
        with open({str(tmp_path / "calls")!r}, "a") as calls:
            calls.write("loaded\\n")
        return [{{"prompt": "How many?", "id": str(n)}} for n in range(12)], [{{"prompt": "How much?", "id": "v"}}]

    def reset(self, **row):
        pass

    def get_reward(self):
        return 1.0
"""
    )
    own = ["--env", f"{tmp_path}/shop.py:Shop", "--model", str(random_policy_folder), "--device", "cpu"]
    assert main(["--run-dir", str(tmp_path / "run"), *own, "--dry-run"]) == 0
    assert "tasks: 12 to train on, 1 held out" in capsys.readouterr().out
    assert (tmp_path / "calls").read_text() == "loaded\n"


def test_a_command_makes_its_environment_once_and_loads_its_tasks_once(capsys, tmp_path, random_policy_folder):
    (tmp_path / "mine.py").write_text(
        f"""
from sql_agent.environments.dbbench import DbBench

def say(what):
    with open({str(tmp_path / "calls")!r}, "a") as calls:
        calls.write(what + "\\n")

class Counted(DbBench):
    @classmethod
    def from_settings(cls, settings):
        say("made")
        return cls("strict")

    def read_split(self, data, seed):
        say("loaded")
        return super().read_split(data, seed)
"""
    )
    own = ["--env", f"{tmp_path}/mine.py:Counted", "--model", str(random_policy_folder)]
    few = ["--set", "data.generate=16", "--set", "data.val_limit=4"]
    assert main(["--run-dir", str(tmp_path / "run"), "--device", "cpu", *own, *few, "--dry-run"]) == 0
    assert (tmp_path / "calls").read_text() == "made\nloaded\n"
    with pytest.raises(SystemExit, match="no training task has a first prompt of at most 16 tokens"):
        local.main(["--run-dir", str(tmp_path / "local"), *own, "--max-prompt-tokens", "16"])
    assert (tmp_path / "calls").read_text() == 2 * "made\nloaded\n"


def test_a_dry_run_takes_the_example_environment(capsys, tmp_path):
    example = Path(__file__).parents[2] / "examples" / "own_environment"
    own = ["--env", f"{example}/orders.py:Orders", "--train-file", f"{example}/rows.jsonl"]
    assert main(["--run-dir", str(tmp_path), "--device", "cpu", *own, "--dry-run"]) == 0
    assert f"type: {example}/orders.py:Orders" in capsys.readouterr().out


def test_an_environment_without_a_judge_needs_a_reward_model(capsys, tmp_path):
    error = error_of(capsys, "--run-dir", str(tmp_path), "--env", "medical", "--dry-run")
    assert "nobody can tell right from wrong in environment medical: the reward is a reward model's score" in error
    assert "--reward-model-url http://" in error


def test_a_busy_port_for_the_store_is_named(capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = error_of(capsys, "--run-dir", str(tmp_path), "--set", f"store.port={port}")
    assert f"port {port} is taken" in error


def test_a_finished_run_is_not_trained_further(capsys, tmp_path):
    checkpoint_of(tmp_path, 20)
    assert main(["--run-dir", str(tmp_path), "--set", "trainer.steps=20"]) == 0
    assert "has reached step 20 of 20 already; raise trainer.steps" in capsys.readouterr().out


def test_a_run_goes_on_as_what_it_was(capsys, tmp_path):
    checkpoint_of(tmp_path, 5)
    (tmp_path / "config.yaml").write_text(dump_config(load_config(None, ["data.generate=64", "optim.learning_rate=1"])))
    (tmp_path / "other.jsonl").touch()
    others = ["--train-file", str(tmp_path / "other.jsonl"), "--model", str(tmp_path)]
    error = error_of(capsys, "--run-dir", str(tmp_path), *others)
    assert "was trained with other settings (data, model;" in error
    url = ["--reward-model-url", "http://127.0.0.1:1"]
    assert "(reward_model;" in error_of(capsys, "--run-dir", str(tmp_path), "--set", "data.generate=64", *url)
    # a learning rate may change, and a new start may change everything
    assert "nowhere is no folder" in error_of(
        capsys, "--run-dir", str(tmp_path), "--resume", "never", "--model", "nowhere"
    )


def test_a_run_of_other_workers_is_not_gone_on_with(capsys, tmp_path):
    checkpoint_of(tmp_path, 5, workers=4)
    error = error_of(capsys, "--run-dir", str(tmp_path), "--device", "cpu")
    assert (
        "was written by 4 workers, each its share; go on with as many (--set cluster.workers_per_node=4), or" in error
    )


@pytest.mark.parametrize(
    ("had", "given", "as_many"),
    [
        (["cluster.nodes=2", "engine.n_gpus=8"], [], "--ray-address ADDRESS --set cluster.nodes=2 engine.n_gpus=8"),
        (["cluster.nodes=2"], ["cluster.ray_address=auto"], "--set cluster.nodes=2 engine.n_gpus=8"),
        (["cluster.nodes=2"], ["cluster.nodes=2"], "--ray-address ADDRESS --set engine.n_gpus=8"),
        (["engine.n_gpus=16"], ["cluster.nodes=2", "engine.n_gpus=16"], "--set cluster.nodes=1 engine.n_gpus=16"),
        (None, [], "--set engine.n_gpus=16"),
    ],
)
def test_as_many_workers_are_named_over_the_nodes_that_the_run_had(tmp_path, had, given, as_many):
    checkpoint_of(tmp_path, 5, workers=16)
    (tmp_path / "config.yaml").unlink(missing_ok=True)
    if had is not None:
        (tmp_path / "config.yaml").write_text(dump_config(load_config(None, had)))
    cfg = load_config(None, [f"run_dir={tmp_path}", *given])
    with pytest.raises(UsageError, match=re.escape(f"; go on with as many ({as_many}), or train")):
        check_resume(cfg, tmp_path / "checkpoints" / "global_step_5", cpu=False)


def test_several_nodes_need_a_cluster(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    error = error_of(capsys, "--run-dir", str(tmp_path / "run"), "--device", "cpu", "--set", "cluster.nodes=2")
    assert "cluster.nodes is 2, and no Ray cluster is named that has so many; start one" in error
    assert not (tmp_path / "run").exists()


def test_checkpoints_of_which_none_is_whole_stop_the_start(capsys, tmp_path):
    (checkpoint_of(tmp_path, 5) / "actor" / "fsdp_config.json").write_text("")
    error = error_of(capsys, "--run-dir", str(tmp_path), "--model", "nowhere")
    assert "is whole (global_step_5: actor/fsdp_config.json has 0 bytes, expected 17)" in error
    assert "start again with `--resume never`" in error


def test_a_path_stays_the_text_it_is():
    assert str(resolve(parse_train_args(["--run-dir", "runs/exp #1"])).run_dir) == "runs/exp #1"
    assert str(resolve(parse_train_args(["--run-dir", "2024"])).run_dir) == "2024"


def test_flags_of_the_predecessor_mean_what_they_meant():
    flags = ["--llm-proxy", "--model", "m", "--external-store-address", "http://h:1", "--n-runners", "3"]
    cfg = resolve(parse_train_args([*flags, "--lora", "--lora-rank", "8", "--train-file", "t", "--val-file", "v"]))
    assert (cfg.llm_proxy, str(cfg.model), cfg.store.address) == (True, "m", "http://h:1")
    assert (cfg.rollout.n_runners, cfg.lora.rank) == (3, 8)
    assert (str(cfg.data.train_file), str(cfg.data.val_file)) == ("t", "v")
    assert resolve(parse_train_args(["--ci-fast"])).trainer.steps == 1
    assert resolve(parse_train_args(["--lora"])).lora.rank == 16
    assert resolve(parse_train_args([])).lora.rank == 0


def test_set_wins_over_flags():
    assert resolve(parse_train_args(["--ci-fast", "--set", "trainer.steps=2"])).trainer.steps == 2


def test_a_dry_run_prints_the_settings_and_verls_keys_and_starts_nothing(capsys, tmp_path):
    assert main(["--dry-run", "--device", "cpu", "--run-dir", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    verl = json.loads(out.split("# verl's keys\n")[1].split("# plan\n")[0])
    assert verl["actor_rollout_ref"]["rollout"]["n"] == 4
    assert not (tmp_path / "run").exists()


# passwords ------------------------------------------------------------------------------------------------------------

ADDRESS = "mysql://trainer:hunter2@127.0.0.1:1"


def everything_in(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def test_a_dry_run_shows_no_password(capsys):
    assert main(["--dry-run", "--set", f"rollout.backend={ADDRESS}"]) == 0
    said = capsys.readouterr()
    assert "backend: mysql://trainer:***@127.0.0.1:1\n" in said.out
    assert "hunter2" not in said.out + said.err


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "mysql://trainer:hunter2@h"],
        ["--set", "rollout.bakend=mysql://trainer:hunter2@h"],
        ["--set", "rollout.backend=\"mysql://trainer:hunter2@h"],
        ["--set", "rollout.backend=[mysql://trainer:hunter2@h]"],
        ["--set", "rollout={backend: mysql://trainer:hunter2@h, x: 1}"],
        ["--set", "rollout=mysql://trainer:hunter2@h"],
        ["--external-store-address", "http://trainer:hunter2@h:9999"],
        ["--reward-model-url", "http://trainer:hunter2@h:9999"],
        ["--backend", "mysql://trainer:hunter2@h"],
        ["--device", "mysql://trainer:hunter2@h"],
        ["--config", "FILE"],
    ],
    ids=lambda words: words[-1][:40],
)  # fmt: skip
def test_no_complaint_shows_a_password(capsys, tmp_path, words):
    file = tmp_path / "torn.yaml"
    file.write_text('rollout:\n  backend: "mysql://trainer:hunter2@h\n')
    with contextlib.suppress(SystemExit):
        assert main([str(file) if word == "FILE" else word for word in words]) == 2
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err


def test_what_a_run_writes_and_its_report_hold_no_password(tmp_path, monkeypatch):
    """Neither of this start nor of one by an earlier version, which wrote them down."""
    blanks = "rollout.backend=mysql://u:two words@h"
    words = ["train_sql_agent.py", "--set", f"rollout.backend={ADDRESS}", "--set", blanks]
    write_start(tmp_path, {"run_id": "a", "argv": words, "started_at": 0.0, "commit": "c"}, resumed=False)
    earlier = json.loads((tmp_path / "run.json").read_text()) | {"argv": words}
    (tmp_path / "run.json").write_text(json.dumps(earlier))  # as an earlier version did
    write_start(tmp_path, {"run_id": "b", "argv": words, "started_at": 0.0, "commit": "c"}, resumed=True)
    run = json.loads((tmp_path / "run.json").read_text())
    shown = ["--set", "rollout.backend=mysql://trainer:***@127.0.0.1:1", "--set", "rollout.backend=mysql://u:***@h"]
    assert [run["argv"][1:], run["earlier_starts"][0]["argv"][1:]] == [shown, shown]

    (tmp_path / "config.yaml").write_text(dump_config(load_config(None, [f"rollout.backend={ADDRESS}"])))
    assert "hunter2" not in everything_in(tmp_path) and "two words" not in everything_in(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(earlier))
    (tmp_path / "metrics.jsonl").write_text('{"train_step": 1, "reward/mean": 0.5, "at": 0}\n')
    page = render_page(read_run(tmp_path))
    assert "mysql://trainer:***@127.0.0.1:1" in page
    assert "hunter2" not in page and "two words" not in page


def test_a_run_that_goes_on_by_its_saved_settings_asks_for_the_password_before_anything_starts(
    capsys, tmp_path, monkeypatch
):
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_config(load_config(None, [f"rollout.backend={ADDRESS}"])))
    monkeypatch.setattr("agentgrpo.passwords._passwords", {})  # another process
    again = ["--config", str(saved), "--run-dir", str(tmp_path / "run"), "--model", "nowhere"]
    assert "or set AGENTGRPO_DB_PASSWORD in the environment" in error_of(capsys, *again)
    monkeypatch.setenv("AGENTGRPO_DB_PASSWORD", "hunter2")
    assert "database server at " in error_of(capsys, *again)  # the next thing that is looked at
    monkeypatch.delenv("AGENTGRPO_DB_PASSWORD")
    assert "database server at " in error_of(capsys, *again, "--set", f"rollout.backend={ADDRESS}")


def test_the_log_of_a_child_is_its_users_own(tmp_path):
    process = spawn("json.tool", "--help", log=tmp_path / "logs" / "proxy.log")
    process.communicate(timeout=60)
    assert stat.S_IMODE((tmp_path / "logs" / "proxy.log").stat().st_mode) == 0o600


def test_a_model_that_is_no_whole_one_ends_the_run_while_verls_process_imports(capsys, tmp_path, random_policy_folder):
    model, run = tmp_path / "model", tmp_path / "run"
    shutil.copytree(random_policy_folder, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"intermediate_size": 2 * config["intermediate_size"]}))
    error = error_of(capsys, "--device", "cpu", "--run-dir", str(run), "--model", str(model))
    assert f"{model}" in error and "weights" in error
    assert (run / "logs" / "driver.log").is_file()
    assert not (run / "config.yaml").exists()  # it got no order
    children = psutil.Process().children(recursive=True)
    assert [child for child in children if "sql_agent.verl_side.driver" in child.cmdline()] == []
