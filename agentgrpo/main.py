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
    "train": ("sql_agent.train_sql_agent", "GRPO with vLLM and verl; --algorithm apo improves instructions instead"),
    "improve": ("sql_agent.improve", "your model on your database: fine-tuning, then GRPO, in given minutes"),
    "sft": ("sql_agent.commands.sft", "fine-tuning on references, demonstrations or conversations"),
    "collect": ("sql_agent.commands.collect", "demonstrations from right rollouts, of the policy or of a teacher"),
    "dpo": ("sql_agent.commands.dpo", "DPO on preference pairs"),
    "local": ("sql_agent.commands.local", "GRPO in one process, without servers"),
    "greedy-grpo": (
        "sql_agent.commands.greedy_grpo",
        "GRPO on DB-Bench in one process, where the greedy policy fails",
    ),
    "single-skill": ("sql_agent.commands.single_skill", "REINFORCE on one skill after another, in one process"),
    "gsm8k": ("sql_agent.commands.gsm8k", "GRPO on word problems with a calculator, in one process"),
    "evaluate": ("sql_agent.evaluate", "success of any OpenAI-compatible endpoint on tasks"),
    "interactive": ("sql_agent.commands.interactive", "a conversation with a trained agent"),
    "report": ("sql_agent.commands.report", "one page about a run: curves, questions before and after, rollouts"),
    "push": ("sql_agent.commands.push", "uploads a run's model with its card to the Hugging Face hub"),
    "doctor": ("sql_agent.commands.doctor", "what is there, what is missing, whether a run can start"),
    "check-env": ("sql_agent.commands.check_env", "plays an environment of your own without a model"),
    "merge": ("sql_agent.commands.merge", "whole weights from an adapter or from a checkpoint's shards"),
    "accept": ("sql_agent.commands.accept", "signs checkpoints that you trust"),
    "clean": ("sql_agent.commands.clean", "processes and files that a killed run left behind"),
    "tiny-policy": ("sql_agent.commands.tiny_policy", "makes the small policy"),
    "pretrained-policy": ("sql_agent.commands.pretrained_policy", "makes the folder of SmolLM2-135M-Instruct"),
    "tasks generate": ("sql_agent.commands.generate", "DB-Bench tasks by skill and difficulty"),
    "tasks from-database": ("sql_agent.commands.from_database", "questions with their SQL, made from your database"),
    "tasks validate": ("dbbench_adapter.validate", "faulty rows of task files, by a replay of their references"),
    "tasks replay": ("sql_agent.commands.replay", "the ceiling of a task file on each database"),
    "tasks split": ("dbbench_adapter.splits", "parts that share no table"),
    "tasks skills": ("dbbench_adapter.skills", "labelled and recognised skills"),
    "tasks export": ("dbbench_adapter.export", "rows for verl or agent-lightning"),
    "tasks download": ("sql_agent.commands.download", "LifelongAgentBench's tasks, from the hub"),
    "tasks single-skill": ("sql_agent.commands.single_skill_data", "tasks sorted by skill"),
    "tasks medical": ("sql_agent.commands.medical_data", "the medical database, its questions and pairs"),
    "reward convert": ("reward_model.convert_dpo_format", "preference data of any common form"),
    "reward pairs": ("reward_model.pairs_from_rollouts", "preference pairs from an agent's rollouts"),
    "reward validate": ("reward_model.validate", "faulty rows of converted files"),
    "reward train": ("reward_model.reward_modeling", "a reward model, with TRL"),
    "reward evaluate": ("reward_model.evaluate", "accuracy on held-out pairs"),
    "reward merge": ("reward_model.merge", "whole weights from an adapter"),
    "reward serve": ("reward_model.inference_api", "the scoring service"),
    "reward score": ("reward_model.client", "asks a scoring service"),
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
