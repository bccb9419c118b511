"""Train a model on DB-Bench tasks in this process, greedy-then-GRPO: one task, one update.

    agentgrpo greedy-grpo --model models/tiny-sql --learning-rate 1e-3

Each task is played in one greedy episode, which counts for the accuracy, then in `group_size` sampled ones; a GRPO
update of a LoRA adapter follows at once. Rewards: correct +1, wrong -1, out of turns -0.8, illegal -0.2. The command
writes adapter/ (with the tokenizer), metrics.jsonl, trajectories.jsonl and checkpoints/ into --run-dir.
doc/local_rl.md explains it.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agentgrpo.checks import require
from agentgrpo.commands import say
from agentgrpo.flags import Parser
from agentgrpo.processes import ends_in_order
from sql_agent.local.start import failures_in_words, load_libraries
from sql_agent.settings.flags import add_flags, read_flags
from sql_agent.settings.groups import DataConfig, EnvironmentSettings
from sql_agent.settings.local import GreedyGrpoConfig
from sql_agent.tiny_policy.make import make_if_default

if TYPE_CHECKING:
    from sql_agent.environments.base import Environment, Split

PRESETS = {"rllm": {"protocol": "lab", "judge": "lab", "max_turns": 3}}
"""Defaults of flags by `--preset`; the rewards are rLLM's always."""
FREE_ON_RESUME = ("save_dir", "save_every", "eval_tasks", "eval_every")


def parse_args(argv: Sequence[str] | None = None) -> tuple[GreedyGrpoConfig, bool]:
    """Return the settings, and whether the run in their folder is resumed."""
    parser = Parser(
        prog="agentgrpo greedy-grpo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(
        parser,
        GreedyGrpoConfig,
        hidden=("loss.name", "loss.estimator"),
    )
    parser.add_argument(
        "--preset",
        choices=tuple(PRESETS),
        help="rllm: protocol and judge lab and 3 rounds, as the rLLM predecessor had them; flags that are given win",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --run-dir from its last checkpoint"
    )
    args = parser.parse_args(argv)
    for name, value in PRESETS.get(args.preset, {}).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return read_flags(parser, GreedyGrpoConfig, args), args.resume


def main(argv: Sequence[str] | None = None) -> None:
    cfg, resumed = parse_args(argv)
    with failures_in_words(f"the same command with --resume goes on from the last checkpoint in {cfg.run_dir}"):
        make_if_default(cfg.model.model_path)
        for path in filter(None, (cfg.model.model_path, cfg.reference_model_path)):
            require(policy=path)
        load_libraries()
        with ends_in_order():
            run(cfg, resumed=resumed)


def run(cfg: GreedyGrpoConfig, *, resumed: bool) -> None:
    from agentgrpo.run_folder import claim
    from dbbench_adapter.splits import draw_by_kind
    from sql_agent.local.greedy_grpo import GreedyGrpo
    from sql_agent.local.run_folder import RunFolder
    from sql_agent.local.tasks import entered
    from sql_agent.local.trainer import start_trainer
    from sql_agent.trained_on import SAME_SPLIT, check_not_learnt, trained_by

    settings = EnvironmentSettings("dbbench", cfg.protocol, cfg.judge, cfg.backend)
    folder = RunFolder(cfg.run_dir, cfg, resumed=resumed, kind="greedy-grpo", free=FREE_ON_RESUME)
    with entered(settings) as environment, claim(cfg.run_dir):
        split, model = load_split(cfg, environment), cfg.model.model_path
        held_out = draw_by_kind(split.val, cfg.eval_tasks, seed=1) if cfg.eval_tasks else []
        notes = check_not_learnt(model, environment, held_out, SAME_SPLIT)
        folder.trained_on = trained_by(
            "agentgrpo greedy-grpo", model, environment, settings, data_of(cfg), split.train, split.val
        )
        recipe = GreedyGrpo(cfg, split.train, held_out)
        trainer = start_trainer(cfg, recipe, environment, folder, resumed=resumed, opening="\n".join(notes))
        trainer.train()
    say(f"greedy accuracy while training: {trainer.progress.accuracy}")
    say(f"adapter: {folder.finish(trainer.policy)}")


def data_of(cfg: GreedyGrpoConfig) -> DataConfig:
    return DataConfig(train_file=cfg.train_file, val_file=cfg.val_file, held_out_fraction=cfg.held_out_fraction)


def load_split(cfg: GreedyGrpoConfig, environment: "Environment") -> "Split":
    """Return the tasks to train on, drawn by the seed, and held-out ones, which are the same for every seed.

    Raises:
        ValueError: a file cannot be read, or a skill is unknown.
    """
    from dbbench_adapter.generator import generate_tasks
    from dbbench_adapter.splits import count_kinds, draw_by_kind
    from sql_agent.environments.base import Split
    from sql_agent.local.skill_tasks import draws, held_out_tasks
    from sql_agent.settings.single_skill import TaskConfig

    if cfg.skills:
        of_skills = TaskConfig(skills=dict.fromkeys(cfg.skills, 1.0))
        source = draws(of_skills, seed=cfg.seed)
        tasks = [source.draw()[1] for _ in range(cfg.num_tasks)]
        listed = held_out_tasks(of_skills, -(-cfg.eval_tasks // len(cfg.skills))) if cfg.eval_tasks else {}
        return Split(tasks, [task for of_skill in listed.values() for task in of_skill])
    if not cfg.train_file:
        held_out = generate_tasks(cfg.eval_tasks, seed=1, split="held_out") if cfg.eval_tasks else []
        return Split(generate_tasks(cfg.num_tasks, seed=cfg.seed), held_out)
    found = environment.load_split(data_of(cfg), cfg.seed)
    tasks = draw_by_kind(found.train, cfg.num_tasks, cfg.seed)
    kinds = ", ".join(f"{kind} {count}" for kind, count in count_kinds(tasks).items())
    left_out = "".join(f", {count} left out ({reason})" for reason, count in found.left_out.items())
    say(
        f"{cfg.train_file}: {len(tasks)} of {len(found.train)} tasks to train on (--num-tasks): {kinds}; "
        f"{len(found.val)} held out{left_out}"
    )
    return replace(found, train=tasks)
