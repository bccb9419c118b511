"""The checks that commands make before anything expensive: one table, from which each takes what it is about to use.

A command says what it is about to use (`model=...`, `store=...`). Every check runs whose needs are all among it, in the
table's order, cheap before expensive: `require` ends the command at the first problem that keeps a run from starting,
`examine` collects everything for a report. A check is imported when it is made, so the report works where packages are
broken.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from agentgrpo.printed_commands import remedy_of


class UsageError(ValueError):
    """Something is wrong that the user can correct; the message says how."""


@dataclass(frozen=True)
class Problem:
    what: str
    remedy: str
    blocks: bool = True
    """False if a run can start anyway."""

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


@dataclass(frozen=True)
class Finding:
    found: str
    problems: tuple[Problem, ...] = ()

    @property
    def blocks(self) -> bool:
        return any(problem.blocks for problem in self.problems)


@dataclass(frozen=True)
class Check:
    name: str
    needs: tuple[str, ...]
    """What a command has to be about to use for the check to be made; the check's arguments, in order."""
    cost: str
    run: str
    """`module:function`. What it returns is shown if it is a `Finding`; a ValueError is a problem too."""
    looks_at: str
    """What it finds out, for doc/reference/doctor.md."""

    def make(self, use: dict[str, Any]) -> Finding | None:
        module, _, name = self.run.partition(":")
        found = getattr(import_module(module), name)(*(use[need] for need in self.needs))
        found = asyncio.run(found) if inspect.iscoroutine(found) else found
        return found if isinstance(found, Finding) else None


_RUN, _MACHINE, _READ = (f"sql_agent.startup.{name}" for name in ("preflight", "machine", "input_checks"))
_NO_TIME = "no time"
_PAGES = "doc/guides/database.md and doc/guides/training.md have the forms of databases, questions and tasks"
# Cheap checks come before expensive ones, and what others build on before these.
CHECKS = (
    Check("variables", ("variables",), _NO_TIME, f"{_RUN}:check_variables",
          "agent-lightning's environment variables have values that it knows"),
    Check("Python", ("python", "executable"), _NO_TIME, f"{_MACHINE}:check_python", "Python is 3.11 or 3.12"),
    Check("packages", ("installed",), "0.1 s", f"{_MACHINE}:check_installed",
          "packages are the pinned versions; without a clone, which extras are whole"),
    Check("CPU", ("architecture", "cpu_flags", "cores"), _NO_TIME, f"{_MACHINE}:check_cpu",
          "the CPU has AVX2 and two cores"),
    Check("memory", ("memory_gib",), _NO_TIME, f"{_MACHINE}:check_memory", "free memory"),
    Check("memory", ("memory_of", "gpus"), _NO_TIME, "sql_agent.startup.memory_check:check_run_memory",
          "the run's memory by the estimate, for its settings"),
    Check("store port", ("port", "port_asked"), "2 s at most", f"{_MACHINE}:check_port",
          "the port of an external store is free"),
    Check("databases", ("mariadbd", "mariadb_install_db"), _NO_TIME, f"{_MACHINE}:check_databases",
          "MariaDB's server is installed; SQLite comes with Python"),
    Check("run folder", ("run_dir",), _NO_TIME, "agentgrpo.run_folder:check_run_dir",
          "the run's folder can be written, and no other run writes there"),
    Check("files", ("files",), _NO_TIME, "agentgrpo.outputs:check_files", "files that the settings name are there"),
    Check("problems", ("problems",), _NO_TIME, "sql_agent.gsm8k.problems:check_source",
          "the file or data set of word problems is there"),
    Check("database", ("place",), _NO_TIME, "dbbench_adapter.engines:check_place", "the database opens"),
    Check("rewards", ("rewards", "environment"), "an import", f"{_RUN}:check_reward_source",
          "something rewards the rollouts, and reward functions load"),
    Check("upstream code", ("on_cpu",), "0.5 s", "sql_agent.upstream_patches:check_patch_targets",
          "the installed packages hold the code that AgentGRPO patches"),
    Check("store", ("store",), "25 s at most", f"{_RUN}:check_store",
          "the external store answers, and no other run uses it"),
    Check("reward model", ("scorer",), "a score", "sql_agent.source.scoring:check_scorer",
          "the scoring service gives a score"),
    Check("LLM judge", ("judge",), "a score, 60 s at most", "sql_agent.reward_functions.judge:check_judge",
          "the LLM as judge gives a score"),
    Check("LLM ranking", ("ranking",), "a ranking, 60 s at most", "sql_agent.reward_functions.ranking:check_ranking",
          "the LLM as judge ranks two conversations"),
    Check("episodes", ("episodes", "environment"), "a server's start", f"{_RUN}:check_episodes",
          "episodes can be opened"),
    Check("database", ("backend",), "a server's start", "sql_agent.commands.single_skill:check_experiment_backend",
          "the database of the episodes opens"),
    Check("device", ("experiment_model",), "torch's import", "sql_agent.commands.single_skill:find_device",
          "the device for the model's experiment"),
    Check("device", ("device", "load_in_4bit", "has_gpu"), _NO_TIME, "sql_agent.local.model_files:check_device",
          "the device is there and can hold the weights as asked"),
    Check("model", ("scoring_model",), _NO_TIME, "reward_model.inference_api:check_scoring_model",
          "the folder holds a model or an adapter"),
    Check("model", ("base_model",), _NO_TIME, "agentgrpo.model_kinds:check_model_kind",
          "the base can be loaded as a chat model"),
    Check("model", ("policy",), "1 s; a fetch of an id", "sql_agent.local.model_files:check_policy",
          "model or adapter are there and whole"),
    Check("model", ("model", "protocol"), "2 s", f"{_READ}:check_model",
          "the model's files are whole, and conversations continue from sampled ids"),
    Check("model type", ("trained", "trainer", "row_tokens"), _NO_TIME, f"{_READ}:check_model_type",
          "models of this type are trained with these settings"),
    Check("GPUs", ("model", "tensor_parallel"), _NO_TIME, f"{_READ}:check_sharding",
          "the model's heads can be split over the GPUs"),
    Check("data", ("experiment",), "they are made", "sql_agent.commands.single_skill:check_data",
          "the experiment's task files; missing ones are made"),
    Check("database", ("database", "tasks", "splits", "columns"), "every reference is run", f"{_READ}:check_database",
          "databases and tables, and whether every reference query runs"),
    Check("prompts", ("tasks", "model", "database", "max_prompt_tokens", "columns", "schema_form"),
          "1 s a 100 tasks", f"{_READ}:check_prompts", "lengths of the first prompts, and what is cut or left out"),
    Check("tasks", ("env", "tasks_of", "train_file", "val_file"), "they are read", f"{_READ}:check_tasks",
          "the environment or agent loads, and how many tasks it has"),
    Check("disk", ("folder", "disk_need", "disk_remedy"), _NO_TIME, "agentgrpo.outputs:check_disk",
          "room on the disk for checkpoints"),
)  # fmt: skip


def _of(use: dict[str, Any]) -> Iterator[Check]:
    if unknown := set(use) - {need for check in CHECKS for need in check.needs}:
        raise TypeError(f"no check needs {', '.join(sorted(unknown))}")
    return (check for check in CHECKS if set(check.needs) <= set(use))


def require(say: Callable[[str], object] = print, /, **use: Any) -> None:
    """Say what does not keep a run from starting, and end at what does.

    Raises:
        UsageError: there is a problem; all problems of the first check that has any are named, one a line.
        ValueError: any other one that a check raises.
    """
    for check in _of(use):
        problems = found.problems if (found := check.make(use)) else ()
        if blocking := [str(problem) for problem in problems if problem.blocks]:
            raise UsageError("\n".join(blocking))
        for problem in problems:
            say(f"warning: {problem}")


def examine(**use: Any) -> list[tuple[str, Finding]]:
    found: list[tuple[str, Finding]] = []
    for check in _of(use):
        try:
            finding = check.make(use)
        except ValueError as error:
            what, _, remedy = str(error).partition("; ")
            finding = Finding(str(use[check.needs[0]]), (Problem(what, remedy or _PAGES),))
        except ImportError as error:  # a report is asked for where packages are broken, too
            remedy = remedy_of((error.name or "").partition(".")[0])
            finding = Finding(str(use[check.needs[0]]), (Problem(f"a package cannot be imported ({error})", remedy),))
        found += [(check.name, finding)] if finding else []
    return found


def format_findings(findings: Sequence[tuple[str, Finding]]) -> list[tuple[str, str]]:
    """Lines, each with its colour, which adds no meaning."""
    lines = []
    for name, finding in findings:
        state, colour = "ok", "green"
        if finding.problems:
            state, colour = ("problem", "red") if finding.blocks else ("warning", "yellow")
        lines.append((f"{state:8} {name:11} {finding.found}", colour))
        for problem in finding.problems:
            lines += [(f"{'':20} {problem.what}", colour), (f"{'':20} -> {problem.remedy}", "bold")]
    blocking = sum(finding.blocks for _, finding in findings)
    lines.append((f"{blocking} to mend before a run can start", "red") if blocking else ("a run can start", "green"))
    return lines


def show(findings: Sequence[tuple[str, Finding]]) -> int:
    lines = format_findings(findings)
    try:
        from rich.console import Console
    except ImportError:  # the packages may be broken
        print("\n".join(text for text, _ in lines))
    else:
        console = Console(highlight=False, soft_wrap=True)
        for text, colour in lines:
            console.print(text, style=colour, markup=False)
    return int(any(finding.blocks for _, finding in findings))
