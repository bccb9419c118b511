"""How good is a small policy? This measures its success on held-out tasks, greedy and sampled, without any server.

Plain `generate` in one process, real episodes, the strict judge: a quick look at what the warm start gave. Training and
real evaluations go through vLLM (`sql_agent.evaluate`).

    python -m sql_agent.tiny_policy.measure [models/tiny-sql] [--tasks FILE] [--limit 96]
"""

from __future__ import annotations

from core.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import json
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dbbench_adapter.backends import Backend, open_backend
from dbbench_adapter.datatypes import Task
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.protocols import fc
from dbbench_adapter.splits import draw_by_kind
from dbbench_adapter.tasks.load import load_tasks
from sql_agent.tiny_policy.tokenizer import END_ID, Message

MAX_TURNS = 3
MAX_NEW_TOKENS = 128
"""Most tokens of one reply; the longest of 1,000 held-out oracle episodes has 89, the longest reworded one 100."""
BATCH_SIZE = 48
SEED = 1
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Outcome:
    """The result of one rollout."""

    kind: str
    value: float | None
    committed: bool
    called: bool
    """Whether its first reply held a tool call that can be parsed."""


def play(policy: Any, tokenizer: Any, tasks: Sequence[Task], backend: Backend, *, sample: bool) -> list[Outcome]:
    """Play these tasks side by side; a rollout ends with its commit, a reply without a call, or after `MAX_TURNS`."""
    rollouts = [_Rollout(task, backend) for task in tasks]
    for _ in range(MAX_TURNS):
        going = [rollout for rollout in rollouts if not rollout.ended]
        if going:
            replies = _replies(policy, tokenizer, [rollout.messages for rollout in going], sample=sample)
            for rollout, reply in zip(going, replies, strict=True):
                rollout.take(reply)
    return [rollout.outcome() for rollout in rollouts]


class _Rollout:
    def __init__(self, task: Task, backend: Backend) -> None:
        self.messages: list[Message] = fc.messages(task)
        self.ended = self._called = False
        self._episode = fc.FcEpisode(task, backend, max_rounds=MAX_TURNS)

    def take(self, reply: str) -> None:
        self.messages.append({"role": "assistant", "content": reply})  # as sampled, not parsed and rendered anew
        try:
            call = json.loads(_CALL.findall(reply)[0])
            result = self._episode.call_tool(call["name"], json.dumps(call["arguments"]))
        except (ValueError, LookupError, TypeError):
            self.ended = True
            return
        self._called = True
        self.messages.append({"role": "tool", "content": result})
        self.ended = self._episode.done

    def outcome(self) -> Outcome:
        with self._episode as episode:
            return Outcome(episode.task.kind, episode.judge("strict").value, episode.committed, self._called)


@torch.no_grad()
def _replies(policy: Any, tokenizer: Any, prompts: list[list[Message]], *, sample: bool) -> list[str]:
    encoded = tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    how = {"do_sample": True, "temperature": 1.0, "top_k": 0} if sample else {"do_sample": False}
    ids = policy.generate(**encoded, **how, max_new_tokens=MAX_NEW_TOKENS)[:, encoded["input_ids"].shape[1] :].tolist()
    return [tokenizer.decode(row[: row.index(END_ID)] if END_ID in row else row) for row in ids]


def report(outcomes: Sequence[Outcome], name: str, seconds: float) -> None:
    by_kind: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.value is not None:
            by_kind["all"].append(outcome.value)
            by_kind[outcome.kind].append(outcome.value)
    called, committed = sum(outcome.called for outcome in outcomes), sum(outcome.committed for outcome in outcomes)
    print(f"{name}: {len(outcomes)} rollouts, {called} began with a tool call, {committed} committed, {seconds:.0f} s")
    for kind, values in sorted(by_kind.items()):
        print(f"  {kind:18}{sum(values) / len(values):6.1%} of {len(values)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Success of a small policy, greedy and at temperature 1.")
    parser.add_argument("model", type=Path, nargs="?", default=Path("models/tiny-sql"), help="its folder")
    parser.add_argument("--tasks", type=Path, help="task file (default: generated held-out tasks)")
    parser.add_argument("--limit", type=int, default=96, help="tasks to play (default 96)")
    args = parser.parse_args()
    tasks = load_tasks(args.tasks) if args.tasks else generate_tasks(args.limit, seed=SEED, split="held_out")
    tasks = draw_by_kind(tasks, args.limit, SEED)
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left", trust_remote_code=False)
    policy = AutoModelForCausalLM.from_pretrained(args.model, trust_remote_code=False)
    torch.set_num_threads(1)
    prompts = tokenizer.apply_chat_template([fc.messages(task) for task in tasks], add_generation_prompt=True)
    lengths = sorted(map(len, prompts["input_ids"]))
    print(f"first prompts: median {lengths[len(lengths) // 2]} tokens, longest {lengths[-1]}")
    with open_backend("sqlite") as backend:
        for name, sample in (("greedy", False), ("temperature 1", True)):
            torch.manual_seed(SEED)
            started = time.perf_counter()
            outcomes: list[Outcome] = []
            for first in range(0, len(tasks), BATCH_SIZE):
                outcomes += play(policy, tokenizer, tasks[first : first + BATCH_SIZE], backend, sample=sample)
            report(outcomes, name, time.perf_counter() - started)


if __name__ == "__main__":
    execute(main)
