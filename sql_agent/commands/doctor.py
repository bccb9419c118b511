"""Checks whether a run can start on this machine: `agentgrpo doctor [--model MODEL] [--database PATH]`

Each check prints one line; after a problem comes the line that mends it. The exit status is 0 if a run can start (there
may be warnings) and 1 if it cannot. The command works where packages are broken. With a model, and the run's settings
where they are not the defaults (`--config`, `--set`), it says what memory the run takes. It does not check disk space
and GPU drivers. The checks are in the table `agentgrpo.checks.CHECKS`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from agentgrpo.checks import Finding, Problem, examine, show
from agentgrpo.flags import Parser
from agentgrpo.hub_rows import named_rows
from agentgrpo.machine import port_number
from agentgrpo.outputs import named_path
from dbbench_adapter.engines import named_database
from sql_agent.startup.machine import STORE_PORT, this_machine

# Those of `dbbench_adapter.protocols` and `sql_agent.settings`, which cannot be imported if packages are broken.
PROTOCOLS = ("fc", "text", "lab")
SCHEMA_FORMS = ("compact", "ddl", "linked", "qualified")


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo doctor", description="Check whether a run can start on this machine.")
    parser.add_argument(
        "--model",
        type=named_path,
        help="model to check: a folder, or the id (ORG/NAME) of one in the Hugging Face cache",
    )
    parser.add_argument(
        "--protocol",
        choices=PROTOCOLS,
        default="fc",
        help="protocol of the agent (agent.protocol); default fc",
    )
    parser.add_argument(
        "--port",
        type=port_number,
        help=f"port for an external store, e.g. {STORE_PORT}; it has to be free",
    )
    parser.add_argument(
        "--database",
        type=named_database,
        help="your own SQLite or DuckDB file, a folder with DB_ID/DB_ID.sqlite, or mysql:// or "
        "postgresql://user:password@host:port/database",
    )
    parser.add_argument(
        "--env", help="environment, as in training: dbbench (default), your own, FILE.py:NAME, or another name"
    )
    parser.add_argument(
        "--agent", metavar="FILE.py:NAME", help="your own agent, as in training; --train-file has its rows"
    )
    parser.add_argument(
        "--train-file", "--tasks", type=named_rows, help="tasks to train on; with --database their references are run"
    )
    parser.add_argument("--val-file", type=named_rows, help="held-out tasks, checked in the same way")
    parser.add_argument(
        "--columns", metavar="question=COLUMN,...", help="with --database: your names of the columns, as in training"
    )
    parser.add_argument(
        "--schema-form",
        choices=SCHEMA_FORMS,
        default=SCHEMA_FORMS[0],
        help=f"with --database: how prompts show it, as in training (default {SCHEMA_FORMS[0]})",
    )
    parser.add_argument(
        "--max-prompt-tokens",
        type=int,
        metavar="N",
        help="with --model, --database and tasks: the longest first prompt; default: what the model's context leaves",
    )
    parser.add_argument("--config", type=named_path, help="with --model: settings of the run, as in training")
    parser.add_set("cluster.workers_per_node=2")
    args = parser.parse_args(argv)
    if (args.config or args.overrides) and not args.model:
        parser.error("--config and --set need --model, the model whose memory they change")
    if args.val_file and not args.train_file:
        parser.error("--val-file needs --train-file, the tasks to train on")
    if args.max_prompt_tokens is not None and args.max_prompt_tokens < 1:
        parser.error(f"--max-prompt-tokens is {args.max_prompt_tokens}; it has to be 1 or more")
    return show(make_checks(args))


def make_checks(args: argparse.Namespace) -> list[tuple[str, Finding]]:
    """Make the checks of what a run with these flags would use; prompts where model and database are sound."""
    port = STORE_PORT if args.port is None else args.port
    model = {"model": args.model, "protocol": args.protocol} if args.model else {}
    found = examine(**this_machine(), port=port, port_asked=args.port is not None, **model)
    if args.model and not any(each.blocks for name, each in found if name in ("packages", "model")):
        found += look_at_training(args.model, args.config, args.overrides)
    files = [file for file in (args.train_file, args.val_file) if file is not None]
    if args.database and args.env in (None, "text2sql"):
        splits = args.train_file is not None and args.val_file is None
        for file in files or [None]:
            found += examine(database=args.database, tasks=file, columns=args.columns, splits=splits)
        if args.model and not any(each.blocks for name, each in found if name in ("model", "database")):
            prompts = {"model": args.model, "database": args.database, "max_prompt_tokens": args.max_prompt_tokens}
            for file in files:
                found += examine(tasks=file, columns=args.columns, schema_form=args.schema_form, **prompts)
    elif args.env or args.agent or args.train_file:
        env = args.env or ("agent" if args.agent else "dbbench")
        rest = {"protocol": args.protocol, "database": args.database, "agent": args.agent}
        found += examine(env=env, tasks_of=rest, train_file=args.train_file, val_file=args.val_file)
    return found


def look_at_training(model: Path, config: Path | None, overrides: list[str]) -> list[tuple[str, Finding]]:
    """Whether a run with these settings trains such models, and what memory it takes, on the GPUs if there are any,
    else on the CPU."""
    from agentgrpo.hub import model_folder
    from sql_agent.settings.load import load_config
    from sql_agent.startup.preflight import gpus_of, training_of, use_cpu

    try:
        cfg = load_config(config, overrides)
        cpu = use_cpu(cfg.engine, cfg.cluster)
    except ValueError as error:
        what, _, remedy = str(error).partition("; ")
        return [
            ("settings", Finding(" ".join(overrides), (Problem(what, remedy or "doc/reference/settings.md has them"),)))
        ]
    cfg = cfg.model_copy(update={"model": model_folder(model, fetch=False)})
    return examine(
        trained=cfg.model, **training_of(cfg.engine, cfg.data, cpu=cpu), memory_of=cfg, gpus=gpus_of(cpu=cpu)
    )
