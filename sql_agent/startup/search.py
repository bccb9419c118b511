"""The start of a search for better instructions: what is cheap to check is checked, tasks are chosen, runners start."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import Any

from agentgrpo.checks import UsageError
from agentgrpo.printed_commands import install_extra
from agentgrpo.processes import ends_in_order, own_run
from agentgrpo.run_folder import begin, start_of
from dbbench_adapter.splits import draw_by_kind
from sql_agent.environments.base import Split, Taskset
from sql_agent.settings.groups import DataConfig
from sql_agent.settings.main_job import ApoConfig
from sql_agent.settings.train import TrainConfig
from sql_agent.startup.data import describe_kinds, drawn, kinds_of
from sql_agent.startup.launch import start_agl_trainer
from sql_agent.startup.resume import archive_files, hash_user_files
from sql_agent.trained_on import check_not_learnt

OTHER_TASKS = (
    "Instructions are chosen by success, on tasks that the policy has not learnt: give others with --train-file and "
    "--val-file, or serve the model as it was before"
)


def check_search(apo: ApoConfig, base_url: str, model: str, environment: Taskset) -> Path | None:
    """
    Args:
        base_url: where the policy is served under the name `model`.
    Returns:
        The policy's folder, if its server names it and it is on this machine.
    Raises:
        ValueError, SystemExit: instructions cannot be replaced, poml is missing, or a model is not served; the message
        says what to do.
    """
    from sql_agent.apo.lit_agent import POLICY_KEY
    from sql_agent.model_servers.endpoint import check_endpoint

    environment.with_instructions(environment.instructions)
    served = check_endpoint(base_url, model, os.environ.get(POLICY_KEY) or "-")
    if os.environ.get("AGL_CURRENT_ROLE") == "runner":
        return served
    if importlib.util.find_spec("poml") is None:
        raise UsageError(
            "agent-lightning's APO needs the package poml, which is not installed; install the extra apo: "
            f"`{install_extra('apo')}`"
        )
    from sql_agent.apo.search import OPTIMISER_KEY

    flags = ("--apo-base-url", "--apo-model")
    for writer in {str(apo.gradient_model), str(apo.apply_edit_model or apo.gradient_model)}:
        check_endpoint(str(apo.base_url), writer, os.environ.get(OPTIMISER_KEY) or "-", flags)
    return served


def optimise(cfg: TrainConfig, environment: Taskset, served: Path | None, *, debug: bool) -> None:
    """Run in the role that `AGL_CURRENT_ROLE` names: `algorithm`, `runner`, or both in one command.

    Args:
        served: the policy's folder, if it is known.
    """
    from sql_agent.apo.lit_agent import InstructedLitAgent

    with ends_in_order(), own_run() as (run_id, _):
        runs = os.environ.get("AGL_CURRENT_ROLE") == "runner"
        search = None if runs else make_search(cfg, environment, run_id, served)
        start_agl_trainer(cfg.rollout, cfg.store, cfg.run_dir / "logs", search, InstructedLitAgent(cfg), debug=debug)
        if search is not None and not search.finished:
            raise KeyboardInterrupt  # again, because agent-lightning's trainer swallows it


def make_search(cfg: TrainConfig, environment: Taskset, run_id: str, served: Path | None) -> Any:
    from sql_agent.apo.search import InstructionsSearch, SearchTasks

    selection, split, held_out = choose_tasks(cfg.data, cfg.seed, cfg.apo.selection_tasks, environment)
    notes = check_not_learnt(served, environment, [*selection, *split.val], OTHER_TASKS) if served else []
    lists = ([task.to_dict() for task in tasks] for tasks in (split.train, selection, split.val))
    aside = archive_files(cfg.run_dir)
    if aside is not None:
        print(f"files of an earlier start are in {aside}")
    start = start_of("train", run_id=run_id, tasks=kinds_of(split), own_files=hash_user_files(cfg))
    begin(cfg.run_dir, cfg.model_dump(mode="json"), start, resumed=False)
    policy = f"{cfg.model} at {cfg.base_url}"
    print("\n".join([*describe_search(cfg.apo, policy, len(selection), split, held_out), *notes]))
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {line}", flush=True)

    return InstructionsSearch(
        cfg.apo, cfg.rollout, cfg.run_dir, cfg.seed, environment, SearchTasks(*lists), run_id, say
    )


def choose_tasks(data: DataConfig, seed: int, wanted: int, environment: Taskset) -> tuple[list[Any], Split, int]:
    """Choose the tasks of a search.

    Args:
        wanted: number of selection tasks.
    Returns:
        Selection tasks, drawn evenly by kind from those to train on; the split, without them; and the number of
        held-out tasks that those of the split were drawn from.
    Raises:
        ValueError: a file does not fit, or has too few tasks.
    """
    whole = environment.load_split(data, seed)
    if len(whole.train) <= wanted or not whole.val:
        raise UsageError(
            f"{len(whole.train)} tasks to train on and {len(whole.val)} held-out ones are too few: "
            f"apo.selection_tasks={wanted} are taken from the first, and critiques need others; lower it, or give more "
            "tasks"
        )
    selection = draw_by_kind(whole.train, wanted, seed)
    taken = {task.id for task in selection}
    split = drawn(whole, data.val_limit, seed)
    gradient = [task for task in whole.train if task.id not in taken]
    return selection, Split(gradient, split.val, whole.too_long, whole.left_out), len(whole.val)


def describe_search(apo: ApoConfig, policy: str, selection: int, split: Split, held_out: int) -> list[str]:
    n = len(split.val)
    edits = apo.beam_width * apo.branch_factor
    rollouts = (
        2 * n
        + selection
        + apo.beam_rounds
        * (edits * apo.gradient_batch_size + (apo.beam_width + edits) * min(apo.val_batch_size, selection) + selection)
    )
    return [
        *describe_kinds(split, held_out),
        f"selection tasks, apart from these: {selection}",
        f"APO: {apo.beam_rounds} rounds, each of {edits} edits at most; at most {apo.max_calls} critiques and edits by "
        f"{apo.gradient_model} at {apo.base_url}, and {rollouts} rollouts of {policy}",
    ]
