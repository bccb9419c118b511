"""Enters an environment for a local command, and chooses the tasks whose first prompts the policy can read.

Leaves out where tasks come from (`Environment.load_split`) and how many of them a command takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from core.commands import say
from dbbench_adapter.backends import BackendUnavailable
from sql_agent.datatypes import EnvironmentSettings
from sql_agent.environments.base import Environment, Split, make_environment
from sql_agent.local.start import load_conversation
from sql_agent.startup.data import fitting_tasks


@contextmanager
def entered(settings: EnvironmentSettings, *, backend_setting: str = "--backend") -> Iterator[Environment]:
    """Make, check and enter the environment that `settings` name, and make the files that it can make by itself.

    Args:
        backend_setting: the name of the setting that names the database, for error messages.
    Raises:
        ValueError: a setting does not fit, or something is missing; or a database does not answer, now or later.
    """
    try:
        environment = make_environment(settings)
        environment.check_episodes()
        environment.prepare(say)
        with environment:
            yield environment
    except BackendUnavailable as error:
        if settings.database is not None:
            raise ValueError(f"--database: {error}") from error
        raise ValueError(f"{backend_setting} {settings.backend.split('@')[-1]}: {error}") from error


def check_judged(environment: Environment, name: str) -> None:
    """Check that the environment itself says what a rollout is worth.

    Args:
        name: the environment's name, for the message.
    Raises:
        ValueError: it does not.
    """
    if not environment.judged:
        raise ValueError(
            f"nobody can tell right from wrong in environment {name}, and local training has no reward model; give "
            "the class a `get_reward` or a `judge` (doc/own_environment.md), or train with `python "
            "sql_agent/train_sql_agent.py` and --reward-model-url or --reward FILE.py:NAME"
        )


def fitting(split: Split, environment: Environment, model_path: str, max_prompt_tokens: int) -> Split:
    """Leave out tasks whose first prompt is too long and cannot be shortened, and count them.

    Args:
        max_prompt_tokens: limit of a first prompt; the model's positions, less one for a reply, are a limit too.
    Raises:
        ValueError: nothing is left to train on, or nothing of the held-out tasks.
    """
    from transformers import AutoConfig

    from core.hub import model_folder
    from sql_agent.local.model_files import base_folder

    _, conversation = load_conversation(model_path, environment.tools)
    config = AutoConfig.from_pretrained(base_folder(model_folder(model_path)), trust_remote_code=False)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    limit = min(max_prompt_tokens, positions - 1) if positions else max_prompt_tokens

    def prompt_tokens(task: object) -> int:
        return len(conversation.first_prompt(environment.messages(task)))

    train, val = (fitting_tasks(tasks, environment, prompt_tokens, limit) for tasks in (split.train, split.val))
    for kept, before, name in ((train, split.train, "training"), (val, split.val, "held-out")):
        if before and not kept:
            remedy = "raise --max-prompt-tokens" if limit == max_prompt_tokens else "take a model with more positions"
            raise ValueError(
                f"no {name} task has a first prompt of at most {limit} tokens, the shortest has "
                f"{min(map(prompt_tokens, before))}; {remedy}"
            )
    if not train:
        raise ValueError(f"there is no task to train on; left out: {dict(split.left_out) or 'nothing'}; give others")
    return replace(split, train=train, val=val, too_long=len(split.train) + len(split.val) - len(train) - len(val))
