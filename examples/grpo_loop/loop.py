"""The whole of GRPO on SQL tasks, in the order in which it happens: play, judge, compare, learn.

    .venv/bin/python examples/grpo_loop/loop.py MODEL

It uses the trainers' own parts and none of their settings. Left out is what a long run needs: checkpoints, deadlines,
servers, memory limits, tasks that are drawn again. `agentgrpo train` and `agentgrpo local` have that.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # beside other work, threads that spin took 165 s a step

import torch
from transformers import AutoTokenizer

from agentgrpo.chat.replies import Conversation
from dbbench_adapter.datatypes import Task
from dbbench_adapter.interaction import Episode, Message
from sql_agent.credit.grpo import ClippedRatio, GroupRelative
from sql_agent.credit.losses import LossInputs
from sql_agent.credit.row import Row
from sql_agent.environments.dbbench import DbBench, generated
from sql_agent.local.datatypes import GREEDY, Sample, Sampling
from sql_agent.local.policy import LocalPolicy, Rows, load_model
from sql_agent.local.weighted_loss import token_weights
from sql_agent.settings.groups import AgentConfig

STEPS, TASKS_PER_STEP, GROUP_SIZE = 12, 8, 8
LEARNING_RATE, MAX_GRAD_NORM = 5e-4, 1.0
LIMITS = AgentConfig(max_turns=8, max_tokens=128)  # of one rollout: replies, and the tokens of each
SKILL = "order_by_single_column"  # ORDER BY with LIMIT


@dataclass
class Rollout:
    """One attempt at a task: the conversation as messages, and as the one sequence of tokens that is trained."""

    task: Task
    episode: Episode
    """The task's own database, and the tools that reach it."""
    first: list[Message]
    """The first prompt: rules, tables, question."""
    ids: list[int]
    sampled: list[int]
    """1 on tokens that the policy sampled, 0 on the prompt and on what the database answered."""
    log_probs: list[float]
    """The sampler's log-probs of the sampled tokens, in nats; 0 elsewhere."""
    prompt_tokens: int
    turn_ends: list[int] = field(default_factory=list)
    ended: bool = False
    reward: float | None = None

    def append(self, ids: Sequence[int], log_probs: Sequence[float] | None = None) -> None:
        self.ids += ids
        self.sampled += [int(log_probs is not None)] * len(ids)
        self.log_probs += log_probs if log_probs is not None else [0.0] * len(ids)

    def row(self, advantages: Sequence[float]) -> Row:
        ids, sampled, log_probs = tuple(self.ids), tuple(self.sampled), tuple(self.log_probs)
        ends = tuple(self.turn_ends)
        return Row(ids, sampled, log_probs, self.prompt_tokens, len(ends), turn_ends=ends).credited(advantages)


def begin(task: Task, environment: DbBench, conversation: Conversation) -> Rollout:
    first = environment.messages(task)
    prompt = conversation.first_prompt(first)
    episode = environment.open(task, LIMITS)
    return Rollout(task, episode, first, list(prompt), [0] * len(prompt), [0.0] * len(prompt), len(prompt))


def take_turn(rollout: Rollout, sample: Sample, conversation: Conversation) -> None:
    """Append a reply and what the database says to it."""
    rollout.append(sample.ids, sample.log_probs)  # the ids that were sampled; no text is tokenised again
    rollout.turn_ends.append(len(rollout.ids))
    if sample.finish_reason == "length":  # a reply that was cut has no call to run
        rollout.ended = True
        return
    reply = conversation.read_reply(sample.ids)
    answers = list(rollout.episode.answer(reply))  # runs the SQL
    rollout.ended = rollout.episode.done or len(rollout.turn_ends) == LIMITS.max_turns
    if not rollout.ended:
        rollout.append(conversation.after_reply(rollout.first, reply, answers))


def play(
    tasks: Sequence[Task], policy: LocalPolicy, environment: DbBench, conversation: Conversation, sampling: Sampling
) -> list[Rollout]:
    """Play each task once, all side by side, and judge what they leave behind."""
    rollouts = [begin(task, environment, conversation) for task in tasks]
    while going := [rollout for rollout in rollouts if not rollout.ended]:
        prompts = [rollout.ids for rollout in going]
        samples = policy.generate(prompts, [sampling] * len(going), max_new_tokens=LIMITS.max_tokens)
        for rollout, sample in zip(going, samples, strict=True):
            take_turn(rollout, sample, conversation)
    for rollout in rollouts:
        rollout.reward = environment.judge(rollout.episode).value  # 1 right, 0 wrong, None: nobody can tell
        rollout.episode.close()
    return rollouts


def credit(group: Sequence[Rollout]) -> list[Row]:
    """Compare the rollouts of one task: (reward - mean of the group) / its standard deviation, on every sampled token.

    Leaves out rollouts without a verdict, and groups whose rewards are all equal: their advantages are 0.
    """
    advantages = GroupRelative()([None if rollout.reward is None else [rollout.reward] for rollout in group])
    credited = zip(group, advantages, strict=True)
    return [rollout.row(advantage) for rollout, advantage in credited if advantage and any(advantage)]


def update(policy: LocalPolicy, optimiser: torch.optim.Optimizer, rows: Sequence[Row]) -> float:
    """Make one step on the rows, and return their loss."""
    masks = Rows.of(rows, pad_id=policy.pad_id).mask
    weights = token_weights(masks, "seq-mean-token-mean")  # each rollout counts alike, whatever its length
    total = 0.0
    policy.model.train()
    for start in range(0, len(rows), GROUP_SIZE):  # the rollouts of a task: their prompt is computed once
        batch = Rows.of(rows[start : start + GROUP_SIZE], pad_id=policy.pad_id)
        log_probs = policy.log_probs(batch)
        # ratio = exp(log_probs - old_log_probs), 1 here: the policy has not moved since it sampled. The loss is
        # -min(ratio * advantage, clip(ratio, 0.8, 1.2) * advantage) of each sampled token.
        inputs = LossInputs(log_probs, batch.old_log_probs, batch.advantages, batch.mask)
        per_token = ClippedRatio()(inputs).per_token
        loss = (weights[start : start + GROUP_SIZE, : batch.ids.shape[1]] * per_token).sum()
        loss.backward()
        total += loss.item()
    policy.model.eval()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
    optimiser.step()
    optimiser.zero_grad()
    return total


def success(rollouts: Sequence[Rollout]) -> float:
    judged = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    return sum(judged) / len(judged)


def main(model: Path) -> None:
    random.seed(0)
    torch.manual_seed(0)
    train, held_out = (generated(n, half, [SKILL], seed=0) for n, half in ((1024, "train"), (96, "held_out")))
    policy = LocalPolicy(load_model(model, device="cpu"), AutoTokenizer.from_pretrained(model))
    optimiser = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)
    with DbBench("strict") as environment:
        conversation = Conversation(policy.tokenizer, environment.tools)
        parts = policy, environment, conversation
        print(f"held-out success before {success(play(held_out, *parts, GREEDY)):.1%}", flush=True)
        for step in range(1, STEPS + 1):
            started = time.perf_counter()
            tasks = random.sample(train, TASKS_PER_STEP)
            rollouts = play([task for task in tasks for _ in range(GROUP_SIZE)], *parts, Sampling(temperature=1.0))
            groups = [rollouts[start : start + GROUP_SIZE] for start in range(0, len(rollouts), GROUP_SIZE)]
            rows = [row for group in groups for row in credit(group)]
            loss = update(policy, optimiser, rows) if rows else 0.0
            seconds = time.perf_counter() - started
            print(f"step {step}/{STEPS}  success {success(rollouts):.1%}  rows {len(rows)}  loss {loss:.4f}  "
                  f"{seconds:.1f} s", flush=True)  # fmt: skip
        print(f"held-out success after  {success(play(held_out, *parts, GREEDY)):.1%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
