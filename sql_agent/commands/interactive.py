"""Talk with a trained agent in the terminal: about a database, or about the tasks of any environment.

    agentgrpo interactive --model outputs/dbbench_greedy_grpo/adapter
    agentgrpo interactive --model MODEL --database my.sqlite
    agentgrpo interactive --model MODEL --env text2sql --database my.sqlite
    agentgrpo interactive --model MODEL --env FILE.py:NAME --tasks rows.jsonl
    agentgrpo interactive --model outputs/gsm8k_grpo/epoch_1

The command shows thoughts, tool calls and results as they happen. Questions follow one another in one conversation
until :new. :tasks lists the tasks of --tasks, or generated ones; :task N asks one, whose answer is judged. An adapter
of the local trainers names its environment; for other models, and for your own environment, give --env. :help lists
the commands, Ctrl-C stops a reply, Ctrl-D ends. doc/guides/evaluate.md shows a conversation.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgrpo.checks import require
from agentgrpo.commands import INTERRUPTED, interruptible
from agentgrpo.disk_errors import format_disk_error
from agentgrpo.flags import Parser
from agentgrpo.hub import ModelNotFoundError, may_be_id, model_folder
from sql_agent.local.model_files import base_folder
from sql_agent.local.start import load_libraries
from sql_agent.names import TINY_POLICY
from sql_agent.settings.flags import add_flags, message_formatter, read_flags
from sql_agent.settings.groups import DataConfig
from sql_agent.settings.local import AdapterConfig, InteractiveConfig
from sql_agent.tiny_policy.make import make_if_default
from sql_agent.trained_on import LearntError, OwnEnvironmentError, environment_flags, read_trained_on

if TYPE_CHECKING:
    from dbbench_adapter.datatypes import Task
    from sql_agent.environments.base import Environment
    from sql_agent.interactive.session import Chat, InteractiveEnv
    from sql_agent.interactive.transcript import Transcript

# This many tasks are generated if no file is given.
GENERATED = 20
LEARNT = "the model was trained on this task, so a right answer says nothing about new ones"


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(
        prog="agentgrpo interactive",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser, InteractiveConfig, hidden=("model.gradient_checkpointing",))
    args = parser.parse_args(argv)
    if args.model is not None and not may_be_id(args.model):
        _check_there(Path(args.model))
    if args.env is None and args.model is not None:
        try:
            trained_on = environment_flags(Path(args.model))
        except OwnEnvironmentError as error:
            parser.error(str(error))
        for flag, value in trained_on.items():
            if getattr(args, flag) is None:
                setattr(args, flag, value)
    cfg = read_flags(parser, InteractiveConfig, args)
    try:
        run(cfg)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {message_formatter(InteractiveConfig)(format_disk_error(error))}") from error
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _check_there(model: Path) -> None:
    """Check that a folder exists, before its record is asked for the environment; the small policy may be made yet.

    Raises:
        SystemExit: it does not.
    """
    if model.resolve() != TINY_POLICY:
        try:
            model_folder(model)
        except ModelNotFoundError as error:
            raise SystemExit(f"error: {error}") from None


def run(cfg: InteractiveConfig) -> None:
    if cfg.tasks == "gsm8k":
        os.environ.setdefault("HF_HUB_OFFLINE", "0")  # a user who names the hub's dataset may fetch it
    require(place=cfg.database if cfg.env == "text2sql" else None)
    make_if_default(cfg.model.model_path)
    require(policy=cfg.model.model_path)
    load_libraries()
    from rich.console import Console

    from sql_agent.environments.dbbench import DbBench
    from sql_agent.interactive.session import OneDatabase, Tasks
    from sql_agent.interactive.transcript import Transcript
    from sql_agent.local.tasks import entered

    show = Transcript(Console(highlight=False), max_new_tokens=cfg.max_tokens)
    databases = _databases(cfg, show) if cfg.env == "dbbench" else None
    with entered(cfg.environment) as environment:
        if databases is not None and isinstance(environment, DbBench):
            _converse(cfg, OneDatabase(environment, *databases), show)
        else:
            _converse(cfg, Tasks(environment, _tasks(cfg, environment)), show)


def _tasks(cfg: InteractiveConfig, environment: "Environment") -> "Sequence[Any]":
    """The tasks of the file; without one, held-out tasks that the environment makes, if it makes any."""
    source = (cfg.tasks or "generated").removeprefix("gsm8k:")
    if source == "generated" and cfg.env == "text2sql":
        return []
    if source == "generated" or (source, cfg.env) == ("gsm8k", "gsm8k"):
        file = None if source == "generated" else Path(source)
        return environment.load_split(DataConfig(train_file=file, generate=1, val_limit=GENERATED), cfg.seed).val
    return environment.read_tasks(Path(source))


def _databases(cfg: InteractiveConfig, show: "Transcript") -> "tuple[list[Task], Task]":
    """The available tasks, and the one whose tables come first."""
    if cfg.database is not None:
        from sql_agent.interactive.user_database import read_database

        found = read_database(Path(cfg.database))
        for words in found.left_out:
            show.note(f"{cfg.database}: {words}", "yellow")
        return [], found.task
    from dbbench_adapter.generator import generate_tasks
    from dbbench_adapter.tasks.load import load_tasks

    if cfg.tasks is None:
        tasks = generate_tasks(GENERATED, seed=cfg.seed, split="held_out")
    else:
        tasks = load_tasks(Path(cfg.tasks))
    if not tasks:
        raise ValueError(f"--tasks {cfg.tasks} holds no task; name a file with tasks")
    return tasks, tasks[0]


def _converse(cfg: InteractiveConfig, subject: "InteractiveEnv", show: "Transcript") -> None:
    with interruptible():
        _talk(cfg, subject, show)


def _talk(cfg: InteractiveConfig, subject: "InteractiveEnv", show: "Transcript") -> None:
    from sql_agent.interactive.session import Chat
    from sql_agent.local.datatypes import Sampling
    from sql_agent.local.start import start_policy
    from sql_agent.prompts.fit import choose_limit

    limit = choose_limit(base_folder(model_folder(cfg.model.model_path)), cfg.max_prompt_tokens, "--max-prompt-tokens")
    policy = start_policy(cfg.model, AdapterConfig(), tools=subject.tools, seed=cfg.seed)
    chat = Chat(policy, subject, cfg.limits, Sampling(cfg.temperature), show, limit)
    how = "greedy" if cfg.temperature == 0 else f"temperature {cfg.temperature:g}"
    show.note(f"{cfg.model.model_path} on {policy.device}, {how}, at most {cfg.max_tokens} tokens a reply", "dim")
    for line in chat.fitted(_some_tasks(subject)).describe():
        show.note(line, "dim" if line.startswith("first prompts") else "yellow")
    learnt = _learnt(cfg.model.model_path)
    show.note(":help lists the commands, Ctrl-C stops a reply, Ctrl-D ends", "dim")
    show.tables(subject.tables())
    try:
        while (text := _read(show)) is not None:
            if not _handle(text, chat, subject, show, learnt):
                break
    finally:  # Ctrl-C twice in one question ends here too
        chat.new()


def _learnt(model: str) -> "frozenset[str]":
    """The fingerprints of the tasks that the model has learnt, as far as its record can be read."""
    try:
        return frozenset(read_trained_on(model).learnt)
    except LearntError:
        return frozenset()


def _some_tasks(subject: "InteractiveEnv") -> "Sequence[Any]":
    """The tasks at hand, or else an empty question, whose prompt holds what every question's does."""
    if subject.tasks:
        return subject.tasks
    try:
        return [subject.own("")]
    except ValueError:
        return []


def _handle(text: str, chat: "Chat", subject: "InteractiveEnv", show: "Transcript", learnt: "frozenset[str]") -> bool:
    """Run the command or question in a line; return False if it ends the conversation.

    Args:
        learnt: fingerprints of the tasks that the model has learnt.
    """
    from sql_agent.interactive.session import read_line

    try:
        line = read_line(text, len(subject.tasks))
        match line.command:
            case ":quit":
                return False
            case ":help":
                show.commands()
            case ":new":
                chat.new()
                show.note("a new conversation", "dim")
            case ":tables":
                show.tables(tables := subject.tables())
                if not tables:
                    show.note("there are no tables to show")
            case ":tasks":
                show.tasks([(task.kind, subject.question(task)) for task in subject.tasks])
            case ":task":
                task = subject.tasks[int(line.rest) - 1]
                chat.new()
                subject.choose(task)
                show.tables(subject.tables())
                show.note(subject.question(task), "bold")
                if subject.prompt_source().fingerprint(task) in learnt:
                    show.note(LEARNT, "yellow")
                _ask(task, chat, show)
            case None if line.rest:
                _ask(subject.own(line.rest), chat, show)
    except ValueError as error:  # this also catches ChatTemplateError
        show.note(str(error), "yellow")
    return True


def _ask(task: Any, chat: "Chat", show: "Transcript") -> None:
    with _ctrl_c_stops(chat):
        show.ended(chat.ask(task))


@contextmanager
def _ctrl_c_stops(chat: "Chat") -> Iterator[None]:
    before = signal.signal(signal.SIGINT, lambda *_: chat.stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _read(show: "Transcript") -> str | None:
    while True:
        try:
            text = input("> ")
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print()
            show.note("Ctrl-D ends", "dim")
            continue
        if not sys.stdin.isatty():
            print(text)  # so a transcript contains the questions
        return text
