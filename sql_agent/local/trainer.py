"""Runs the loop of the local trainers: ask the source for a batch, train on it, log it, evaluate, save.

The trainers differ in their `Recipe` (`greedy_grpo`, `batch_grpo`, `single_skill`): its tasks, its rewards and
advantages, and the names of its metrics. The source (`sql_agent.source`) plays, rewards and chooses, as in the main
job; the update is in `learner`.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import torch

from agentgrpo.checks import require
from agentgrpo.commands import say
from agentgrpo.disk_space import DiskNeed
from agentgrpo.durations import left
from agentgrpo.hub import model_folder
from agentgrpo.model_size import count_adapter_weights, count_weights
from sql_agent.credit.tables import ESTIMATORS, Credit, made
from sql_agent.environments.base import Environment
from sql_agent.learning_rates import learning_rate_hint
from sql_agent.local.checkpoint import KEPT
from sql_agent.local.datatypes import DivergedError, Progress, Sampling, UnjudgedError
from sql_agent.local.learner import Learner
from sql_agent.local.memory import Workload
from sql_agent.local.model_files import base_folder
from sql_agent.local.policy import LocalPolicy
from sql_agent.local.rollouts import Player
from sql_agent.local.run_folder import RunFolder
from sql_agent.local.start import start_policy
from sql_agent.local.transport import REWARDED_TOGETHER, InProcess
from sql_agent.reward_functions.datatypes import LoadedReward
from sql_agent.rewards import RewardPreset
from sql_agent.settings.groups import RewardModelConfig
from sql_agent.settings.local import GrpoConfig, LossConfig
from sql_agent.settings.main_job import RolloutConfig
from sql_agent.settings.single_skill import ExperimentConfig
from sql_agent.source.datatypes import GroupSlot, Rollout, StopError, Task
from sql_agent.source.dynamic_sampling import credit_groups, spreadless
from sql_agent.source.outcomes import Rewarder
from sql_agent.source.reward_hacking_alarm import CORRECT, SCORE, WINDOW, RewardHackingAlarm
from sql_agent.source.run_context import trajectory_line
from sql_agent.source.source import Source
from sql_agent.source.stops import last_line
from sql_agent.success import Rate

EVALUATED_TOGETHER = 32
"""Held-out episodes that are played side by side, unless a batch has more."""
MAX_UNJUDGED = 3
"""Batches in a row without any verdict after which a run stops."""

Group = Sequence[Rollout]
"""The rollouts of one task in one batch."""
Say = Callable[[str], None]


class Measure(Protocol):
    """Plays each task once and changes nothing of the run; greedily unless it gets a temperature."""

    def __call__(self, tasks: Sequence[Any], temperature: float = 0.0) -> list[Rollout]: ...


class Recipe(ABC):
    """Defines how one trainer differs from the others; by default it trains GRPO on groups of `group_size`."""

    unit: str | None = None
    """Name of batches in messages, e.g. "tasks", for a run that stops after `MAX_UNJUDGED` of them without any verdict;
    None: it does not stop."""
    greedy_first = False
    """Whether each task is also played greedily, before its group."""
    writes_epochs = False
    """Whether the adapter is written after each epoch, to `epoch_N`."""
    whole_lines = False
    """Whether metrics.jsonl has the source's metrics too, and the trajectories the held-out rollouts."""
    estimator: Credit
    """From the rewards of a group to its advantages; one that is 0 for the whole group leaves it untrained."""
    rollout = RolloutConfig(redraws=0, max_lost_fraction=1.0)
    """Rewards, replacements and stops."""
    preset: RewardPreset | None = None
    """Replaces `rollout.reward`, for values that have no name."""
    reward_model = RewardModelConfig()
    functions: Sequence[LoadedReward] = ()
    replacements: Sequence[Task] = ()
    """Tasks that may be played instead of those whose groups have no spread."""

    num_batches: int
    """Batches of the whole run."""
    batches_per_epoch: int
    """Number of batches after which gradients that are still being accumulated get their optimiser step."""
    group_size: int
    sampling: Sampling
    rows: int
    """Largest number of episodes that are played side by side."""
    held_out: Sequence[Any]
    """Tasks for evaluation before the first batch, every `evaluate_every` batches and after the last; empty: never."""
    evaluate_every: int
    """0: only before the first batch and after the last."""
    save_every: int

    @abstractmethod
    def draw(self, batch: int) -> list[tuple[str, Any]]:
        """Return pairs of skill and task for a batch; batches are requested in order."""

    @abstractmethod
    def some_tasks(self) -> Sequence[Any]:
        """Return some of the training tasks, whose prompts are used to estimate the memory of the run."""

    def credit(self, groups: Sequence[Group], means: dict[str, float]) -> dict[str, float]:
        """Set the advantages of the rollouts that are trained on.

        Args:
            means: running mean of the reward by skill.
        Returns:
            The means after this batch.
        """
        credit_groups(groups, self.estimator, zeros=False)
        return means

    @abstractmethod
    def metrics(self, groups: Sequence[Group], first: Sequence[Rollout], progress: Progress) -> dict[str, Any]:
        """Return the recipe's own metrics of a batch.

        Args:
            groups: those that are trained on.
            first: the rollouts of the tasks that were drawn first, which no other task replaces.
            progress: already counts the batch.
        """

    @abstractmethod
    def labels(self, rollout: Rollout, batches: int) -> dict[str, Any]:
        """Return the fields that come before a rollout's own in its line; `batches` counts the rollout's batch."""

    @abstractmethod
    def describe(self, line: dict[str, Any], groups: Sequence[Group], progress: Progress) -> str:
        """Return one line for the screen about a batch; `line` is the one in metrics.jsonl."""

    @abstractmethod
    def evaluate(self, measure: Measure, batches: int) -> tuple[dict[str, Any], str]:
        """Play the held-out tasks and return the line for metrics.jsonl and the one for the screen."""

    @abstractmethod
    def describe_done(self, progress: Progress) -> str:
        """Return the place from which a resumed run continues, e.g. "task 12"."""


class Trainer:
    """Runs a recipe. `train` goes through the batches from `progress` on and updates it."""

    def __init__(
        self,
        policy: LocalPolicy,
        learner: Learner,
        player: Player,
        recipe: Recipe,
        folder: RunFolder,
        progress: Progress,
        say: Say,
        task_of: Callable[[Task], Any],
        seed: int = 0,
    ) -> None:
        self.policy, self.progress = policy, progress
        self._learner, self._recipe, self._folder, self._say = learner, recipe, folder, say
        self._rewarder = Rewarder(
            recipe.rollout, recipe.reward_model, recipe.functions, threads=REWARDED_TOGETHER, preset=recipe.preset
        )
        self._source = Source(
            InProcess(player, self._rewarder, recipe.sampling, task_of),
            recipe.rollout.model_copy(update={"step_timeout_s": math.inf}),  # each episode has its own limit
            recipe.reward_model,
            recipe.estimator,
            seed=seed,
            ending_s=0.0,
            max_broken_fraction=1.0,  # a conversation in this process continues its own ids
            tasks=recipe.replacements,
            keep=self._keep,
            credit=self._credit,
        )
        self._loop = asyncio.new_event_loop()  # `asyncio.run` would delay Ctrl-C until a batch is played
        self._means, self._lines = progress.means, list[dict[str, Any]]()
        self._saved = progress.batches
        self._found: dict[str, float] = {}

    def train(self) -> None:
        """Train from the current progress to the last batch.

        Raises:
            DivergedError: see `Learner.learn`; a checkpoint is saved before.
            UnjudgedError: no episode of `MAX_UNJUDGED` batches in a row could be judged.
            StopError: see `Source.batch`.
        """
        try:
            self._train()
        except UnjudgedError:
            raise
        except StopError:
            if self._saved != self.progress.batches:
                self._save()  # what was trained before the batch, or the evaluation, that stops the run
            raise
        finally:
            self._loop.run_until_complete(self._rewarder.aclose())
            self._loop.close()

    def _train(self) -> None:
        recipe, progress = self._recipe, self.progress
        if progress.batches == 0:
            self._evaluate()
        self._began_at, self._began = time.perf_counter(), progress.batches
        while progress.batches < recipe.num_batches:
            self._batch()
            epoch, inside = divmod(progress.batches, recipe.batches_per_epoch)
            if not inside:
                self._learner.flush()
                if recipe.writes_epochs:
                    path = self._folder.finish(self.policy, f"epoch_{epoch}")
                    self._say(f"adapter after epoch {epoch}: {path}")
            if self._due(recipe.evaluate_every):
                self._evaluate()
            if not inside or self._due(recipe.save_every):
                self._save()

    def _due(self, every: int) -> bool:
        done = self.progress.batches
        return done == self._recipe.num_batches or (every > 0 and done % every == 0)

    def _save(self) -> None:
        self._folder.save(self.progress.batches, self.policy, self._learner, asdict(self.progress))
        self._saved = self.progress.batches

    def _batch(self) -> None:
        recipe, progress = self._recipe, self.progress
        started = time.perf_counter()
        slots = self._slots(recipe.draw(progress.batches))
        groups, found = self._ask(slots, step=progress.batches + 1)
        played_s = time.perf_counter() - started
        try:
            metrics = self._learn(groups)
        except DivergedError:
            self._save()
            raise
        progress.means = self._means
        self._count(groups)
        rollouts = [rollout for group in groups for rollout in group]
        # of the tasks that were drawn first: groups are replaced because of their rewards
        first = [rollout for slot in slots for rollout in slot.draws[0]]
        rewards = [r.reward for r in first if r.temperature is None and r.reward is not None]
        line = {
            "train_step": progress.batches,
            **({**found, **self._alarm(found)} if recipe.whole_lines else {}),
            **recipe.metrics(groups, first, progress),
            "reward/mean": sum(rewards) / len(rewards) if rewards else None,
            "rollout/stop": dict(Counter(rollout.record.stop_reason for rollout in rollouts)),
            "train/steps": self._learner.steps,
            "train/bad_steps": self._learner.bad_steps,
            "time/play_s": played_s,
            "time/update_s": time.perf_counter() - started - played_s,
            **metrics,
        }
        self._folder.log(line)
        self._write_lines()
        rest = left(
            time.perf_counter() - self._began_at, progress.batches - self._began, recipe.num_batches - self._began
        )
        self._say("  ".join(filter(None, [recipe.describe(line, groups, progress), rest])))
        if recipe.unit and progress.unjudged_in_a_row >= MAX_UNJUDGED:
            lost, record = rollouts[0], rollouts[0].record
            why = last_line(record.error or lost.earned.error or "") or record.stop_reason
            raise UnjudgedError(
                f"no episode of the last {MAX_UNJUDGED} {recipe.unit} could be judged ({lost.lost}: {why}); correct "
                f"that, then go on with {self._folder.resume_flag}"
            )

    def _slots(self, drawn: Sequence[tuple[str, Any]]) -> list[GroupSlot]:
        ways = [(1, 0.0)] * self._recipe.greedy_first + [(self._recipe.group_size, None)]
        return [
            slot_of(number, task, size, temperature, skill)
            for number, ((skill, task), (size, temperature)) in enumerate((each, way) for each in drawn for way in ways)
        ]

    def _ask(
        self, slots: Sequence[GroupSlot], *, step: int, validate: bool = False
    ) -> tuple[list[list[Rollout]], dict[str, float]]:
        try:
            return self._loop.run_until_complete(self._source.batch(slots, step=step, validate=validate))
        except StopError:
            self._write_lines()  # they say why
            raise

    def _credit(self, groups: Sequence[Group]) -> None:
        self._means = self._recipe.credit(groups, self.progress.means)

    def _keep(self, rollouts: Sequence[Rollout], *, step: int, validate: bool) -> None:
        if not validate or self._recipe.whole_lines:
            self._lines += [
                {**self._recipe.labels(rollout, step), **trajectory_line(rollout, step, validate=validate)}
                for rollout in rollouts
            ]

    def _write_lines(self) -> None:
        lines, self._lines = self._lines, []
        for line in lines:
            self._folder.keep(line)

    def _learn(self, groups: Sequence[Group]) -> dict[str, float]:
        rows = [
            rollout.row
            for group in groups
            for rollout in group
            if rollout.advantage is not None and rollout.row is not None
        ]
        return self._learner.learn(rows, temperature=self._recipe.sampling.temperature) if rows else {}

    def _alarm(self, found: dict[str, float]) -> dict[str, float]:
        step, earlier = self.progress.batches, self.progress.scores
        alarm = RewardHackingAlarm(earlier).look(step, found)
        if SCORE in found and CORRECT in found:
            remembered = {"train_step": step, SCORE: found[SCORE], CORRECT: found[CORRECT]}
            self.progress.scores = [*earlier, remembered][-WINDOW:]
        if alarm.get("reward_model/alarm"):
            self._say(f"warning: {SCORE} rose over {WINDOW} batches while {CORRECT} fell; read the trajectories")
        return alarm

    def _count(self, groups: Sequence[Group]) -> None:
        progress, skipped, unjudged = self.progress, Counter[str](), Counter[str]()
        for group in groups:
            if len(group) > 1 and all(rollout.advantage is None for rollout in group):
                skipped[spreadless(group) or "unjudged"] += 1
            for rollout in group:
                if rollout.temperature is None:
                    unjudged.update([rollout.lost] if rollout.lost else [])
                elif rollout.success is not None:
                    progress.judged += 1
                    progress.correct += rollout.success == 1.0
        verdict = any(rollout.reward is not None for group in groups for rollout in group)
        progress.batches += 1
        progress.skipped = dict(Counter(progress.skipped) + skipped)
        progress.unjudged = dict(Counter(progress.unjudged) + unjudged)
        progress.unjudged_in_a_row = 0 if verdict else progress.unjudged_in_a_row + 1

    def _evaluate(self) -> None:
        if not self._recipe.held_out:
            return
        started, step = time.perf_counter(), self.progress.batches
        line, words = self._recipe.evaluate(self.measure, step)
        found = {f"val/{name}": value for name, value in self._found.items() if self._recipe.whole_lines}
        self._folder.log({"train_step": step, **found, **line, "time/evaluate_s": time.perf_counter() - started})
        self._write_lines()
        self._say(words)

    def measure(self, tasks: Sequence[Any], temperature: float = 0.0) -> list[Rollout]:
        slots = [slot_of(number, task, 1, temperature, task.kind) for number, task in enumerate(tasks)]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            groups, self._found = self._ask(slots, step=self.progress.batches, validate=True)
        return [rollout for group in groups for rollout in group]


def slot_of(number: int, task: Any, size: int, temperature: float | None, skill: str) -> GroupSlot:
    """A group of one task to be played."""
    fields = task.to_dict()
    rollouts = [Rollout(str(number), fields, temperature=temperature, drawn_for=skill) for _ in range(size)]
    return GroupSlot(number, draws=[rollouts])


def start_trainer(
    cfg: GrpoConfig | ExperimentConfig,
    recipe: Recipe,
    environment: Environment,
    folder: RunFolder,
    *,
    resumed: bool,
    opening: str | None = None,
) -> Trainer:
    """Load the policy, begin the folder and, for a resumed run, restore everything from its checkpoint.

    Args:
        opening: a line that is printed once the run has begun.
    """
    for line in _warnings(cfg, folder):
        say(line)
    policy = start_policy(
        cfg.model,
        cfg.adapter,
        tools=environment.tools,
        seed=cfg.seed,
        reference_path=cfg.reference_model_path,
        workload=Workload(
            [environment.messages(task) for task in recipe.some_tasks()],
            recipe.rows,
            recipe.group_size,
            cfg.limits,
            cfg.optim,
        ),
    )
    player = Player(policy, environment, cfg.limits, batch_size=recipe.rows, timeout_s=cfg.rollout_timeout_s)
    learner = Learner(policy, cfg.optim, cfg.loss)
    folder.begin(steps=recipe.num_batches, device=policy.device.type)
    if opening:
        say(opening)
    state = folder.resume(policy, learner) if resumed else None
    progress = Progress.from_state(state or {})
    if state is not None:
        say(f"resumed after {recipe.describe_done(progress)}")
    return Trainer(policy, learner, player, recipe, folder, progress, say, environment.task, cfg.seed)


def _warnings(cfg: GrpoConfig | ExperimentConfig, folder: RunFolder) -> list[str]:
    """Return what is worth a line before the weights are read: too little disk, a learning rate for another size.

    Raises:
        OutputError: not even one checkpoint fits on the disk.
    """
    path = model_folder(cfg.model.model_path, fetch=False)
    base = base_folder(path)
    adapter = (count_weights(path) if base != path else count_adapter_weights(base, cfg.adapter.rank)) or 0
    need = DiskNeed(checkpoint=12 * adapter, at_once=KEPT + 1, rest=4 * adapter)  # weights and AdamW's moments
    lines: list[str | None] = []
    require(lines.append, folder=folder.path, disk_need=need, disk_remedy="give a smaller --lora-rank")
    if isinstance(cfg, GrpoConfig) and "learning_rate" not in cfg.optim.model_fields_set:
        lines.append(learning_rate_hint(cfg.optim.learning_rate, count_weights(base), method="grpo", lora=True))
    return list(filter(None, lines))


def success_rate(rollouts: Sequence[Rollout]) -> Rate:
    judged = [rollout.success for rollout in rollouts if rollout.success is not None]
    return Rate(len(rollouts), len(judged), sum(success == 1.0 for success in judged))


def estimator_of(cfg: LossConfig) -> Credit:
    return made(ESTIMATORS[cfg.estimator or "grpo"], cfg)


def describe_loss(line: dict[str, Any], reason: str) -> str:
    """Return the loss of a batch as text, or `reason` if there was no update."""
    return f"loss {line['policy/loss']:+.4f}" if "policy/loss" in line else f"{reason}, no update"
