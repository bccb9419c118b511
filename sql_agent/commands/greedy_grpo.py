"""Train a model on DB-Bench tasks in this process, greedy-then-GRPO: one task, one update.

    agentgrpo greedy-grpo --model models/tiny-sql --learning-rate 1e-3

Each task has one greedy episode, which counts for the accuracy, then `group_size` sampled ones. A GRPO update of a
LoRA adapter follows at once. Rewards: correct +1, wrong -1, out of turns -0.8, illegal -0.2. The command writes
adapter/ (with the tokenizer), metrics.jsonl, trajectories.jsonl and checkpoints/ into --run-dir. doc/guides/local.md
explains it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentgrpo.commands import say
from sql_agent.commands.local import parser_of, read_local_settings, start, train_local
from sql_agent.settings.local import GreedyGrpoConfig

if TYPE_CHECKING:
    from sql_agent.environments.base import Environment, Split
    from sql_agent.local.run_folder import RunFolder
    from sql_agent.local.tasks import RunTasks

PRESETS = {"rllm": {"protocol": "lab", "judge": "lab", "max_turns": 3}}
"""Defaults of flags by `--preset`."""


def parse_args(argv: Sequence[str] | None = None) -> tuple[GreedyGrpoConfig, bool]:
    """The settings, and whether the run in their folder is resumed."""
    parser = parser_of("greedy-grpo", __doc__, GreedyGrpoConfig, reward="the four numbers above")
    parser.add_argument(
        "--preset",
        choices=tuple(PRESETS),
        help="rllm: protocol and judge lab, and 3 rounds, as in the rLLM predecessor; other flags override them",
    )
    args = parser.parse_args(argv)
    for name, value in PRESETS.get(args.preset, {}).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return read_local_settings(parser, GreedyGrpoConfig, args)


def main(argv: Sequence[str] | None = None) -> None:
    cfg, resumed = parse_args(argv)
    start(cfg, lambda folder: run(cfg, folder), "greedy-grpo", resumed=resumed, free=("eval_tasks", "eval_every"))


def run(cfg: GreedyGrpoConfig, folder: "RunFolder") -> None:
    from sql_agent.local.presets import GreedyGrpo

    trainer = train_local(cfg, GreedyGrpo, choose, folder)
    say(f"greedy accuracy while training: {trainer.progress.accuracy}")
    say(f"adapter: {folder.finish(trainer.policy)}")


def choose(cfg: GreedyGrpoConfig, environment: "Environment") -> "RunTasks":
    from dbbench_adapter.splits import draw_by_kind
    from sql_agent.local.tasks import RunTasks

    split = load_split(cfg, environment)
    held_out = draw_by_kind(split.val, cfg.eval_tasks, seed=1) if cfg.eval_tasks else []
    return RunTasks(split.train, held_out, split.val)


def load_split(cfg: GreedyGrpoConfig, environment: "Environment") -> "Split":
    """The tasks to train on, drawn by the seed, and held-out ones, which are the same for every seed.

    Raises:
        ValueError: a file cannot be read, or a skill is unknown.
    """
    from dataclasses import replace

    from dbbench_adapter.generator import generate_tasks
    from dbbench_adapter.splits import count_kinds, draw_by_kind
    from sql_agent.environments.base import Split
    from sql_agent.local.single_skill import draws, held_out_tasks
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
    found = environment.load_split(cfg.data, cfg.seed)
    tasks = draw_by_kind(found.train, cfg.num_tasks, cfg.seed)
    kinds = ", ".join(f"{kind} {count}" for kind, count in count_kinds(tasks).items())
    left_out = "".join(f", {count} left out ({reason})" for reason, count in found.left_out.items())
    say(
        f"{cfg.train_file}: {len(tasks)} of {len(found.train)} tasks to train on (--num-tasks): {kinds}; "
        f"{len(found.val)} held out{left_out}"
    )
    return replace(found, train=tasks)
