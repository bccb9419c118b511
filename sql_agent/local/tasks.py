"""Enters an environment for a local command, fits its tasks to the policy, and names the user's own files.

Leaves out where tasks come from (`Taskset.load_split`) and how many of them a command takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgrpo.hub import model_folder
from dbbench_adapter.engines import BackendUnavailable
from sql_agent.environments.base import Environment, Split, make_environment
from sql_agent.environments.user_class import named
from sql_agent.local.model_files import base_folder
from sql_agent.local.start import load_conversation
from sql_agent.names import ENVIRONMENTS, functions
from sql_agent.prompts.fit import Fitted, choose_limit, fit_split
from sql_agent.reward_functions.load import load_functions
from sql_agent.settings.groups import EnvironmentSettings
from sql_agent.settings.local import LocalGrpoConfig, RewardSettings


@dataclass(frozen=True)
class RunTasks:
    """The tasks of a run."""

    train: Sequence[Any]
    measured: Sequence[Any]
    """Held-out tasks that the run plays."""
    held_out: Sequence[Any]
    """All that were held out, of which no run learns any."""
    described: Sequence[str] = ()
    """Lines about them."""


@contextmanager
def entered(settings: EnvironmentSettings, *, backend_setting: str = "--backend") -> Iterator[Environment]:
    """Make, check and enter the environment that `settings` name.

    Args:
        backend_setting: the name of the setting that names the database, for error messages.
    Raises:
        ValueError: a setting does not fit, or something is missing; or a database does not answer, now or later.
    """
    try:
        environment = make_environment(settings)
        environment.check_episodes()
        with environment:
            yield environment
    except BackendUnavailable as error:
        if settings.database is not None:
            raise ValueError(f"--database: {error}") from error
        raise ValueError(f"{backend_setting} {settings.backend.split('@')[-1]}: {error}") from error


def check_judged(environment: Environment, cfg: LocalGrpoConfig) -> None:
    """Check that somebody says what a rollout is worth.

    Raises:
        ValueError: nobody does.
    """
    if not environment.judged and cfg.reward_model.url is None and not functions(cfg.rollout.weights):
        raise ValueError(
            f"nobody can tell right from wrong in environment {cfg.env_type}; give the class a `get_reward` or a "
            "`judge` (doc/guides/environment.md), or a function of its record, --reward FILE.py:NAME, or a reward "
            "model, --reward-model-url"
        )


def describe_user_files(cfg: RewardSettings, environment: str, run_dir: Path) -> dict[str, str]:
    """The user's own files, each with its sha256, by what a run uses them for.

    Raises:
        ValueError: see `named` and `load_functions`.
    """
    used = {"env": named(environment)[1]} if environment not in ENVIRONMENTS else {}
    used |= {f"reward {each.label}": each for each in load_functions(cfg.rollout, cfg.llm_judge, run_dir)}
    return {use: f"{found.file.name} with sha256 {found.sha256}" for use, found in used.items()}


def fit_to_context(
    split: Split, environment: Environment, model_path: str, max_prompt_tokens: int | None
) -> tuple[Split, Fitted]:
    """Fit the tasks to the model's context (`fit_split`).

    Args:
        max_prompt_tokens: limit of a first prompt; None: what the context leaves beside a response.
    Raises:
        ValueError: nothing is left to train on, or nothing of the held-out tasks.
    """
    _, conversation = load_conversation(model_path, environment.tools)
    limit = choose_limit(base_folder(model_folder(model_path)), max_prompt_tokens, "--max-prompt-tokens")

    def prompt_tokens(task: object) -> int:
        return len(conversation.first_prompt(environment.messages(task)))

    return fit_split(split, environment, prompt_tokens, limit)
