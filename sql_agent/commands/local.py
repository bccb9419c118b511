"""Train a model by GRPO on any environment, in this process: your own database, your own class, or one that is here.

    agentgrpo local --model MODEL --database FILE.sqlite --train-file train.json
    agentgrpo local --model MODEL --env FILE.py:NAME --train-file rows.jsonl
    agentgrpo local --model models/tiny-sql --env dbbench --num-tasks 64

Each epoch plays --group-size episodes of every task, --batch-size tasks side by side, and updates a LoRA adapter after
each batch. No server is started. --eval-tasks held-out tasks are played before training and after each epoch. The
command writes epoch_N/ (adapter and tokenizer), metrics.jsonl, trajectories.jsonl and checkpoints/ into --run-dir.
doc/local_rl.md explains it.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

from agentgrpo.checks import require
from agentgrpo.commands import say
from agentgrpo.flags import Parser
from agentgrpo.printed_commands import agentgrpo_command
from agentgrpo.processes import ends_in_order
from sql_agent.local.start import failures_in_words, load_libraries
from sql_agent.names import weights_of
from sql_agent.settings.flags import add_flags, read_flags
from sql_agent.settings.local import LocalGrpoConfig
from sql_agent.tiny_policy.make import make_if_default

FREE_ON_RESUME = (
    *("run_dir", "save_every", "reward_timeout_s", "max_lost_fraction"),
    *(f"reward_model.{name}" for name in ("url", "timeout_s", "give_up_s")),
    *(f"llm_judge.{name}" for name in ("url", "timeout_s", "attempts", "concurrency", "max_calls")),
)


def parse(argv: Sequence[str] | None = None) -> tuple[LocalGrpoConfig, bool]:
    """Return the settings, and whether the run is to go on."""
    parser = Parser(
        prog="agentgrpo local",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser, LocalGrpoConfig, hidden=("reward",))
    parser.add_argument(
        "--reward",
        action="append",
        metavar="NAME[=WEIGHT]",
        help="a preset (agentbench, agent_peft, rllm), a function of yours (FILE.py:NAME or module:NAME), or judge; "
        "several are summed (default agentbench)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --run-dir from its last checkpoint"
    )
    args = parser.parse_args(argv)
    try:
        args.reward = weights_of(args.reward) if args.reward else None
    except ValueError as error:
        parser.error(str(error))
    return read_flags(parser, LocalGrpoConfig, args), args.resume


def main(argv: Sequence[str] | None = None) -> None:
    cfg, resumed = parse(argv)
    with failures_in_words(f"the same command with --resume goes on from the last checkpoint in {cfg.run_dir}"):
        make_if_default(cfg.model.model_path)
        for path in filter(None, (cfg.model.model_path, cfg.reference_model_path)):
            require(policy=path)
        require(scorer=cfg.reward_model, judge=cfg.llm_judge)
        load_libraries()
        with ends_in_order():
            run(cfg, resumed=resumed)


def run(cfg: LocalGrpoConfig, *, resumed: bool) -> None:
    from agentgrpo.run_folder import claim
    from dbbench_adapter.splits import draw_by_kind
    from sql_agent.environments.named import named
    from sql_agent.local.batch_grpo import BatchGrpo
    from sql_agent.local.run_folder import RunFolder
    from sql_agent.local.tasks import check_judged, entered, fitted
    from sql_agent.local.trainer import start_trainer
    from sql_agent.names import ENVIRONMENTS
    from sql_agent.reward_functions.load import load_functions
    from sql_agent.startup.data import describe_kinds
    from sql_agent.trained_on import SAME_SPLIT, check_not_learnt, trained_by

    own_files = {}
    if cfg.env_type not in ENVIRONMENTS:
        source = named(cfg.env_type)[1]
        own_files["env"] = f"{source.file.name} with sha256 {source.sha256}"
    for function in load_functions(cfg.rollout, cfg.llm_judge, cfg.run_dir):
        own_files[f"reward {function.label}"] = f"{function.file.name} with sha256 {function.sha256}"
    folder = RunFolder(cfg.run_dir, cfg, resumed=resumed, free=FREE_ON_RESUME, own_files=own_files)
    with entered(cfg.environment) as environment, claim(cfg.run_dir):
        check_judged(environment, cfg)
        found = environment.load_split(cfg.data, cfg.seed)
        measured = found if cfg.eval_tasks else replace(found, val=[])
        whole, prompts = fitted(measured, environment, cfg.model.model_path, cfg.max_prompt_tokens)
        split = replace(
            whole,
            train=draw_by_kind(whole.train, cfg.num_tasks, cfg.seed),
            val=draw_by_kind(whole.val, cfg.eval_tasks, cfg.seed),
        )
        model = cfg.model.model_path
        opening = [*describe_kinds(split, len(whole.val)), *prompts.describe()]
        opening += check_not_learnt(model, environment, split.val, SAME_SPLIT)
        folder.trained_on = trained_by(
            "agentgrpo local", model, environment, cfg.environment, cfg.data, split.train, found.val
        )
        recipe = BatchGrpo(cfg, split.train, split.val)
        start_trainer(cfg, recipe, environment, folder, resumed=resumed, opening="\n".join(opening)).train()
    say(f"next: {next_command(cfg)}")


def next_command(cfg: LocalGrpoConfig) -> str:
    """Return the command that talks with the trained agent about the same environment."""
    given = {
        "model": cfg.run_dir / f"epoch_{cfg.num_epochs}",
        "env": cfg.env_type,
        "database": cfg.database,
        "tasks": cfg.val_file or cfg.train_file,
        "protocol": cfg.protocol if cfg.protocol != "fc" else None,
    }
    flags = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    return agentgrpo_command("interactive", *flags)
