"""Train an agent with a calculator on word problems by GRPO, in this process.

    agentgrpo gsm8k --model MODEL --dataset gsm8k --group-size 4
    agentgrpo gsm8k --num-tasks 5      # a quick test: the small policy on generated problems

Each epoch runs --group-size episodes of every problem, --batch-size problems side by side, and updates a LoRA adapter
after each batch, as agentgrpo local does on any environment. Reward: 1 for the right number after ####,
else 0. --dataset is gsm8k (from the hub or its cache), a JSONL or parquet FILE of the same form, or generated (no
network). The command writes epoch_N/ (adapter and tokenizer), metrics.jsonl, trajectories.jsonl and checkpoints/ into
--run-dir. doc/project/predecessors.md explains it.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agentgrpo.commands import say
from agentgrpo.printed_commands import agentgrpo_command
from sql_agent.commands.local import parser_of, read_local_settings, start, train_local
from sql_agent.settings.local import Gsm8kGrpoConfig

if TYPE_CHECKING:
    from sql_agent.environments.base import Environment
    from sql_agent.local.run_folder import RunFolder
    from sql_agent.local.tasks import RunTasks


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of("gsm8k", __doc__, Gsm8kGrpoConfig, reward="agentbench")
    cfg, resumed = read_local_settings(parser, Gsm8kGrpoConfig, parser.parse_args(argv))
    if cfg.source == "gsm8k":
        os.environ.setdefault("HF_HUB_OFFLINE", "0")  # a user who names the hub's dataset may fetch it
    start(cfg, lambda folder: run(cfg, folder), "gsm8k", resumed=resumed)


def run(cfg: Gsm8kGrpoConfig, folder: "RunFolder") -> None:
    from sql_agent.local.presets import Preset

    trainer = train_local(cfg, Preset, choose, folder)
    model = cfg.run_dir / f"epoch_{trainer.epochs}"
    say(f"next: {agentgrpo_command('interactive', '--model', model)}")


def choose(cfg: Gsm8kGrpoConfig, environment: "Environment") -> "RunTasks":
    from sql_agent.local.tasks import RunTasks, fit_to_context

    found = environment.load_split(cfg.data, cfg.seed)
    measured = replace(found, train=found.train[: cfg.num_tasks], val=found.val[: cfg.eval_tasks])
    split, prompts = fit_to_context(measured, environment, cfg.model.model_path, cfg.max_prompt_tokens)
    described = f"{len(split.train)} problems of {cfg.dataset}, {len(split.val)} held out"
    described += f", {split.too_long} left out as too long" if split.too_long else ""
    return RunTasks(split.train, split.val, found.val, [described, *prompts.describe()])
