"""The commands of the pages that people type from are typed in a fresh clone, with a small policy for their models.

--full types those too that take minutes. What needs a GPU, the hub or another server is parsed only, as is what is not
typed in this run. `pages.py` says which command is which.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import httpx
import pytest

from agentgrpo import main
from agentgrpo.flags import dashed
from reward_model.arguments import OTHER_NAMES
from scripts.tests.pages import (
    FULL,
    GUIDES,
    NOT_TYPED,
    ONE_STEP,
    PAGES,
    REPLACED,
    ROOT,
    Command,
    blocks,
    commands,
    left_over,
)
from sql_agent.startup.flags import parse_train_args, resolve
from sql_agent.tiny_policy.make import make_tiny_policy

pytestmark = pytest.mark.slow
ALL = [command for page in PAGES for command in commands(page)]
OURS = ("bench", "scripts", "sql_agent", "reward_model", "dbbench_adapter", "examples")
ASKED = {"prompt": "How many rows has the table?"}
SCORES = {
    "http://127.0.0.1:8008/score": {**ASKED, "response": "There are 12 rows."},
    "http://127.0.0.1:8008/score-pair": {**ASKED, "chosen": "There are 12 rows.", "rejected": "No idea."},
}
SERVERS = {
    "agl store": {"http://127.0.0.1:9999/v1/agl/health": None},
    "vllm serve": {"http://127.0.0.1:8000/v1/completions": {"model": "mine", "prompt": "SELECT", "max_tokens": 2}},
    "inference_api": SCORES,
    "reward serve": SCORES,
}
"""Requests that each server has to answer before the page goes on; None stands for a GET."""


def test_every_command_is_typed_or_says_why_not():
    assert [leftover for page in PAGES for leftover in left_over(page)] == []
    for table in (NOT_TYPED, FULL):
        assert [pattern for pattern in table if not any(re.search(pattern, each.name) for each in ALL)] == []
    assert [pattern for pattern in REPLACED if not any(re.search(pattern, each.text) for each in ALL)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page not in GUIDES])
def test_no_two_runs_of_a_page_share_a_folder(page):
    """A second run would go on from the first, or refuse to; `--ci-fast` and `--dry-run` begin anew."""
    runs = [each.text for each in commands(page) if ONE_STEP.search(each.text) or "trainer.steps" in each.text]
    folders = [re.findall(r"--run-dir (\S+)", text) for text in runs]
    assert [text for text in runs if folders.count(re.findall(r"--run-dir (\S+)", text)) > 1] == []


def words_of(command: Command) -> list[str]:
    """Return the words of a command from the name of its program on."""
    words = shlex.split(command.text.partition("<<<")[0])
    while re.match(r"\w+=", words[0]):
        words = words[1:]
    return words


@lru_cache
def help_of(program: tuple[str, ...], *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, "--help", *flags],
        cwd=ROOT, capture_output=True, text=True, timeout=240, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


def unknown(program: tuple[str, ...], flags: list[str]) -> list[str]:
    """Return the flags that the command does not know: neither shown by its help nor an earlier name of a flag.

    A parser of ours refuses a name that does not exist before it shows its help; TRL's parser is not reached by --help.
    """
    shown = help_of(program)
    assert shown.returncode == 0, shown.stderr
    hidden = [flag for flag in flags if not re.search(rf"{dashed(flag)}(?![\w-])", shown.stdout)]
    refuses = hidden and help_of(program, "--no-such-flag").returncode != 0
    return [flag for flag in hidden if not refuses or help_of(program, flag).returncode != 0]


def pytest_generate_tests(metafunc):
    if "parsed" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full")
        parsed = [command for command in ALL if not command.typed(full=full)]
        metafunc.parametrize("parsed", parsed, ids=[command.name[:90] for command in parsed])


def test_a_command_that_is_not_typed_names_what_is_there(parsed):
    program, *words = words_of(parsed)
    if program.endswith("accelerate"):
        program, words = "python", words[next(at for at, word in enumerate(words) if word.endswith(".py")) :]
    if program == "make":
        assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text()
    elif program == "bash":
        assert (ROOT / words[0]).is_file()
    elif program.endswith("agentgrpo"):
        name = next(name for name in (" ".join(words[:2]), words[0]) if name in main.COMMANDS)
        flags = [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]
        if name == "reward train":  # whose help has TRL's names
            flags = [flag for flag in flags if flag not in OTHER_NAMES.values()]
        assert not flags or unknown(("-m", "agentgrpo", *name.split()), flags) == []
        if name == "train":  # its settings and their values fit, too
            typed = shlex.split(parsed.in_clone(ROOT))
            assert resolve(parse_train_args(typed[typed.index("train") + 1 :])).run_dir.parts
    elif program.endswith(("python", "python3")):
        what = words[:2] if words[0] == "-m" else [str(Path(parsed.folder) / words[0])]
        file = what[-1].replace(".", "/") + ".py" if words[0] == "-m" else what[-1]
        assert file.split("/")[0] in OURS
        assert (ROOT / file).is_file()
        flags = [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]
        assert not flags or unknown(tuple(what), flags) == []
    for word in words:
        if word.startswith(("sql_agent/configs/", "examples/")):
            assert (ROOT / word.partition(":")[0]).exists(), word


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A fresh clone with the environment, the small policy of the default, and the files that a reader brings."""
    clone = tmp_path_factory.mktemp("pages") / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    make_tiny_policy(ROOT / "models" / "tiny-sql")
    shutil.copytree(ROOT / "models" / "tiny-sql", clone / "models" / "tiny-sql")
    for maker in (
        "examples/own_database/make_shop.py shop",
        "scripts/generate_db_bench_data.py --num_samples 64 --output_path brought.json",
    ):
        subprocess.run([sys.executable, *maker.split()], cwd=clone, env=os.environ | {"PYTHONPATH": clone}, check=True)
    questions = json.loads((clone / "shop" / "train.json").read_text())
    for name, rows in {"train": questions[::30], "questions": questions[::30], "test": questions[1::60]}.items():
        (clone / f"{name}.json").write_text(json.dumps(rows))
    pairs = [
        {"prompt": f"How many rows has t{i}?", "chosen": f"SELECT count(*) FROM t{i}", "rejected": "It has many."}
        for i in range(12)
    ]
    for folder in ("", "reward_model"):
        (clone / folder / "raw.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    return clone


def bring_agent(clone: Path) -> None:
    """Write the agent and its tasks as the page of agents has them."""
    shown = "doc/start/your_agent.md"
    (clone / "my_agent.py").write_text(*blocks(shown, "python"))
    (clone / "tasks.jsonl").write_text(*(block for block in blocks(shown) if block.startswith("{")))


@contextmanager
def started(text: str, folder: Path, log: Path) -> Iterator[subprocess.Popen]:
    """Start a command as a shell does, with its output in `log`; nothing of it is left afterwards."""
    clone = log.parent
    env = {**os.environ, "PATH": f"{clone}/.venv/bin:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
    env["PYTHONPATH"] = str(clone)  # the environment is the one of this checkout
    with log.open("w") as out:
        process = subprocess.Popen(
            ["bash", "-c", text], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def serving(text: str, folder: Path, log: Path, requests: dict[str, dict | None]) -> Iterator[str]:
    """Serve until the block ends, and yield the answers to the requests that say that the server is ready."""
    port = httpx.URL(next(iter(requests))).port
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.1", port)), f"port {port} is taken; end what listens there: {text}"
    with started(text, folder, log) as process:
        answers = []
        for url, body in requests.items():
            deadline = time.monotonic() + 300
            while (answer := answer_of(url, body)) is None:
                assert process.poll() is None and time.monotonic() < deadline, f"{text}\n{log.read_text()[-5000:]}"
                time.sleep(0.5)
            answers.append(answer)
        yield "\n".join(answers)


def answer_of(url: str, body: dict | None) -> str | None:
    try:
        answer = httpx.request("POST" if body else "GET", url, json=body, trust_env=False, timeout=60)
    except httpx.TransportError:
        return None
    return answer.text if answer.status_code == 200 else None


def say(command: Command, since: float, shown: str) -> None:
    """Print what the command said at its end, which `pytest -rP` shows."""
    print(f"\n[{time.monotonic() - since:5.0f} s] {command.name}\n{shown[-1500:]}", flush=True)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_in_a_fresh_clone(page, clone, request):
    for folder in ("outputs", "runs"):  # each page is typed by another reader
        shutil.rmtree(clone / folder, ignore_errors=True)
    bring_agent(clone)
    typed = [each for each in commands(page) if each.typed(full=request.config.getoption("--full"))]
    with ExitStack() as server:  # a server ends when the page starts another, or ends
        for command in typed:
            since, folder = time.monotonic(), clone / command.folder
            text = command.in_clone(clone)
            if asked := next((requests for name, requests in SERVERS.items() if name in text), None):
                server.close()
                say(command, since, server.enter_context(serving(text, folder, clone / "server.log", asked)))
                continue
            if "--base-url URL" in command.text:
                serve = next(each.text for each in commands("doc/guides/evaluate.md") if "vllm serve" in each.text)
                serve = serve.replace("MODEL", "runs/seller/checkpoints/global_step_1/actor/huggingface")
                server.enter_context(serving(serve, clone, clone / "server.log", SERVERS["vllm serve"]))
            log = clone / "command.log"
            with started(text, folder, log) as process:
                process.communicate(":task 1\n", timeout=1800)
                assert process.returncode == 0, f"{text}\n{log.read_text()[-5000:]}"
            say(command, since, log.read_text())
