"""The flags of a training run (`sql_agent.train_sql_agent`), and how they become settings."""

from __future__ import annotations

import argparse
import json

from agentgrpo.checks import UsageError
from agentgrpo.flags import Parser
from agentgrpo.hub_rows import with_local_rows
from agentgrpo.outputs import named_path
from agentgrpo.printed_commands import shipped_settings
from agentgrpo.run_folder import begun_with
from agentgrpo.settings import earlier_settings, names_of, verl_keys
from sql_agent.names import PRESETS, weights_of
from sql_agent.settings.flags import add_flags, flags_of
from sql_agent.settings.load import load_config
from sql_agent.settings.train import TrainConfig


def parse_train_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        description="Train a SQL agent by GRPO over agent-lightning, vLLM and verl, or its instructions by APO.",
        epilog="Every setting of a config file can be given as --set group.name=value; --dry-run shows them all.",
    )
    names = set(names_of(TrainConfig))
    groups = {name.rpartition(".")[0] for name in names}
    parser.settings = {name: name for name in sorted(names - groups)}
    parser.settings |= verl_keys(TrainConfig) | earlier_settings(TrainConfig)
    parser.add_argument("--config", type=named_path, help=f"YAML file with settings (see {shipped_settings()})")
    parser.add_set("optim.learning_rate=3e-5 trainer.steps=40")
    add_flags(parser, TrainConfig, only_named=True)
    parser.add_argument(
        "--reward",
        action="append",
        metavar="NAME[=WEIGHT]",
        help=f"a preset ({', '.join(PRESETS)}), your own function (FILE.py:NAME or module:NAME), judge or ranking; "
        "repeat to sum several",
    )
    parser.add_argument("--lora", action="store_true", help="train a LoRA adapter instead of all weights")
    parser.add_argument("--lora-rank", type=int, help="rank of the adapter (with --lora; default 16)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--ci", action="store_true", help="a short run: four steps of four tasks, one validation")
    size.add_argument("--ci-fast", action="store_true", help="the shortest run that touches everything: one step")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved settings and verl's, then stop")
    parser.add_argument("--debug", action="store_true", help="log at debug level")
    return parser.parse_args(argv)


CI_OVERRIDES = {
    "ci": [
        "trainer.resume=never",
        "trainer.steps=4",
        "data.train_batch_size=4",
        "data.val_limit=16",
        "trainer.val_every=4",
    ],
    "ci_fast": [
        "trainer.resume=never",
        "trainer.steps=1",
        "data.train_batch_size=4",
        "data.generate=32",
        "data.val_limit=8",
        "trainer.val_before_train=false",
        "trainer.val_every=0",
        "trainer.save_every=1",
    ],
}


def resolve(args: argparse.Namespace) -> TrainConfig:
    """Turn flags into settings; they override the file, and `--set` overrides them."""
    flags: list[str] = []
    for name, overrides in CI_OVERRIDES.items():
        flags += overrides if getattr(args, name) else []
    given = {flag.setting: getattr(args, flag.dest) for flag in flags_of(TrainConfig, only_named=True)}
    given |= {
        "env.type": args.env or ("agent" if args.agent else "text2sql" if args.database else None),
        "llm_proxy": args.llm_proxy or (True if args.agent else None),
        "lora.rank": (args.lora_rank or 16) if args.lora else args.lora_rank,
        "rollout.reward": weights_of(args.reward) if args.reward else None,
        "rollout.train_agents": args.train_agents.split(",") if args.train_agents else None,
    }
    # JSON is YAML: a path with a "#" or with only digits stays a text
    flags += [
        f"{setting}={json.dumps(value, default=str, ensure_ascii=False)}"
        for setting, value in given.items()
        if value is not None
    ]
    if args.lora_rank is not None and args.lora_rank < 1:
        raise UsageError(
            f"--lora-rank is {args.lora_rank}, expected 1 or more; leave it and --lora out to train all weights"
        )
    cfg = load_config(args.config, flags + args.overrides)
    if args.lora and not cfg.lora.rank:
        raise UsageError("--lora and lora.rank=0 contradict each other: 0 trains all weights; leave one of them out")
    return with_local_rows(cfg, begun_with(cfg.run_dir) if cfg.trainer.resume != "never" else ())
