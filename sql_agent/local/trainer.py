"""Runs the loop of the local trainer: ask the source for a batch, train on it, log it, evaluate, save.

Commands differ in their `Preset` (`presets`, `single_skill`): its tasks, and the names of its metrics. The source
(`sql_agent.source`) plays, rewards and chooses, as in the main job; the update is in `learner`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from agentgrpo.checkpoints import SaveClock
from agentgrpo.checks import require
from agentgrpo.commands import say
from agentgrpo.durations import left
from agentgrpo.hub import model_folder
from agentgrpo.model_kinds import count_adapter_weights, count_weights
from agentgrpo.outputs import DiskNeed
from agentgrpo.run_folder import note_steps
from sql_agent.environments.base import Environment
from sql_agent.learning_rates import learning_rate_hint
from sql_agent.local.datatypes import DivergedError, TrainerState, UnjudgedError
from sql_agent.local.learner import Learner
from sql_agent.local.memory import Workload
from sql_agent.local.model_files import base_folder
from sql_agent.local.policy import LocalPolicy
from sql_agent.local.presets import Group, Preset
from sql_agent.local.rollouts import REWARDED_TOGETHER, InProcess, Player
from sql_agent.local.run_folder import KEPT, RunFolder
from sql_agent.local.start import start_policy
from sql_agent.names import RANKING
from sql_agent.reward_functions.load import load_functions
from sql_agent.reward_functions.ranking import ranker_of
from sql_agent.source.datatypes import PendingGroup, Rollout, StopError, Task
from sql_agent.source.dynamic_sampling import zero_variance
from sql_agent.source.metrics import CORRECT, SCORE, WINDOW, RewardHackingAlarm
from sql_agent.source.run_context import trajectory_line
from sql_agent.source.scoring import Rewarder
from sql_agent.source.source import Source
from sql_agent.source.stops import MAIN_JOB, last_line

MAX_UNJUDGED = 3
"""Batches in a row without any verdict after which a run stops."""
MEASURED = 2
"""The batch after which a run of given minutes says how many fit."""
PROMPTS_MEASURED = 100
"""Training tasks whose prompts are used to estimate the memory of the run."""


class Trainer:
    """Runs a preset. `train` goes through the batches from `progress` on and updates it."""

    def __init__(
        self,
        policy: LocalPolicy,
        learner: Learner,
        player: Player,
        preset: Preset,
        folder: RunFolder,
        progress: TrainerState,
        say: Callable[[str], None],
        task_of: Callable[[Task], Any],
    ) -> None:
        self.policy, self.folder, self.progress = policy, folder, progress
        self._learner, self._preset, self._say = learner, preset, say
        cfg = preset.cfg
        self._rewarder = Rewarder(
            cfg.rollout,
            cfg.reward_model,
            load_functions(cfg.rollout, cfg.llm_judge, folder.path),
            threads=REWARDED_TOGETHER,
            preset=preset.values,
            counts_pauses=True,
        )
        self._source = Source(
            InProcess(player, self._rewarder, preset.sampling, task_of),
            cfg.rollout.model_copy(update={"step_timeout_s": math.inf}),  # each episode has its own limit
            cfg.reward_model,
            preset.estimator,
            seed=cfg.seed,
            ending_s=0.0,
            max_broken_fraction=1.0,  # a conversation in this process continues its own ids
            tasks=[task.to_dict() for task in preset.tasks] if cfg.max_resamples else (),
            keep=self._keep,
            credit=self._credit,
            names=names_for_stops(folder),
            ranker=ranker_of(cfg.llm_judge, folder.path) if RANKING in cfg.rollout.weights else None,
        )
        self._loop = asyncio.new_event_loop()  # `asyncio.run` would delay Ctrl-C until a batch is played
        self._means, self._saved = progress.means, progress.batches
        self._started, self._planned, self._evaluation_s = time.perf_counter(), preset.num_batches, 0.0
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

    @property
    def epochs(self) -> int:
        """The epochs that have begun."""
        return -(-self.progress.batches // self._preset.batches_per_epoch)

    def _train(self) -> None:
        preset, progress = self._preset, self.progress
        if progress.batches == 0:
            self._evaluate()
        self._began_at, self._began = time.perf_counter(), progress.batches
        saves = SaveClock(preset.cfg.save_every)
        while progress.batches < preset.num_batches:
            self._batch()
            ends = progress.batches == preset.num_batches
            whole = not progress.batches % preset.batches_per_epoch
            if whole or ends:
                self._learner.flush()
                if preset.writes_epochs:
                    path = self.folder.finish(self.policy, f"epoch_{self.epochs}")
                    self._say(f"adapter {'after' if whole else 'of a part of'} epoch {self.epochs}: {path}")
            if self._due(preset.evaluate_every):
                self._evaluate()
            if saves.is_due(progress.batches) or whole or ends:
                self._save()

    def _due(self, every: int) -> bool:
        done = self.progress.batches
        return done == self._preset.num_batches or (every > 0 and done % every == 0)

    def _plan(self, minutes: float) -> None:
        """End with the last batch that fits into the minutes with the evaluation that follows it."""
        done, now = self.progress.batches, time.perf_counter()
        batch_s = (now - self._began_at) / (done - self._began)
        left_s = 60 * minutes - (now - self._started) - self._evaluation_s
        planned = min(self._planned, done + max(0, int(left_s / batch_s)))
        if planned != self._preset.num_batches:
            self._preset.num_batches = planned
            note_steps(self.folder.path, planned)
        if done - self._began == MEASURED:
            self._say(f"about {planned} of {self._planned} batches fit into {minutes:g} minutes")

    def _save(self) -> None:
        self.folder.save(self.progress.batches, self.policy, self._learner, asdict(self.progress))
        self._saved = self.progress.batches

    def _batch(self) -> None:
        preset, progress = self._preset, self.progress
        started = time.perf_counter()
        slots = self._slots(preset.draw(progress.batches))
        groups, found = self._play(slots, step=progress.batches + 1)
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
        first = [rollout for slot in slots for rollout in slot.groups[0]]
        rewards = [r.reward for r in first if r.temperature is None and r.reward is not None]
        line = {
            "train_step": progress.batches,
            **({**found, **self._alarm(found)} if preset.whole_lines else {}),
            **preset.metrics(groups, first, progress),
            "reward/mean": sum(rewards) / len(rewards) if rewards else None,
            "rollout/stop": dict(Counter(rollout.record.stop_reason for rollout in rollouts)),
            "train/steps": self._learner.steps,
            "train/bad_steps": self._learner.bad_steps,
            "time/play_s": played_s,
            "time/update_s": time.perf_counter() - started - played_s,
            **metrics,
        }
        self.folder.log(line)
        if preset.cfg.minutes is not None:
            self._plan(preset.cfg.minutes)
        rest = left(
            time.perf_counter() - self._began_at, progress.batches - self._began, preset.num_batches - self._began
        )
        self._say("  ".join(filter(None, [preset.describe(line, groups, progress), rest])))
        if progress.unjudged_in_a_row >= MAX_UNJUDGED:
            lost, record = rollouts[0], rollouts[0].record
            why = last_line(record.error or lost.earned.error or "") or record.stop_reason
            raise UnjudgedError(
                f"no episode of the last {MAX_UNJUDGED} {preset.unit} could be judged ({lost.lost}: {why}); correct "
                f"that, then go on with {self.folder.resume_flag}, or in another folder if one of your own files is at "
                "fault, since a run goes on with those that it began with"
            )

    def _slots(self, drawn: Sequence[tuple[str, Any]]) -> list[PendingGroup]:
        ways = [(1, 0.0)] * self._preset.greedy_first + [(self._preset.cfg.group_size, None)]
        return [
            slot_of(number, task, size, temperature, skill)
            for number, ((skill, task), (size, temperature)) in enumerate((each, way) for each in drawn for way in ways)
        ]

    def _play(
        self, slots: Sequence[PendingGroup], *, step: int, validate: bool = False
    ) -> tuple[list[list[Rollout]], dict[str, float]]:
        return self._loop.run_until_complete(self._source.batch(slots, step=step, validate=validate))

    def _credit(self, groups: Sequence[Group]) -> None:
        self._means = self._preset.credit(groups, self.progress.means)

    def _keep(self, rollouts: Sequence[Rollout], *, step: int, validate: bool) -> None:
        if validate and (not self._preset.whole_lines or rollouts[0].temperature):  # a validation is greedy
            return
        for rollout in rollouts:
            line = trajectory_line(rollout, step, validate=validate)
            self.folder.keep({**self._preset.labels(rollout, step), **line})

    def _learn(self, groups: Sequence[Group]) -> dict[str, float]:
        rows = [
            rollout.row
            for group in groups
            for rollout in group
            if rollout.advantage is not None and rollout.row is not None
        ]
        return self._learner.learn(rows, temperature=self._preset.sampling.temperature) if rows else {}

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
                skipped[zero_variance(group) or "unjudged"] += 1
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
        if not self._preset.held_out:
            return
        started, step = time.perf_counter(), self.progress.batches
        line, words = self._preset.evaluate(self.measure, step)
        found = {f"val/{name}": value for name, value in self._found.items() if self._preset.whole_lines}
        self._evaluation_s = time.perf_counter() - started
        self.folder.log({"train_step": step, **found, **line, "time/evaluate_s": self._evaluation_s})
        self._say(words)

    def measure(self, tasks: Sequence[Any], temperature: float = 0.0) -> list[Rollout]:
        slots = [slot_of(number, task, 1, temperature, task.kind) for number, task in enumerate(tasks)]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            groups, found = self._play(slots, step=self.progress.batches, validate=True)
        if not temperature:
            self._found = found
        return [rollout for group in groups for rollout in group]


def names_for_stops(folder: RunFolder) -> dict[str, str]:
    """What a stop calls the files of a local run; settings keep the main job's names until the command prints it."""
    return {
        **MAIN_JOB,
        "model": "The policy",
        "fewer": "play fewer at once",
        "trajectories": folder.trajectories.name,
        "logs": "the lines above",
        "look": f"{folder.trajectories} has every rollout.",
        "again": f"then go on with {folder.resume_flag}",
    }


def slot_of(number: int, task: Any, size: int, temperature: float | None, skill: str) -> PendingGroup:
    """A group of one task to be played."""
    fields = task.to_dict()
    rollouts = [Rollout(str(number), fields, temperature=temperature, drawn_for=skill) for _ in range(size)]
    return PendingGroup(number, groups=[rollouts])


def start_trainer(preset: Preset, environment: Environment, folder: RunFolder, opening: Sequence[str] = ()) -> Trainer:
    """Load the policy, begin the folder and, for a resumed run, restore everything from its checkpoint.

    Args:
        opening: lines that are printed once the run has begun.
    """
    cfg = preset.cfg
    for line in _warnings(preset, folder):
        say(line)
    prompts = [environment.messages(task) for task in preset.tasks[:PROMPTS_MEASURED]]
    policy = start_policy(
        cfg.model,
        cfg.adapter,
        tools=environment.tools,
        seed=cfg.seed,
        reference_path=cfg.reference_model_path,
        workload=Workload(prompts, preset.rows, cfg.group_size, cfg.limits, cfg.optim),
    )
    player = Player(policy, environment, cfg.limits, batch_size=preset.rows, timeout_s=cfg.rollout_timeout_s)
    learner = Learner(policy, cfg.optim, cfg.loss)
    folder.begin(steps=preset.num_batches, device=policy.device.type)
    for line in opening:
        say(line)
    state = folder.resume(policy, learner) if folder.resumed else None
    progress = TrainerState.from_state(state or {})
    if state is not None:
        say(f"resumed after {preset.describe_done(progress)}")
    return Trainer(policy, learner, player, preset, folder, progress, say, environment.task)


def _warnings(preset: Preset, folder: RunFolder) -> list[str]:
    """What is worth a line before the weights are read: too little disk, a learning rate for another size.

    Raises:
        OutputError: not even one checkpoint fits on the disk.
    """
    cfg = preset.cfg
    path = model_folder(cfg.model.model_path, fetch=False)
    base = base_folder(path)
    adapter = (count_weights(path) if base != path else count_adapter_weights(base, cfg.adapter.rank)) or 0
    need = DiskNeed(checkpoint=12 * adapter, at_once=KEPT + 1, rest=4 * adapter)  # weights and AdamW's moments
    lines: list[str | None] = []
    require(lines.append, folder=folder.path, disk_need=need, disk_remedy="give a smaller --lora-rank")
    if "learning_rate" not in cfg.optim.model_fields_set and cfg.group_size > 1:  # REINFORCE takes others
        lines.append(learning_rate_hint(cfg.optim.learning_rate, count_weights(base), method="grpo", lora=True))
    return list(filter(None, lines))
