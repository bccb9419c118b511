"""GRPO on word problems: each epoch plays every problem as a group of episodes, batch by batch, and learns from each
batch before the next one is played.

The reward is the judge's verdict, 1 or 0, and nothing for form. Groups without spread teach nothing: they are skipped
and counted. After each epoch the adapter is written to `epoch_N`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sql_agent.gsm8k.datatypes import Problem
from sql_agent.local.config import Gsm8kGrpoConfig
from sql_agent.local.datatypes import DivergedError, LocalRollout, Sampling
from sql_agent.local.greedy_grpo import evaluate, why_without_spread
from sql_agent.local.learner import Learner
from sql_agent.local.losses import group_advantages, has_spread
from sql_agent.local.policy import LocalPolicy
from sql_agent.local.rollouts import Player
from sql_agent.local.run_folder import RunFolder
from sql_agent.success import Rate

Group = list[LocalRollout]


@dataclass
class Progress:
    """Where a run is, and what it has counted; JSON values."""

    batches: int = 0
    """Done, over all epochs."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Groups without an update, by reason."""
    unjudged: dict[str, int] = field(default_factory=dict)
    """Episodes that were left out of their group, by reason."""


def train(
    policy: LocalPolicy,
    learner: Learner,
    player: Player,
    problems: Sequence[Problem],
    held_out: Sequence[Problem],
    cfg: Gsm8kGrpoConfig,
    folder: RunFolder,
    progress: Progress,
    say: Callable[[str], None],
) -> None:
    """Go through the epochs from `progress` on; `progress` is kept up to date.

    Args:
        held_out: played greedily before the first batch and after each epoch; empty where nothing is evaluated.
    Raises:
        DivergedError: see `Learner.learn`.
    """
    per_epoch = -(-len(problems) // cfg.batch_size)
    if progress.batches == 0:
        _evaluate(player, held_out, 0, folder, say)
    while progress.batches < per_epoch * cfg.total_epochs:
        epoch, place = divmod(progress.batches, per_epoch)
        batch = epoch_order(problems, cfg.seed, epoch)[place * cfg.batch_size :][: cfg.batch_size]
        try:
            line = _learn_from(batch, learner, player, cfg, folder, progress)
        except DivergedError:
            folder.save(progress.batches, policy, learner, asdict(progress))
            raise
        folder.log({"epoch": epoch + 1, "batch": place + 1, **line})
        say(f"epoch {epoch + 1}/{cfg.total_epochs}  batch {place + 1}/{per_epoch}  {_shown(line)}")
        at_end = place + 1 == per_epoch
        if at_end:
            learner.flush()
            say(f"adapter after epoch {epoch + 1}: {folder.finish(policy, f'epoch_{epoch + 1}')}")
            _evaluate(player, held_out, epoch + 1, folder, say)
        if at_end or progress.batches % cfg.save_every == 0:
            folder.save(progress.batches, policy, learner, asdict(progress))


def epoch_order(problems: Sequence[Problem], seed: int, epoch: int) -> list[Problem]:
    """The problems in the order of that epoch, which depends on nothing else."""
    return random.Random(f"{seed}/{epoch}").sample(problems, len(problems))


def credit(groups: Sequence[Group], *, scale: bool) -> tuple[list[tuple[LocalRollout, float]], Counter[str]]:
    """The episodes to learn from with their advantages, and the groups that teach nothing, by reason.

    Args:
        groups: rollouts of one problem each; one that could not be judged has no place in its group.
        scale: see `group_advantages`.
    """
    credited: list[tuple[LocalRollout, float]] = []
    skipped: Counter[str] = Counter()
    for group in groups:
        rewards = [rollout.record.score.value for rollout in group]
        if not has_spread(rewards):
            skipped[why_without_spread(group, rewards)] += 1
            continue
        advantages = group_advantages(rewards, scale=scale)
        credited += [(rollout, a) for rollout, a in zip(group, advantages, strict=True) if a is not None]
    return credited, skipped


def _learn_from(
    batch: Sequence[Problem],
    learner: Learner,
    player: Player,
    cfg: Gsm8kGrpoConfig,
    folder: RunFolder,
    progress: Progress,
) -> dict[str, Any]:
    """Play a batch, learn from it, keep its episodes; returns its line of metrics."""
    started = time.perf_counter()
    size = cfg.samples_per_prompt
    repeated = [problem for problem in batch for _ in range(size)]
    rollouts = player.play(repeated, [Sampling(cfg.temperature, cfg.top_p)] * len(repeated))
    played_s = time.perf_counter() - started
    groups = [rollouts[first : first + size] for first in range(0, len(rollouts), size)]
    credited, skipped = credit(groups, scale=cfg.loss.scale)
    pairs = [(rollout.trajectory, a) for rollout, a in credited if rollout.trajectory is not None]
    metrics: dict[str, float] = {}
    if pairs:
        metrics = learner.learn([t for t, _ in pairs], [a for _, a in pairs], temperature=cfg.temperature).metrics
    records = [rollout.record for rollout in rollouts]
    progress.batches += 1
    progress.skipped = dict(Counter(progress.skipped) + skipped)
    lost = Counter(record.score.reason for record in records if record.score.value is None)
    progress.unjudged = dict(Counter(progress.unjudged) + lost)
    advantage = {id(rollout): a for rollout, a in credited}
    for rollout in rollouts:
        folder.keep({"batch": progress.batches, "advantage": advantage.get(id(rollout)), **rollout.record.to_dict()})
    values = [record.score.value for record in records if record.score.value is not None]
    return {
        "rollout/success": asdict(Rate(len(records), len(values), sum(value == 1.0 for value in values))),
        "rollout/reason": dict(Counter(record.score.reason for record in records)),
        "rollout/stop": dict(Counter(record.stop_reason for record in records)),
        "rollout/tool_calls": sum(record.tool_calls for record in records) / len(records),
        "rollout/malformed_calls": sum(record.malformed_calls for record in records),
        "reward/mean": sum(values) / len(values) if values else None,
        "reward/unjudged": progress.unjudged,
        "group/with_spread": len(groups) - skipped.total(),
        "group/skipped": progress.skipped,
        "train/steps": learner.steps,
        "train/bad_steps": learner.bad_steps,
        "time/play_s": played_s,
        "time/update_s": time.perf_counter() - started - played_s,
        **metrics,
    }


def _shown(line: dict[str, Any]) -> str:
    success, skipped = line["rollout/success"], line["group/skipped"]
    by_reason = f" ({', '.join(f'{reason} {count}' for reason, count in sorted(skipped.items()))})" if skipped else ""
    return (
        f"correct {success['correct']} of {success['judged']}  "
        f"{'loss {:+.4f}'.format(line['policy/loss']) if 'policy/loss' in line else 'no spread, no update'}  "
        f"groups with spread {line['group/with_spread']}  skipped so far {sum(skipped.values())}{by_reason}  "
        f"not judged so far {sum(line['reward/unjudged'].values())}"
    )


def _evaluate(
    player: Player, held_out: Sequence[Problem], epoch: int, folder: RunFolder, say: Callable[[str], None]
) -> None:
    """Greedy success on held-out problems; the random generators are left as they were."""
    if not held_out:
        return
    started = time.perf_counter()
    found = evaluate(player, held_out)
    folder.log({"epoch": epoch, "held_out": asdict(found), "time/evaluate_s": time.perf_counter() - started})
    say(f"held-out after {epoch} epochs: {found}")
