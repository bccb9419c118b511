"""Train an agent with a calculator on word problems by GRPO, in this process.

    python scripts/train_gsm8k_agent.py --model_path MODEL --dataset gsm8k --group_size 4
    python scripts/train_gsm8k_agent.py --model_path models/tiny-sql --dataset generated --max_samples 64

Each epoch plays --group_size episodes of every problem, --batch_size problems side by side, and updates a LoRA adapter
after each batch. Reward: 1 for the right number after ####, else 0. --dataset is gsm8k (from the hub or its cache), a
JSONL or parquet FILE of the same form, or generated (no network). The command writes epoch_N/ (adapter and tokenizer),
metrics.jsonl, trajectories.jsonl and checkpoints/ into --output_dir. doc/gsm8k.md explains it.
"""

import os
import sys

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # run as a script

from core.commands import execute, say, starting

if __name__ == "__main__":
    starting()

import argparse
import shlex
from collections.abc import Sequence

from core.processes import ends_in_order
from sql_agent.local.config import Gsm8kGrpoConfig
from sql_agent.local.flags import add_flags, read_flags
from sql_agent.local.model_files import check_model
from sql_agent.local.start import failures_in_words, load_libraries

FREE_ON_RESUME = ("output_dir", "save_every")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python scripts/train_gsm8k_agent.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser, Gsm8kGrpoConfig, hidden=("name", "scale", "aggregation", "max_tokens"))
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --output_dir from its last checkpoint"
    )
    args = parser.parse_args(argv)
    cfg = read_flags(parser, Gsm8kGrpoConfig, args)
    with failures_in_words(f"the same command with --resume goes on from the last checkpoint in {cfg.run_dir}"):
        if cfg.source == "gsm8k":
            os.environ.setdefault("HF_HUB_OFFLINE", "0")  # a user who names the hub's dataset may fetch it
        for path in filter(None, (cfg.model.model_path, cfg.reference_model_path)):
            check_model(path)
        load_libraries()
        with ends_in_order():
            run(cfg, resumed=args.resume)


def run(cfg: Gsm8kGrpoConfig, *, resumed: bool) -> None:
    from examples.gsm8k.problems import as_tasks, load_problems
    from sql_agent.datatypes import EnvironmentSettings
    from sql_agent.environments.base import make_environment
    from sql_agent.local.gsm8k_grpo import Gsm8kGrpo
    from sql_agent.local.run_folder import RunFolder
    from sql_agent.local.trainer import start_trainer

    folder = RunFolder(cfg.run_dir, cfg, resumed=resumed, free=FREE_ON_RESUME)
    problems = load_problems(cfg.source, limit=cfg.max_samples, seed=cfg.seed)
    held_out = load_problems(cfg.source, split="test", limit=cfg.eval_samples, seed=1) if cfg.eval_samples else []
    recipe = Gsm8kGrpo(cfg, as_tasks(problems), as_tasks(held_out))
    environment = make_environment(EnvironmentSettings("gsm8k"))
    opening = f"{len(problems)} problems of {cfg.dataset}, {len(held_out)} held out"
    start_trainer(cfg, recipe, environment, folder, resumed=resumed, opening=opening).train()
    model = shlex.quote(f"{cfg.run_dir}/epoch_{cfg.num_epochs}")
    say(f"next: python scripts/test_interactive.py --task gsm8k --model_path {model}")


if __name__ == "__main__":
    execute(main)
