"""Train a model by GRPO on any environment, in this process: your own database, your own class, or a built-in one.

    agentgrpo local --model MODEL --database FILE.sqlite --train-file train.json
    agentgrpo local --model MODEL --env FILE.py:NAME --train-file rows.jsonl
    agentgrpo local --model models/tiny-sql --env dbbench --num-tasks 64

Each epoch runs --group-size episodes of every task, --batch-size tasks side by side, and updates a LoRA adapter after
each batch. No server is started. --eval-tasks held-out tasks are evaluated before training and after each epoch. The
command writes epoch_N/ (adapter and tokenizer), metrics.jsonl, trajectories.jsonl and checkpoints/ into --run-dir.
doc/guides/local.md explains it.
"""

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from agentgrpo.checks import require
from agentgrpo.commands import say
from agentgrpo.flags import Parser
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.processes import ends_in_order
from sql_agent.local.start import load_libraries, report_failures, trained_here
from sql_agent.names import PRESETS, weights_of
from sql_agent.reward_functions.load import judges_of
from sql_agent.settings.flags import message_formatter, read_flags, training_parser
from sql_agent.settings.local import GreedyGrpoConfig, Gsm8kGrpoConfig, LocalGrpoConfig
from sql_agent.tiny_policy.make import make_if_default

if TYPE_CHECKING:
    from sql_agent.environments.base import Environment
    from sql_agent.local.presets import Preset
    from sql_agent.local.run_folder import RunFolder
    from sql_agent.local.tasks import RunTasks
    from sql_agent.local.trainer import Trainer

Config = TypeVar("Config", LocalGrpoConfig, Gsm8kGrpoConfig, GreedyGrpoConfig)


def main(argv: Sequence[str] | None = None) -> None:
    cfg, resumed = parse(argv)
    start(cfg, lambda folder: run(cfg, folder), "local", resumed=resumed)


def parse(argv: Sequence[str] | None = None) -> tuple[LocalGrpoConfig, bool]:
    """The settings, and whether the run is to go on."""
    parser = parser_of("local", __doc__, LocalGrpoConfig, reward="agentbench")
    return read_local_settings(parser, LocalGrpoConfig, parser.parse_args(argv))


def run(cfg: LocalGrpoConfig, folder: "RunFolder") -> None:
    from sql_agent.local.presets import Preset

    trainer = train_local(cfg, Preset, choose, folder)
    say(f"next: {next_command(cfg, trainer.epochs)}")


def choose(cfg: LocalGrpoConfig, environment: "Environment") -> "RunTasks":
    from dbbench_adapter.splits import draw_by_kind
    from sql_agent.local.tasks import RunTasks, check_judged, fit_to_context
    from sql_agent.startup.data import describe_kinds

    check_judged(environment, cfg)
    found = environment.load_split(cfg.data, cfg.seed)
    measured = found if cfg.eval_tasks else replace(found, val=[])
    whole, prompts = fit_to_context(measured, environment, cfg.model.model_path, cfg.max_prompt_tokens)
    train = draw_by_kind(whole.train, cfg.num_tasks, cfg.seed)
    split = replace(whole, train=train, val=draw_by_kind(whole.val, cfg.eval_tasks, cfg.seed))
    return RunTasks(split.train, split.val, found.val, [*describe_kinds(split, len(whole.val)), *prompts.describe()])


# What the local commands share ----------------------------------------------------------------------------------------


def parser_of(command: str, doc: str | None, config: type[Config], *, reward: str) -> Parser:
    """Flags for the settings.

    Args:
        reward: what an episode is worth by default, in words.
    """
    parser = training_parser(command, doc, config, hidden=("reward",))
    parser.add_argument(
        "--reward",
        action="append",
        metavar="NAME[=WEIGHT]",
        help=f"a preset ({', '.join(PRESETS)}), your own function (FILE.py:NAME or module:NAME), judge or ranking; "
        f"several are summed (default {reward})",
    )
    return parser


def read_local_settings(parser: Parser, config: type[Config], args: argparse.Namespace) -> tuple[Config, bool]:
    try:
        args.reward = weights_of(args.reward) if getattr(args, "reward", None) else None
    except ValueError as error:
        parser.error(str(error))
    return read_flags(parser, config, args), args.resume


def start(
    cfg: Config, run: "Callable[[RunFolder], None]", kind: str, *, resumed: bool, free: Iterable[str] = ()
) -> None:
    """Check what a run needs, then `run` it; the command ends with one line if that fails.

    Args:
        kind: the command, as `agentgrpo --help` names it.
        free: see `RunFolder`.
    """
    with report_failures(cfg.run_dir, "the same command with --resume", message_formatter(type(cfg))):
        require(run_dir=cfg.run_dir, files=cfg.data.expected(cfg.environment.type), place=cfg.environment.database)
        if cfg.environment.type == "gsm8k":
            require(problems=str(cfg.data.train_file or "generated"))
        folder = begun(cfg, kind, resumed=resumed, free=free)
        make_if_default(cfg.model.model_path)
        require(**trained_here(cfg.model))
        if cfg.reference_model_path:
            require(policy=cfg.reference_model_path)
        require(scorer=cfg.reward_model, **judges_of(cfg.rollout, cfg.llm_judge))
        load_libraries()
        with ends_in_order():
            run(folder)


def begun(cfg: Config, kind: str, *, resumed: bool, free: Iterable[str]) -> "RunFolder":
    from sql_agent.local.run_folder import RunFolder
    from sql_agent.local.tasks import describe_user_files

    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a user's file may import torch, which reads it then
    used = describe_user_files(cfg, cfg.environment.type, cfg.run_dir)
    return RunFolder(cfg.run_dir, cfg, resumed=resumed, kind=kind, free=free, own_files=used)


def train_local(
    cfg: Config,
    preset: "type[Preset]",
    choose: "Callable[[Config, Environment], RunTasks]",
    folder: "RunFolder",
) -> "Trainer":
    """Train from the first batch to the last.

    Args:
        choose: chooses the tasks.
    """
    from agentgrpo.run_folder import claim
    from sql_agent.local.tasks import entered
    from sql_agent.local.trainer import start_trainer
    from sql_agent.trained_on import SAME_SPLIT, check_not_learnt, trained_by

    settings, model = cfg.environment, cfg.model.model_path
    with entered(settings) as environment, claim(cfg.run_dir):
        tasks = choose(cfg, environment)
        notes = check_not_learnt(model, environment, tasks.measured, SAME_SPLIT)
        command = f"agentgrpo {folder.kind}"
        folder.trained_on = trained_by(command, model, environment, settings, cfg.data, tasks.train, tasks.held_out)
        opening = [*tasks.described, *notes]
        trainer = start_trainer(preset(cfg, tasks.train, tasks.measured), environment, folder, opening)
        trainer.train()
    return trainer


def next_command(cfg: LocalGrpoConfig, epochs: int) -> str:
    """The command that talks with the agent about the same environment, as it is after so many epochs."""
    given = {
        "model": cfg.run_dir / f"epoch_{epochs}",
        "env": cfg.env_type,
        "database": cfg.database,
        "tasks": cfg.val_file or cfg.train_file,
        "protocol": cfg.protocol if cfg.protocol != "fc" else None,
    }
    flags = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    return agentgrpo_command("interactive", *flags)
