"""The success of trained weights on the held-out tasks, the same for all peers: `python -m bench.parts.peers.held_out`.

It takes a task file, the limit of a reply and folders of weights, and prints a line of JSON for each folder: the share
of the tasks that a greedy rollout solves. The rollouts are those of the local trainers, in this one process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from agentgrpo.processes import end_with_parent

# A rollout that has not committed by then is a failure; those that commit take two replies.
MAX_TURNS = 4


def main() -> None:
    end_with_parent()
    import torch

    from bench.parts.peers.world import open_world
    from dbbench_adapter.tasks.load import load_tasks
    from sql_agent.local.datatypes import GREEDY
    from sql_agent.local.policy import load_policy
    from sql_agent.local.rollouts import Player
    from sql_agent.settings.groups import AgentConfig
    from sql_agent.settings.local import AdapterConfig

    tasks, limits = load_tasks(Path(sys.argv[1])), AgentConfig(max_turns=MAX_TURNS, max_tokens=int(sys.argv[2]))
    torch.set_num_threads(1)  # two would wait for each other on a busy machine, and gain little with a small policy
    with open_world() as world:
        for folder in sys.argv[3:]:
            policy = load_policy(Path(folder), adapter=AdapterConfig(), device="cpu")
            played = Player(policy, world, limits, batch_size=48).play(tasks, [GREEDY] * len(tasks))
            solved = [record.score.value == 1.0 for record, _ in played]
            print(json.dumps(sum(solved) / len(solved)), flush=True)


if __name__ == "__main__":
    main()
