"""Trains a SQL agent with GRPO: agent-lightning's store and proxy, vLLM, verl. `--help` shows the flags.
With `--algorithm apo` it rewrites the instructions of an agent whose model is served already (doc/guides/apo.md).

    agentgrpo train --ci-fast
    AGL_MANAGED_STORE=0 agentgrpo train --llm-proxy --model MODEL

The second command uses the store of `agl store --port 9999`; --external-store-address names another.
"""

import os
import sys

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import logging

from pydantic import ValidationError

from agentgrpo.checks import require
from agentgrpo.disk_errors import format_disk_error
from agentgrpo.passwords import masked
from agentgrpo.settings import describe_faults
from sql_agent.settings.train import TrainConfig
from sql_agent.source.run_context import TrainingFailedError
from sql_agent.startup.command import begin
from sql_agent.startup.flags import parse_train_args, resolve


def notes_of(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def main(argv: list[str] | None = None) -> int:
    args = parse_train_args(argv)
    logging.basicConfig(level=logging.DEBUG if args.debug else logging.WARNING)
    try:
        require(variables=os.environ)
        begin(resolve(args), dry_run=args.dry_run, debug=args.debug)
    except ValidationError as error:
        for words in describe_faults(error, TrainConfig):
            print(masked(f"config: {words}"), file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {masked(str(error))}", file=sys.stderr)
        return 2
    except (TrainingFailedError, OSError) as error:  # e.g. the store is gone, or the disk is full
        print("\n".join([f"error: {masked(format_disk_error(error))}", *notes_of(error)]), file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print("; ".join(["stopped", *notes_of(stop)]), file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    execute(main)
