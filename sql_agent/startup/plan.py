"""Chooses the tasks of a run, and describes before its start what it will do: tasks, steps, memory, files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from agentgrpo.checks import UsageError, require
from agentgrpo.durations import format_time
from agentgrpo.outputs import DiskNeed, describe_disk, folder_bytes
from agentgrpo.spelling import did_you_mean
from sql_agent.environments.base import Environment, Split, Taskset
from sql_agent.learning_rates import usual_learning_rate
from sql_agent.model_check import template_of_run
from sql_agent.names import TINY_POLICY
from sql_agent.prompts.fit import Fitted, choose_limit, fit_split
from sql_agent.prompts.tokenizer import PromptTokenizer
from sql_agent.settings.groups import UNKNOWN_PROMPT_TOKENS, DataConfig
from sql_agent.settings.main_job import LoraConfig, OptimConfig, TrainerConfig
from sql_agent.settings.train import TrainConfig
from sql_agent.startup.data import describe_kinds, drawn, few_held_out
from sql_agent.startup.memory_check import Gpu, check_run_memory
from sql_agent.startup.pace import Work, expected, remembered
from sql_agent.startup.preflight import protocol_of, training_of
from sql_agent.step_times import times_due, whole_run
from sql_agent.trained_on import SAME_SPLIT, TrainedOn, check_not_learnt, trained_by

# Bytes of a trained weight in verl's checkpoint: the weight and AdamW's two moments.
SAVED_BYTES = 12
# Characters of a token in a trajectory's line, about.
TOKEN_BYTES = 4


@dataclass(frozen=True)
class ChosenTasks:
    environment: Taskset
    tokenizer: PromptTokenizer
    template: str
    split: Split
    """Tasks that fit, and the drawn held-out ones."""
    held_out: int
    """Number of tasks that the held-out ones were drawn from."""
    prompts: Fitted
    """All tasks, before the draw, with the lengths of their prompts and the limit."""
    trained_on: TrainedOn
    """The record of the model that the run makes."""
    notes: list[str]
    """What the model learnt earlier and nobody can compare with the held-out tasks, and that these are few."""

    def describe(self) -> list[str]:
        return describe_kinds(self.split, self.held_out) + self.notes

    def describe_prompts(self) -> list[str]:
        if not isinstance(self.environment, Environment):
            return ["first prompts: your agent writes them"]
        return self.prompts.describe()

    def work(self, data: DataConfig, group_size: int) -> Work:
        """Count what a train step and a validation compute."""
        tasks = data.train_batch_size
        prompt = median(self.prompts.lengths) if self.prompts.lengths else UNKNOWN_PROMPT_TOKENS
        return Work(tasks, tasks * group_size, len(self.split.val), prompt, data.max_response_tokens)

    @property
    def max_prompt_tokens(self) -> int:
        """What verl takes as data.max_prompt_length: the limit if it is given, else the longest prompt."""
        limit = self.prompts.limit
        if limit.given and limit.tokens is not None:
            return limit.tokens
        longest = self.prompts.longest + (UNKNOWN_PROMPT_TOKENS if self.environment.opening else 0)
        return longest if limit.tokens is None else min(longest, limit.tokens)


def choose_tasks(cfg: TrainConfig, environment: Taskset) -> ChosenTasks:
    """
    Raises:
        ValueError: a file does not fit, no task does, or the model has learnt held-out ones.
    """
    assert cfg.model is not None
    template, _ = template_of_run(cfg.model, protocol_of(cfg.agent, environment))
    tokenizer = PromptTokenizer(cfg.model, environment, template)
    found = environment.load_split(cfg.data, cfg.seed)
    response, flag = cfg.data.max_response_tokens, "data.max_prompt_tokens"
    limit = choose_limit(cfg.model, cfg.data.max_prompt_tokens, flag, response_tokens=response)
    whole, prompts = fit_split(found, environment, tokenizer.prompt_tokens, limit)
    if not whole.val:
        raise UsageError(f"there is no held-out task; left out: {dict(found.left_out) or 'nothing'}; give others")
    split = drawn(whole, cfg.data.val_limit, cfg.seed)
    notes = check_not_learnt(cfg.model, environment, split.val, SAME_SPLIT)
    if environment.judged and cfg.data.train_file is not None:
        notes += [f"warning: {problem}" for problem in few_held_out(len(whole.val))]
    record = trained_by("agentgrpo train", cfg.model, environment, cfg.environment, cfg.data, split.train, found.val)
    return ChosenTasks(environment, tokenizer, template, split, len(whole.val), prompts, record, notes)


def with_prompts(cfg: TrainConfig, tasks: ChosenTasks, *, cpu: bool) -> TrainConfig:
    """A resumed run chooses the length of the prompts anew.

    Raises:
        UsageError: with such prompts rows may be longer than the model's layers see.
    """
    data = cfg.data.model_copy(update={"max_prompt_tokens": tasks.max_prompt_tokens})
    require(trained=cfg.model, **training_of(cfg.engine, data, cpu=cpu))
    return cfg.model_copy(update={"data": data})


def planned(cfg: TrainConfig, environment: Taskset, *, cpu: bool) -> tuple[TrainConfig, list[str], Work | None]:
    """The settings with the length of the prompts, lines about tasks and prompts, and the work of a step, for
    `--dry-run`.

    A model that is not on this machine is not fetched for it; length and work stay unknown then.
    """
    if cfg.model is None or not (cfg.model / "tokenizer.json").is_file():
        absent = cfg.model not in (None, TINY_POLICY) and not cfg.model.is_dir()
        fetched = f"; the run fetches {cfg.model} from the hub{did_you_mean(cfg.model)}" if cfg.model and absent else ""
        return cfg, [f"tasks and prompts: not known before the model is on this machine{fetched}"], None
    tasks = choose_tasks(cfg, environment)
    work = tasks.work(cfg.data, cfg.rollout.group_size)
    return with_prompts(cfg, tasks, cpu=cpu), tasks.describe() + tasks.describe_prompts(), work


def describe_plan(
    cfg: TrainConfig, weights: int | None, learning_rate: str, time: str, *, gpus: Sequence[Gpu] | None
) -> list[str]:
    """
    Args:
        time: the line of `describe_time`.
        weights: of the model; None: it is not on this machine.
        learning_rate: the line of `with_learning_rate`.
        gpus: as `check_run_memory` takes them; None: the run is on a CPU.
    """
    cpu = gpus is None
    lines: list[str] = []
    group, batch = cfg.rollout.group_size, cfg.data.train_batch_size
    updates = batch // (cfg.optim.mini_batch_size or batch)
    resampled = (
        f" (a zero-variance group is replaced at most {_times(cfg.rollout.max_resamples)})"
        if cfg.rollout.max_resamples
        else ""
    )
    most = "at most " if cfg.trainer.minutes is not None else ""
    lines.append(
        f"train steps: {most}{cfg.trainer.steps}, each of {batch} tasks x {group} rollouts{resampled}; updates in a "
        f"step: {updates}, each of {batch * group // updates} rollouts, at most {cfg.micro_batch_tokens(cpu=cpu):,} "
        "tokens in one pass"
    )
    every = f"every {cfg.trainer.val_every} steps and at the end" if cfg.trainer.val_every else "never"
    lines.append(f"validation: {every}{', and before' if cfg.trainer.val_before_train else ''}")
    lines.append(time)
    if weights is not None:
        lines += [learning_rate, *_sizes(cfg.lora, weights)]
        memory = check_run_memory(cfg, gpus)
        lines += [f"memory: {memory.found}", *(f"warning: {problem}" for problem in memory.problems)]
        need = disk_need(cfg, weights)
        lines.append(describe_disk(cfg.run_dir, need))
        check_run_disk(cfg.run_dir, need, lines.append)
    lines.append(
        f"written to {cfg.run_dir}: config.yaml, run.json, metrics.jsonl, trajectories/, checkpoints/, logs/, data/"
    )
    return lines


def describe_time(trainer: TrainerConfig, work: Work | None, kind: str | None) -> str:
    """
    Args:
        kind: as `kind_of` names it; None: the model is not here, or the run is on several machines.
    """
    pace = remembered(kind, work) if kind and work else None
    if pace is None or work is None:
        return "time: not known before the run's first step, since no run of this kind was measured on this machine"
    seen = expected(pace, work)
    whole_s = whole_run(trainer, seen)
    parts = [f"a step {format_time(seen.step_s)}"] if seen.step_s is not None else []
    parts += [f"a validation {format_time(seen.validation_s)}"] if seen.validation_s is not None else []
    if trainer.minutes is not None:
        parts.append(f"the run at most {trainer.minutes:g} min")
    elif whole_s is not None:
        parts.append(f"the run {format_time(whole_s)}, without start-up")
    return f"time: about {'; '.join(parts)}; at the speed of {pace.run}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _sizes(lora: LoraConfig, weights: int) -> list[str]:
    return [f"the policy: {weights:,} weights{'; ' if lora.rank else ', '}{trained_of(lora)}"]


def trained_of(lora: LoraConfig) -> str:
    return f"an adapter of rank {lora.rank} is trained" if lora.rank else "all trained"


def with_learning_rate(optim: OptimConfig, weights: int | None, *, lora: bool) -> tuple[OptimConfig, str]:
    """The settings with a learning rate, what was given or what a model of this size takes, and a line about it."""
    usual = usual_learning_rate(weights, method="grpo", lora=lora)
    if optim.learning_rate is not None:
        return optim, f"learning rate: {optim.learning_rate:g}, as given (a model of this size takes about {usual:g})"
    of = f"of {weights:,} weights" if weights else "of unknown size"
    line = f"learning rate: {usual:g}, for {'an adapter of a model' if lora else 'a model'} {of}"
    return optim.model_copy(update={"learning_rate": usual}), line


def disk_need(cfg: TrainConfig, weights: int) -> DiskNeed:
    """What the run directory will hold.

    verl writes its shards in float32 (`SAVED_BYTES`), and beside them the whole model in float32, which vLLM serves. Of
    a LoRA run the optimiser's moments are those of the adapter, a few percent.
    """
    saved = (4 if cfg.lora.rank else SAVED_BYTES) + 4
    checkpoint = saved * weights if cfg.trainer.save_every else 0
    validations = times_due(cfg.trainer.val_every, 0, cfg.trainer.steps) + cfg.trainer.val_before_train
    lines = cfg.trainer.steps * cfg.rollout.trajectories_per_step + validations * cfg.data.val_limit
    tokens = cfg.data.prompt_tokens + cfg.data.max_response_tokens
    there = folder_bytes(cfg.run_dir / "checkpoints") if cfg.trainer.resume == "auto" else 0
    at_once = cfg.trainer.keep_checkpoints + 1 if checkpoint else 0
    return DiskNeed(checkpoint, at_once, TOKEN_BYTES * tokens * lines, min(there, (at_once - 1) * checkpoint))


def check_run_disk(run_dir: Path, need: DiskNeed, say: Callable[[str], None] = print) -> None:
    """Warn if the run may fill the disk.

    Raises:
        OutputError: not even one checkpoint fits.
    """
    remedy = (
        "keep fewer (--set trainer.keep_checkpoints=1), save none (trainer.save_every=0), or train an adapter "
        "(lora.rank=16), whose checkpoints are half as large"
    )
    require(say, folder=run_dir, disk_need=need, disk_remedy=remedy)
