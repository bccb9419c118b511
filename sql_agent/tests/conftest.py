"""What several test modules start: agent-lightning's store for real, a scoring service that is scripted."""

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from agentgrpo import user_files
from agentgrpo.machine import free_port
from agentgrpo.processes import RUN_ID, folders_of, processes_of, run_folder
from sql_agent import oracle
from sql_agent.model_address.request_guard import RUN_TOKEN, STORE_TOKEN
from sql_agent.tests import cage
from sql_agent.verl_side.checkpoints import describe_checkpoint, missing_shards, write_manifest

ROOT = Path(__file__).parents[2]
os.environ.setdefault(RUN_TOKEN, "the-token-of-these-tests")  # as a run's command sets it for all that it starts


@pytest.fixture(autouse=True)
def tokens(monkeypatch):
    """A command that a test runs in this process makes a token; the next test has none of it."""
    for name in (RUN_TOKEN, STORE_TOKEN):
        monkeypatch.setenv(name, os.environ.get(name, ""))


@pytest.fixture
def run_id(monkeypatch) -> Iterator[str]:
    """This process and what it starts belong to a run of this id, which has its folder."""
    run_id = uuid.uuid4().hex[:12]
    monkeypatch.setenv(RUN_ID, run_id)
    run_folder(run_id).mkdir()
    yield run_id
    shutil.rmtree(run_folder(run_id))


def wait_for(url: str, process: subprocess.Popen, timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, f"ended with {process.returncode} before {url} answered"
        try:
            if requests.get(url, timeout=1).ok:
                return
        except requests.RequestException:
            time.sleep(0.1)
    raise TimeoutError(url)


def clock_ahead(seconds: float) -> str:
    """The first line of a program on a machine whose clock is so many seconds ahead of this one's."""
    return f"import time; now = time.time; time.time = lambda: now() + {seconds}\n"


def start_store(port: int, *, ahead_s: float = 0.0) -> subprocess.Popen:
    program = clock_ahead(ahead_s) + "from sql_agent.store_server import main; main()"
    command = ["-c", program] if ahead_s else ["-m", "sql_agent.store_server"]
    process = subprocess.Popen([sys.executable, *command, "--port", str(port)])
    wait_for(f"http://127.0.0.1:{port}/v1/agl/health", process)
    return process


@pytest.fixture(scope="session")
def store_url() -> Iterator[str]:
    """A running store, as a run keeps it; tests share it, so each looks at its own rollouts only."""
    port = free_port()
    process = start_store(port)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(20)


RUNNER = """
import asyncio, sys
from sql_agent.lightning import heartbeats

heartbeats.TRAINER_GONE_S = 4.0
from sql_agent.lightning.runner import ConcurrentRunner, PassiveTracer
from sql_agent.lightning.agent import SqlLitAgent
from sql_agent.lightning.store import RetryingStore
from sql_agent.settings.load import load_config

store_url, *settings = sys.argv[1:]
runner = ConcurrentRunner(PassiveTracer(), concurrency=4, poll_s=0.02, store_url=store_url)
runner.init(agent=SqlLitAgent(load_config(None, settings)))
runner.init_worker(0, None)
print("plays", flush=True)
asyncio.run(runner.iter())
"""


@contextmanager
def runner_ahead(store_url: str, ahead_s: float, *settings: str) -> Iterator[subprocess.Popen]:
    """A runner in a process whose clock is so many seconds ahead; it prints a line before it plays, and 4 s of silence
    are too long for it."""
    program = clock_ahead(ahead_s) + RUNNER
    process = subprocess.Popen(
        [sys.executable, "-c", program, store_url, *settings], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def llm_proxy(store_url: str, *backends: str, timeout_s: float = 120.0) -> Iterator[str]:
    """The LLM proxy in a process of its own, before these model servers; yields its URL.

    Args:
        backends: URLs up to `/v1` of `policy-0`, `policy-1`, ...
    """
    command = [sys.executable, "-m", "sql_agent.lightning.llm_proxy", "--store", store_url]
    command += ["--timeout-s", str(timeout_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    order = {"model": oracle.MODEL, "backends": [url.removesuffix("/v1") for url in backends]}
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    yield json.loads(process.stdout.readline())["url"]
    process.stdin.close()  # as when its parent is gone
    assert process.wait(60) == 0


@pytest.fixture
def load(tmp_path):
    """Loads an agent out of a file with this text; of two texts in one test the first is not read again."""
    from sql_agent.user_agents.tasks import load_agent

    def load(text: str, name: str = "agent") -> Any:
        file = tmp_path / "mine.py"
        file.write_text(text)
        return load_agent(f"{file}:{name}")

    forget_user_files()
    return load


def train_small_policy(folder: Path, *flags: str, settings: Sequence[str], caged: bool = False) -> SimpleNamespace:
    """One train step of the small policy, or `trainer.steps`, through the whole chain, by the command.

    Args:
        caged: where this machine lets us, run it in a world without a network; `left` is what `cage` found there.
    Returns:
        Its folder, its output, and the first step's metrics and rollouts; no process and no scratch folder is left.
    """
    from sql_agent.tiny_policy.make import make_tiny_policy

    policy = ROOT / "models" / "tiny-sql"
    make_tiny_policy(policy)
    # an entropy term, so that the weights change even where all rewards of a group are equal
    all_settings = ["trainer.save_every=0", "loss.entropy_coef=0.01", *settings]
    command = [sys.executable, "sql_agent/train_sql_agent.py", "--ci-fast", "--device", "cpu", "--model", str(policy)]
    command += [*flags, *(flag for setting in all_settings for flag in ("--set", setting))]
    left = None
    if caged and cage.unshare() is not None:
        plan = cage.Plan([*command, "--run-dir", str(cage.RUN_DIR)], start_s=1500.0, keep=str(folder))
        left = cage.run(plan)
        code, out = left.code, left.output
    else:
        environment = {name: value for name, value in os.environ.items() if name != "AGL_MANAGED_STORE"}
        out_and_err = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        result = subprocess.run(
            [*command, "--run-dir", str(folder)], cwd=ROOT, env=environment, timeout=1500, **out_and_err
        )
        code, out = result.returncode, result.stdout
    log = folder / "logs" / "driver.log"
    assert code == 0, out + (log.read_text()[-5000:] if log.is_file() else "")
    run_id = json.loads((folder / "run.json").read_text())["run_id"]
    assert (processes_of(run_id), folders_of(run_id)) == ([], [])
    metrics = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    lines = (folder / "trajectories" / "train_000001.jsonl").read_text().splitlines()
    rollouts = [*map(json.loads, lines)]
    return SimpleNamespace(folder=folder, out=out, metrics=metrics, rollouts=rollouts, left=left)


def scoring_service(score, seen=None) -> Starlette:
    """A scoring service that answers with `score(messages)`; an int status from 400 on answers that instead.

    Args:
        seen: takes the messages of every request.
    """

    async def classify(request):
        messages = (await request.json())["messages"]
        if seen is not None:
            seen.append(messages)
        value = score(messages)
        if isinstance(value, int) and value >= 400:
            return JSONResponse({"detail": "messages: not like this"}, status_code=value)
        return JSONResponse({"data": [{"probs": [value], "truncated": False}]})

    async def ready(_request):
        return JSONResponse({})

    return Starlette(routes=[Route("/classify", classify, methods=["POST"]), Route("/readyz", ready)])


class HangingServer:
    """An ASGI app that answers no POST and counts who asked and who has left since."""

    def __init__(self) -> None:
        self.asked = self.left = 0

    async def __call__(self, scope, receive, send):
        assert scope["type"] == "http"
        if scope["method"] != "POST":
            await JSONResponse({}, 404)(scope, receive, send)
            return
        self.asked += 1
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left += 1

    def wait_until_left(self, count: int, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.left < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.left >= count


@contextmanager
def serve_scores(score, seen=None) -> Iterator[str]:
    """Serve `scoring_service` on loopback; yields its URL."""
    with oracle.serve(scoring_service(score, seen)) as base_url:
        yield base_url.removesuffix("/v1")


@pytest.fixture(scope="session")
def random_policy_folder(tmp_path_factory) -> Path:
    """A model of 50,000 random weights with the small policy's tokenizer and template: exact, and good at nothing."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from dbbench_adapter.generator import generate_tasks
    from sql_agent.tiny_policy.tokenizer import END_ID, PAD_ID, build_tokenizer, task_texts

    folder = tmp_path_factory.mktemp("random-policy")
    tokenizer = build_tokenizer(task_texts(generate_tasks(50, seed=0)))
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def with_random_weights(base: Path, folder: Path, *, seed: int) -> Path:
    """A copy of the model in `base` with other random weights, ten times as large, so that a token depends on those
    before it, and heads of 32, the least that vLLM has kernels for on a CPU."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(base, folder)
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(base, head_dim=32, initializer_range=0.2)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def served_policy_folder(random_policy_folder, tmp_path_factory) -> Path:
    """A random policy that vLLM can serve on a CPU."""
    return with_random_weights(random_policy_folder, tmp_path_factory.mktemp("served-policy") / "policy", seed=0)


def forget_user_files():
    """The user's files are imported anew, as by the next command."""
    user_files._of_file.cache_clear()


def checkpoint_of(run_dir, step, *, workers=1):
    """What a run may go on from, as far as the command looks at it."""
    checkpoint = run_dir / "checkpoints" / f"global_step_{step}"
    (checkpoint / "actor").mkdir(parents=True)
    (checkpoint / "actor" / "fsdp_config.json").write_text(json.dumps({"world_size": workers}))
    for shard in missing_shards(checkpoint):
        (checkpoint / "actor" / shard).touch()
    write_manifest(checkpoint, describe_checkpoint(checkpoint, {}))
    return checkpoint


# Whole runs -----------------------------------------------------------------------------------------------------------

LIFELONG = ROOT.parent / "shared" / "dbbench" / "data" / "lifelong" / "entry_dict.json"
"""500 real tasks, split by table into train and held-out. Where they are missing, generated ones take their place."""
TASKS = ["--train-file", str(LIFELONG)] if LIFELONG.is_file() else []
COMMAND = [sys.executable, "sql_agent/train_sql_agent.py", "--ci-fast", "--set", "trainer.save_every=1"]
# An entropy term, so that the weights change even in a step whose groups all have equal rewards; rows that hold every
# turn, since a policy that solves nothing may talk to its last.
SIZES = ["agent.max_turns=6", "agent.max_tokens=128", "data.max_response_tokens=3000"]
TRAINING = ["--set", "loss.entropy_coef=0.01", *SIZES, "--device", "cpu"]


@pytest.fixture(scope="session")
def first_run(small_policy, tmp_path_factory):
    """Two steps through `agl store` and the LLM proxy; yields what they left behind while the store is still up."""
    run_dir, port = tmp_path_factory.mktemp("run"), free_port()
    address = f"http://127.0.0.1:{port}"
    agl_command = Path(sys.executable).with_name("agl")
    store = subprocess.Popen([agl_command, "store", "--host", "127.0.0.1", "--port", str(port)])
    try:
        wait_for(f"{address}/v1/agl/health", store)
        where = ["--llm-proxy", "--external-store-address", address, "--model", str(small_policy)]
        where += ["--run-dir", str(run_dir)]
        result = subprocess.run(
            [*COMMAND, *TRAINING, *TASKS, *where, "--set", "trainer.steps=2"],
            cwd=ROOT,
            env={**os.environ, "AGL_MANAGED_STORE": "0"},
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert result.returncode == 0, result.stdout + result.stderr + (run_dir / "logs/driver.log").read_text()[-5000:]
        run = json.loads((run_dir / "run.json").read_text())
        yield SimpleNamespace(dir=run_dir, id=run["run_id"], store=address, out=result.stdout, metrics=metrics(run_dir))
    finally:
        store.terminate()
        store.wait(30)


def metrics(run_dir: Path) -> dict[int, dict]:
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return {row["train_step"]: row for row in rows}
