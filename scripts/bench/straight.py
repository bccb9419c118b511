"""The agent straight against a model server, in a process of its own:
`python -m scripts.bench.straight BASE_URL MODEL TASKS PART/PARTS`.

For each line `{"episodes": N, "at_once": M}` it plays N of its share of the tasks, M at a time, and answers with
`{"played": [[seconds, turns], ...]}`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core.processes import Events, end_with_parent
from dbbench_adapter.backends import Backend, open_backend
from dbbench_adapter.datatypes import Task
from dbbench_adapter.tasks.load import load_tasks
from sql_agent.agent import run_rollout, size_thread_pool
from sql_agent.datatypes import AgentConfig
from sql_agent.environments.dbbench import DbBench


async def play(url: str, model: str, tasks: Sequence[Task], backend: Backend, at_once: int) -> list[Any]:
    size_thread_pool(at_once)
    room, environment = asyncio.Semaphore(at_once), DbBench("strict", backend=backend)

    async def one(task: Task) -> tuple[float, int]:
        async with room:
            record = await run_rollout(
                task, base_url=url, model=model, environment=environment, config=AgentConfig(temperature=0.0)
            )
        if record.score.value is None:
            raise RuntimeError(f"task {task.id} was not judged: {record.score.reason}, {record.error}")
        return record.seconds, record.num_turns

    return await asyncio.gather(*map(one, tasks))


def main() -> None:
    events = Events()
    end_with_parent()
    url, model, file, share = sys.argv[1:]
    part, parts = map(int, share.split("/"))
    tasks = load_tasks(Path(file))[part::parts]
    with open_backend("sqlite") as backend, asyncio.Runner() as runner:
        for line in sys.stdin:
            order = json.loads(line)
            played = runner.run(play(url, model, tasks[: order["episodes"]], backend, order["at_once"]))
            events.emit({"played": played})


if __name__ == "__main__":
    main()
