"""Chooses the tasks of a run, and describes before its start what it will do: tasks, steps, memory, files.

Leaves out memory that depends on the rows (activations, logits) and on vLLM; doc/benchmarks.md has measurements.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.nearest import did_you_mean
from sql_agent.config import TrainConfig
from sql_agent.environments.base import Environment, Split, make_environment
from sql_agent.model_check import TINY_POLICY, template_of_run
from sql_agent.startup.data import PromptTokenizer, describe_kinds, drawn, fitting
from sql_agent.startup.preflight import protocol_of

TRAINED_BYTES = 16
"""Bytes of a trained weight in memory: the weight, its gradient and AdamW's two moments, each in float32."""
SAVED_BYTES = 12
"""Bytes of a trained weight in verl's checkpoint: the weight and AdamW's two moments."""


@dataclass(frozen=True)
class ChosenTasks:
    environment: Environment
    tokenizer: PromptTokenizer
    template: str
    split: Split
    """Tasks that fit, and the drawn held-out ones."""
    held_out: int
    """Number of tasks that the held-out ones were drawn from."""

    def describe(self) -> list[str]:
        return describe_kinds(self.split, self.held_out)


def choose_tasks(cfg: TrainConfig) -> ChosenTasks:
    """Choose the tasks of a run.

    Raises:
        ValueError: a file does not fit, or no task does.
    """
    assert cfg.model is not None
    environment = make_environment(cfg.environment)
    template, _ = template_of_run(cfg.model, protocol_of(cfg))
    tokenizer = PromptTokenizer(cfg.model, environment, template)
    found = environment.load_split(cfg.data, cfg.seed)
    whole = fitting(found, environment, tokenizer.prompt_tokens, cfg.data.max_prompt_tokens)
    split = drawn(whole, cfg.data.val_limit, cfg.seed)
    return ChosenTasks(environment, tokenizer, template, split, len(whole.val))


def describe_plan(cfg: TrainConfig, *, cpu: bool) -> list[str]:
    """Describe what a run will do, for `--dry-run`; a model that is not on this machine is not fetched for it."""
    absent = cfg.model not in (None, TINY_POLICY) and not cfg.model.is_dir()
    fetched = f"; the run fetches {cfg.model} from the hub{did_you_mean(cfg.model)}" if cfg.model and absent else ""
    lines, weights = [f"tasks and prompts: not known before the model is on this machine{fetched}"], None
    if not make_environment(cfg.environment).prepared:
        lines = ["tasks and prompts: not known before the run has made its database"]
    elif cfg.model is not None and (cfg.model / "tokenizer.json").is_file():
        tasks, weights = choose_tasks(cfg), _count_weights(cfg.model)
        lines = tasks.describe() + _prompts(cfg, tasks)
    group, batch = cfg.rollout.group_size, cfg.data.train_batch_size
    updates = batch // (cfg.optim.mini_batch_size or batch)
    redraws = (
        f" (a group without spread gives way at most {_times(cfg.rollout.redraws)})" if cfg.rollout.redraws else ""
    )
    lines.append(
        f"train steps: {cfg.trainer.steps}, each of {batch} tasks x {group} rollouts{redraws}; updates in a step: "
        f"{updates}, each of {batch * group // updates} rollouts, at most {cfg.micro_batch_tokens(cpu=cpu):,} "
        "tokens in one pass"
    )
    every = f"every {cfg.trainer.val_every} steps and at the end" if cfg.trainer.val_every else "never"
    lines.append(f"validation: {every}{', and before' if cfg.trainer.val_before_train else ''}")
    if weights is not None:
        lines += _sizes(cfg, weights)
    lines.append(
        f"written to {cfg.run_dir}: config.yaml, run.json, metrics.jsonl, trajectories/, checkpoints/, logs/, data/"
    )
    return lines


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _prompts(cfg: TrainConfig, tasks: ChosenTasks) -> list[str]:
    if cfg.env.agent is not None:
        return ["first prompts: your agent writes them"]
    lengths = [tasks.tokenizer.prompt_tokens(task) for task in [*tasks.split.train, *tasks.split.val]]
    return [
        f"first prompts: {min(lengths)} to {max(lengths)} tokens, median {statistics.median(lengths):.0f} "
        f"(data.max_prompt_tokens={cfg.data.max_prompt_tokens})"
    ]


def _sizes(cfg: TrainConfig, weights: int) -> list[str]:
    if cfg.lora.rank:
        return [f"the policy: {weights:,} weights; an adapter of rank {cfg.lora.rank} is trained"]
    trained, saved = (each * weights / 2**30 for each in (TRAINED_BYTES, SAVED_BYTES))
    return [
        f"the policy: {weights:,} weights, all trained; in training {trained:.2f} GiB with gradients and AdamW's "
        f"moments, activations and vLLM beside it; a checkpoint has {saved:.2f} GiB and the model's folder; at most "
        f"{cfg.trainer.keep_checkpoints + 1} are there at once"
    ]


def _count_weights(model: Path) -> int | None:
    """Return the number of weights in a folder; None if it has no safetensors."""
    from safetensors import safe_open

    def numbers(file: Path) -> int:
        with safe_open(file, framework="numpy") as tensors:
            shapes: list[Any] = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
        return sum(math.prod(shape) for shape in shapes)

    files = sorted(model.glob("*.safetensors"))
    return sum(map(numbers, files)) if files else None
