"""Measures the success of a small policy on held-out tasks, greedy and sampled, without any server.

The episodes are those of the local trainers, with the strict judge: a quick check of the warm start.
`sql_agent.evaluate` evaluates through vLLM.

    python -m sql_agent.tiny_policy.measure [models/tiny-sql] [--tasks FILE] [--limit 96]
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch

from agentgrpo.chat.replies import Conversation
from agentgrpo.flags import Parser
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.splits import draw_by_kind
from dbbench_adapter.tasks.load import load_tasks
from sql_agent.datatypes import RolloutRecord
from sql_agent.environments.dbbench import DbBench
from sql_agent.local.datatypes import GREEDY, Sampling
from sql_agent.local.policy import load_policy
from sql_agent.local.rollouts import Player
from sql_agent.settings.groups import AgentConfig
from sql_agent.settings.local import AdapterConfig
from sql_agent.trained_on import LearntError, check_not_learnt

# The longest reply of 1,000 held-out oracle episodes has 89 tokens, that of reworded ones 100.
LIMITS = AgentConfig(max_turns=3, max_tokens=128)
BATCH_SIZE = 48
SEED = 1


def print_measurement(records: Sequence[RolloutRecord], name: str, seconds: float) -> None:
    by_kind: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.score.value is not None:
            by_kind["all"].append(record.score.value)
            by_kind[record.kind].append(record.score.value)
    first_replies = (next((m for m in record.messages if m["role"] == "assistant"), {}) for record in records)
    called = sum("tool_calls" in reply for reply in first_replies)
    committed = sum(record.stop_reason == "answered" for record in records)
    print(f"{name}: {len(records)} rollouts, {called} began with a tool call, {committed} committed, {seconds:.0f} s")
    for kind, values in sorted(by_kind.items()):
        print(f"  {kind:18}{sum(values) / len(values):6.1%} of {len(values)}")


def main() -> None:
    parser = Parser(description="Success of a small policy, greedy and at temperature 1.")
    parser.add_argument("model", type=Path, nargs="?", default=Path("models/tiny-sql"), help="folder of the policy")
    parser.add_argument("--tasks", "--val-file", type=Path, help="task file (default: generated held-out tasks)")
    parser.add_argument("--limit", type=int, default=96, help="tasks to play (default 96)")
    args = parser.parse_args()
    tasks = load_tasks(args.tasks) if args.tasks else generate_tasks(args.limit, seed=SEED, split="held_out")
    tasks = draw_by_kind(tasks, args.limit, SEED)
    try:
        notes = check_not_learnt(args.model, DbBench("strict"), tasks, "Name other tasks with --tasks")
    except LearntError as error:
        raise SystemExit(f"--tasks: {error}") from error
    print("".join(f"{note}\n" for note in notes), end="")
    torch.set_num_threads(1)
    policy = load_policy(args.model, adapter=AdapterConfig(), device="cpu")
    with DbBench("strict", "fc", "sqlite") as environment:
        conversation = Conversation(policy.tokenizer, environment.tools)
        lengths = sorted(len(conversation.first_prompt(environment.messages(task))) for task in tasks)
        print(f"first prompts: median {lengths[len(lengths) // 2]} tokens, longest {lengths[-1]}")
        player = Player(policy, environment, LIMITS, batch_size=BATCH_SIZE)
        for name, sampling in (("greedy", GREEDY), ("temperature 1", Sampling())):
            torch.manual_seed(SEED)
            started = time.perf_counter()
            rollouts = player.play(tasks, [sampling] * len(tasks))
            print_measurement([record for record, _ in rollouts], name, time.perf_counter() - started)


if __name__ == "__main__":
    execute(main)
