"""Train an agent with a calculator on word problems by GRPO, in this process.

    agentgrpo gsm8k --model MODEL --dataset gsm8k --group-size 4
    agentgrpo gsm8k --num-tasks 5      # a quick test: the small policy on generated problems

Each epoch plays --group-size episodes of every problem, --batch-size problems side by side, and updates a LoRA adapter
after each batch, as agentgrpo local does on any environment. Reward: 1 for the right number after ####,
else 0. --dataset is gsm8k (from the hub or its cache), a JSONL or parquet FILE of the same form, or generated (no
network). The command writes epoch_N/ (adapter and tokenizer), metrics.jsonl, trajectories.jsonl and checkpoints/ into
--run-dir. doc/gsm8k.md explains it.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentgrpo.checks import require
from agentgrpo.commands import say
from agentgrpo.flags import Parser
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.processes import ends_in_order
from sql_agent.local.start import failures_in_words, load_libraries
from sql_agent.settings.flags import add_flags, read_flags
from sql_agent.settings.groups import DataConfig, EnvironmentSettings
from sql_agent.settings.local import Gsm8kGrpoConfig
from sql_agent.tiny_policy.make import make_if_default

FREE_ON_RESUME = ("output_dir", "save_every")
# Number of generated problems to train on if --num-tasks does not say how many.
GENERATED = 1_000


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(
        prog="agentgrpo gsm8k",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(
        parser,
        Gsm8kGrpoConfig,
        hidden=(
            *("loss.name", "loss.estimator", "reward", "reward_timeout_s", "redraws", "sampler"),
            *("max_lost_fraction", "reward_model", "llm_judge"),
        ),
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --run-dir from its last checkpoint"
    )
    args = parser.parse_args(argv)
    cfg = read_flags(parser, Gsm8kGrpoConfig, args)
    with failures_in_words(f"the same command with --resume goes on from the last checkpoint in {cfg.run_dir}"):
        if cfg.source == "gsm8k":
            os.environ.setdefault("HF_HUB_OFFLINE", "0")  # a user who names the hub's dataset may fetch it
        make_if_default(cfg.model.model_path)
        for path in filter(None, (cfg.model.model_path, cfg.reference_model_path)):
            require(policy=path)
        load_libraries()
        with ends_in_order():
            run(cfg, resumed=args.resume)


def run(cfg: Gsm8kGrpoConfig, *, resumed: bool) -> None:
    from agentgrpo.run_folder import claim
    from sql_agent.local.batch_grpo import BatchGrpo
    from sql_agent.local.run_folder import RunFolder
    from sql_agent.local.tasks import entered, fitted
    from sql_agent.local.trainer import start_trainer
    from sql_agent.trained_on import SAME_SPLIT, check_not_learnt, trained_by

    settings, model = EnvironmentSettings("gsm8k"), cfg.model.model_path
    folder = RunFolder(cfg.run_dir, cfg, resumed=resumed, kind="gsm8k", free=FREE_ON_RESUME)
    with entered(settings) as environment, claim(cfg.run_dir):
        found = environment.load_split(data_of(cfg), cfg.seed)
        drawn = replace(found, train=found.train[: cfg.num_tasks], val=found.val[: cfg.eval_tasks])
        split, prompts = fitted(drawn, environment, model, cfg.max_prompt_tokens)
        notes = check_not_learnt(model, environment, split.val, SAME_SPLIT)
        folder.trained_on = trained_by(
            "agentgrpo gsm8k", model, environment, settings, data_of(cfg), split.train, found.val
        )
        recipe = BatchGrpo(cfg, split.train, split.val)
        opening = f"{len(split.train)} problems of {cfg.dataset}, {len(split.val)} held out"
        opening += f", {split.too_long} left out as too long" if split.too_long else ""
        opening = "\n".join([opening, *prompts.describe(), *notes])
        start_trainer(cfg, recipe, environment, folder, resumed=resumed, opening=opening).train()
    model = cfg.run_dir / f"epoch_{cfg.num_epochs}"
    say(f"next: {agentgrpo_command('interactive', '--model', model)}")


def data_of(cfg: Gsm8kGrpoConfig) -> DataConfig:
    file = None if cfg.source == "generated" else Path(cfg.source)
    return DataConfig(train_file=file, generate=cfg.num_tasks or GENERATED, val_limit=max(cfg.eval_tasks, 1))
