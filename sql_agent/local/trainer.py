"""Runs the loop of the local trainers: play a batch, train on it, log it, evaluate, save.

The trainers differ in their `Recipe` (`greedy_grpo`, `batch_grpo`, `single_skill`): its tasks, its rewards and
advantages, and the names of its metrics. Leaves out the update (`learner`), the playing (`rollouts`) and the command
lines (`scripts`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from agentgrpo.checks import require
from agentgrpo.commands import say
from agentgrpo.disk_space import DiskNeed
from agentgrpo.durations import left
from agentgrpo.hub import model_folder
from agentgrpo.model_size import count_adapter_weights, count_weights
from sql_agent.credit.spread import no_spread
from sql_agent.credit.tables import ESTIMATORS, Credit, made
from sql_agent.datatypes import RolloutRecord
from sql_agent.learning_rates import learning_rate_hint
from sql_agent.local.checkpoint import KEPT
from sql_agent.local.datatypes import (
    GREEDY,
    BatchEpisode,
    DivergedError,
    LocalRollout,
    Playable,
    Progress,
    Sampling,
    UnjudgedError,
)
from sql_agent.local.learner import Learner
from sql_agent.local.memory import Workload
from sql_agent.local.model_files import base_folder
from sql_agent.local.policy import LocalPolicy
from sql_agent.local.rollouts import Player
from sql_agent.local.run_folder import RunFolder
from sql_agent.local.start import start_policy
from sql_agent.settings.local import GrpoConfig, LossConfig
from sql_agent.settings.single_skill import ExperimentConfig
from sql_agent.success import Rate

EVALUATED_TOGETHER = 32
"""Held-out episodes that are played side by side, unless a batch has more."""
MAX_UNJUDGED = 3
"""Batches in a row without any verdict after which a run stops."""
REWARD_ERROR = "reward_error"
"""Reason under which an episode is counted whose verdict cannot become a reward."""

Group = list[BatchEpisode]
"""The episodes of one task in one batch."""
Say = Callable[[str], None]


class Recipe(ABC):
    """Defines how one trainer differs from the others; by default it trains GRPO on groups of `group_size`."""

    unit: str | None = None
    """Name of batches in messages, e.g. "tasks", for a run that stops after `MAX_UNJUDGED` of them without any verdict;
    None: it does not stop."""
    greedy_first = False
    """Whether each task is also played greedily, beside its group."""
    writes_epochs = False
    """Whether the adapter is written after each epoch, to `epoch_N`."""
    estimator: Credit
    """From the rewards of a group to its advantages; one that is 0 for the whole group leaves it untrained."""

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

    @abstractmethod
    def reward(self, record: RolloutRecord) -> float | None:
        """Return the reward of an episode; None if it could not be judged."""

    def credit(self, groups: Sequence[Group], means: dict[str, float]) -> dict[str, float]:
        """Set the advantages of the episodes that are trained on.

        Args:
            means: running mean of the reward by skill.
        Returns:
            The means after this batch.
        """
        for sampled in map(sampled_of, groups):
            found = self.estimator([episode.rewards for episode in sampled])
            advantages = [None if one is None else one[0] for one in found]
            if any(advantages):
                for episode, advantage in zip(sampled, advantages, strict=True):
                    episode.advantage = advantage
        return means

    @abstractmethod
    def metrics(self, groups: Sequence[Group], progress: Progress) -> dict[str, Any]:
        """Return the recipe's own metrics of a batch; `progress` already counts the batch."""

    @abstractmethod
    def labels(self, episode: BatchEpisode, batches: int) -> dict[str, Any]:
        """Return the fields that come before an episode's record in its line; `batches` counts the episode's batch."""

    @abstractmethod
    def describe(self, line: dict[str, Any], groups: Sequence[Group], progress: Progress) -> str:
        """Return one line for the screen about a batch; `line` is the one in metrics.jsonl."""

    @abstractmethod
    def evaluate(self, player: Player, batches: int) -> tuple[dict[str, Any], str]:
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
    ) -> None:
        self.policy, self.progress = policy, progress
        self._learner, self._player, self._recipe, self._folder, self._say = learner, player, recipe, folder, say

    def train(self) -> None:
        """Train from the current progress to the last batch.

        Raises:
            DivergedError: see `Learner.learn`; a checkpoint is saved before.
            UnjudgedError: no episode of `MAX_UNJUDGED` batches in a row could be judged.
        """
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

    def _batch(self) -> None:
        recipe, progress = self._recipe, self.progress
        started = time.perf_counter()
        groups = self._play()
        played_s = time.perf_counter() - started
        means = recipe.credit(groups, progress.means)
        try:
            metrics = self._learn(groups)
        except DivergedError:
            self._save()
            raise
        progress.means = means
        self._count(groups)
        episodes = [episode for group in groups for episode in group]
        rewards = [e.reward for e in episodes if not e.greedy and e.reward is not None]
        line = {
            **recipe.metrics(groups, progress),
            "reward/mean": sum(rewards) / len(rewards) if rewards else None,
            "rollout/stop": dict(Counter(episode.rollout.record.stop_reason for episode in episodes)),
            "train/steps": self._learner.steps,
            "train/bad_steps": self._learner.bad_steps,
            "time/play_s": played_s,
            "time/update_s": time.perf_counter() - started - played_s,
            **metrics,
        }
        self._folder.log(line)
        for episode in episodes:
            self._folder.keep({**recipe.labels(episode, progress.batches), **episode.rollout.record.to_dict()})
        rest = left(
            time.perf_counter() - self._began_at, progress.batches - self._began, recipe.num_batches - self._began
        )
        self._say("  ".join(filter(None, [recipe.describe(line, groups, progress), rest])))
        if recipe.unit and progress.unjudged_in_a_row >= MAX_UNJUDGED:
            lost = episodes[0].rollout.record
            raise UnjudgedError(
                f"no episode of the last {MAX_UNJUDGED} {recipe.unit} could be judged ({lost.score.reason}: "
                f"{lost.error or lost.stop_reason}); correct that, then go on with {self._folder.resume_flag}"
            )

    def _play(self) -> list[Group]:
        recipe = self._recipe
        drawn = recipe.draw(self.progress.batches)
        ways = [GREEDY] * recipe.greedy_first + [recipe.sampling] * recipe.group_size
        rollouts = iter(self._player.play([task for _, task in drawn for _ in ways], ways * len(drawn)))
        return [
            [
                BatchEpisode(task, skill, how is GREEDY, rollout, recipe.reward(rollout.record))
                for how, rollout in zip(ways, rollouts, strict=False)  # takes the next len(ways) rollouts
            ]
            for skill, task in drawn
        ]

    def _learn(self, groups: Sequence[Group]) -> dict[str, float]:
        rows = [
            episode.rollout.trajectory.credited([episode.advantage])
            for group in groups
            for episode in group
            if episode.advantage is not None and episode.rollout.trajectory is not None
        ]
        return self._learner.learn(rows, temperature=self._recipe.sampling.temperature) if rows else {}

    def _count(self, groups: Sequence[Group]) -> None:
        progress, skipped, unjudged = self.progress, Counter[str](), Counter[str]()
        verdict = False
        for group in groups:
            sampled = sampled_of(group)
            if len(sampled) > 1 and all(episode.advantage is None for episode in sampled):
                skipped[why_without_spread(sampled)] += 1
            for episode in group:
                record = episode.rollout.record
                verdict |= episode.reward is not None
                if episode.reward is None and not episode.greedy:
                    unjudged[record.score.reason if record.score.value is None else REWARD_ERROR] += 1
                elif episode.greedy and record.success is not None:
                    progress.judged += 1
                    progress.correct += record.success == 1.0
        progress.batches += 1
        progress.skipped = dict(Counter(progress.skipped) + skipped)
        progress.unjudged = dict(Counter(progress.unjudged) + unjudged)
        progress.unjudged_in_a_row = 0 if verdict else progress.unjudged_in_a_row + 1

    def _evaluate(self) -> None:
        if not self._recipe.held_out:
            return
        started = time.perf_counter()
        line, words = self._recipe.evaluate(self._player, self.progress.batches)
        self._folder.log({**line, "time/evaluate_s": time.perf_counter() - started})
        self._say(words)


def start_trainer(
    cfg: GrpoConfig | ExperimentConfig,
    recipe: Recipe,
    environment: Playable,
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
    folder.begin()
    if opening:
        say(opening)
    state = folder.resume(policy, learner) if resumed else None
    progress = Progress.from_state(state or {})
    if state is not None:
        say(f"resumed after {recipe.describe_done(progress)}")
    return Trainer(policy, learner, player, recipe, folder, progress, say)


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


def evaluate(player: Player, tasks: Sequence[Any], sampling: Sampling = GREEDY) -> list[LocalRollout]:
    """Play held-out tasks without changing the run's random state."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return player.play(tasks, [sampling] * len(tasks))


def success_rate(rollouts: Sequence[LocalRollout]) -> Rate:
    judged = [success for rollout in rollouts if (success := rollout.record.success) is not None]
    return Rate(len(rollouts), len(judged), sum(success == 1.0 for success in judged))


def sampled_of(group: Group) -> Group:
    """Return the sampled episodes of a group."""
    return [episode for episode in group if not episode.greedy]


def why_without_spread(sampled: Group) -> str:
    """Return the reason under which a group without spread is counted."""
    success = [episode.rollout.record.success for episode in sampled]
    return no_spread([episode.rewards for episode in sampled], success) or "unjudged"


def estimator_of(cfg: LossConfig) -> Credit:
    return made(ESTIMATORS[cfg.estimator or "grpo"], cfg)


def describe_loss(line: dict[str, Any], reason: str) -> str:
    """Return the loss of a batch as text, or `reason` if there was no update."""
    return f"loss {line['policy/loss']:+.4f}" if "policy/loss" in line else f"{reason}, no update"
