"""The commands: `agentgrpo COMMAND ...`, `python -m agentgrpo COMMAND ...`, and scripts that earlier versions had.

A command is a module with a `main` that reads `sys.argv`; it is imported when it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NoReturn

from agentgrpo.commands import execute, run_module, starting
from agentgrpo.spelling import did_you_mean

# Commands by name: the module, and what it is for.
COMMANDS = {
    "demo": ("sql_agent.demo", "a pretrained model learns a shop's database in twelve minutes"),
    "train": (
        "sql_agent.train_sql_agent",
        "trains by GRPO with vLLM and verl; --algorithm apo improves instructions instead",
    ),
    "improve": ("sql_agent.improve", "fine-tunes a model on your database, then trains it by GRPO, in given minutes"),
    "sft": ("sql_agent.commands.sft", "fine-tunes on references, demonstrations or conversations"),
    "collect": (
        "sql_agent.commands.collect",
        "makes demonstrations from correct rollouts of the policy or of a teacher",
    ),
    "dpo": ("sql_agent.commands.dpo", "trains by DPO on preference pairs"),
    "local": ("sql_agent.commands.local", "trains by GRPO in one process, without servers"),
    "greedy-grpo": (
        "sql_agent.commands.greedy_grpo",
        "trains by GRPO on DB-Bench in one process, with an update after each task",
    ),
    "single-skill": ("sql_agent.commands.single_skill", "trains by REINFORCE in one process, on single skills"),
    "gsm8k": ("sql_agent.commands.gsm8k", "trains by GRPO in one process, on word problems with a calculator"),
    "evaluate": ("sql_agent.evaluate", "measures the success of an OpenAI-compatible endpoint on tasks"),
    "interactive": ("sql_agent.commands.interactive", "opens a conversation with a trained agent"),
    "report": (
        "sql_agent.commands.report",
        "writes one page about a run: curves, questions before and after, rollouts",
    ),
    "push": ("sql_agent.commands.push", "uploads a run's model with its card to the Hugging Face hub"),
    "doctor": ("sql_agent.commands.doctor", "checks whether a run can start, and lists what is missing"),
    "check-env": ("sql_agent.commands.check_env", "tests your own environment without a model"),
    "merge": ("sql_agent.commands.merge", "merges an adapter, or a checkpoint's shards, into a whole model"),
    "accept": ("sql_agent.commands.accept", "signs checkpoints that you trust"),
    "clean": ("sql_agent.commands.clean", "lists and removes processes and files that a killed run left behind"),
    "tiny-policy": ("sql_agent.commands.tiny_policy", "makes the small policy"),
    "pretrained-policy": ("sql_agent.commands.pretrained_policy", "makes a model folder of SmolLM2-135M-Instruct"),
    "tasks generate": ("sql_agent.commands.generate", "generates DB-Bench tasks by skill and difficulty"),
    "tasks from-database": ("sql_agent.commands.from_database", "makes questions with SQL from your database"),
    "tasks validate": ("dbbench_adapter.validate", "lists faulty rows of task files; --replay runs their references"),
    "tasks replay": (
        "sql_agent.commands.replay",
        "measures the highest success that a task file allows on each database",
    ),
    "tasks split": ("dbbench_adapter.splits", "splits tasks into parts that share no table"),
    "tasks skills": ("dbbench_adapter.skills", "compares labelled with recognised skills"),
    "tasks export": ("dbbench_adapter.export", "writes tasks as rows for verl or agent-lightning"),
    "tasks download": ("sql_agent.commands.download", "downloads LifelongAgentBench's tasks from the hub"),
    "tasks single-skill": ("sql_agent.commands.single_skill_data", "sorts tasks by skill"),
    "tasks medical": ("sql_agent.commands.medical_data", "makes the medical database, its questions and pairs"),
    "reward convert": ("reward_model.convert_dpo_format", "converts preference data of common forms"),
    "reward pairs": ("reward_model.pairs_from_rollouts", "makes preference pairs from an agent's rollouts"),
    "reward validate": ("reward_model.validate", "lists faulty rows of converted files"),
    "reward train": ("reward_model.reward_modeling", "trains a reward model with TRL"),
    "reward evaluate": ("reward_model.evaluate", "measures accuracy on held-out pairs"),
    "reward merge": ("reward_model.merge", "merges an adapter into its base"),
    "reward serve": ("reward_model.inference_api", "starts the scoring service"),
    "reward score": ("reward_model.client", "scores answers with a scoring service"),
}


def main() -> NoReturn:
    """End with the command's status: 0, 1 for a failure, 2 for flags or settings that cannot be, 130 after Ctrl-C."""
    starting()
    words = sys.argv[1:]
    name = next((name for name in (" ".join(words[:2]), *words[:1]) if name in COMMANDS), None)
    if name is not None:
        sys.argv[:] = [f"agentgrpo {name}", *words[len(name.split()) :]]
        execute(import_module(COMMANDS[name][0]).main)
    if words[:1] == ["--version"]:
        execute(lambda: print(f"agentgrpo {version('agentgrpo')}"))
    group = [known for known in COMMANDS if words and known.startswith(f"{words[0]} ")]
    asked = words[1:] if group else words
    if not asked or asked[0] in ("-h", "--help"):
        execute(lambda: print(list_commands(group or list(COMMANDS))))
    meant = " ".join(words[: 2 if group else 1])
    near = did_you_mean(meant, group or list(COMMANDS))
    print(f"error: no command {meant!r}{near}; `agentgrpo --help` lists the commands", file=sys.stderr)
    sys.exit(2)


def script(name: str) -> NoReturn:
    run_module(COMMANDS[name][0])


def list_commands(names: Sequence[str]) -> str:
    width = max(map(len, names))
    lines = [f"  {name:{width}}  {COMMANDS[name][1]}" for name in names]
    return "\n".join(["usage: agentgrpo COMMAND [--help] ...", "", *lines])
