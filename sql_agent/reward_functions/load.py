"""Reward functions are found before a run, and those that cannot be called with a record are refused. Every error names
the file, the line if there is one, and what to do.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

from agentgrpo.user_files import SourceFile, UserFileError, load_object, place
from sql_agent.names import JUDGE, RANKING, functions, label
from sql_agent.reward_functions.datatypes import LoadedReward
from sql_agent.reward_functions.judge import judge_function
from sql_agent.reward_functions.ranking import ranking_function
from sql_agent.settings.groups import JudgeConfig
from sql_agent.settings.main_job import RolloutConfig


def load_functions(rollout: RolloutConfig, judge: JudgeConfig, run_dir: Path) -> list[LoadedReward]:
    """Load the functions that `rollout.reward` names beside presets, in its order.

    Args:
        run_dir: the run's folder, where the LLM as judge keeps its scores.
    Raises:
        ValueError: a function cannot be imported, or does not take one argument; the judge's rubric cannot be read.
    """
    return [
        judge_function(judge, run_dir)
        if name == JUDGE
        else ranking_function(judge)
        if name == RANKING
        else replace(load_function(name, rollout.reward_timeout_s), on_error=rollout.reward_on_error)
        for name in functions(rollout.weights)
    ]


def judges_of(rollout: RolloutConfig, judge: JudgeConfig) -> dict[str, JudgeConfig]:
    """What an LLM judges, by the checks of a start that ask it (`agentgrpo.checks`)."""
    return {name: judge for name in (JUDGE, RANKING) if name in rollout.weights}


def load_function(name: str, timeout_s: float) -> LoadedReward:
    """
    Args:
        name: FILE.py:NAME or module:NAME.
        timeout_s: limit of one call.
    Raises:
        ValueError: see `load_functions`.
    """
    try:
        function, source = load_object(name)
        _check_call(function, label(name), source)
    except UserFileError as error:
        raise ValueError(f"--reward {name}: {error}") from None
    return LoadedReward(label(name), function, source.file, source.sha256, timeout_s)


def _check_call(function: object, name: str, source: SourceFile) -> None:
    """Raises UserFileError: the function cannot be called with one argument."""
    if not callable(function) or inspect.isclass(function):
        kind = "a class" if inspect.isclass(function) else f"a value ({type(function).__name__})"
        raise UserFileError(f"{name} in {source.file} is {kind}, expected a function of the rollout's record")
    try:
        signature = inspect.signature(function)
    except ValueError:  # the function is not written in Python
        return
    try:
        signature.bind(object())
        fits = not {"prompts", "completions"} & set(signature.parameters)  # TRL's form, which gets a whole batch
    except TypeError:
        fits = False
    if not fits:
        raise UserFileError(
            f"{place(function)}: {name}{signature} cannot be called with the rollout's record alone; write "
            f"`def {name}(record):`, and give other parameters a default"
        )
