"""Write tasks as the rows that trainers read: verl's parquet and agent-lightning's rollout inputs.

    agentgrpo tasks export --input FILE... --format verl --output train.parquet
    agentgrpo tasks export --input FILE... --format agl --output train.jsonl

The gold is only in fields that no model reads: `extra_info.task` of a verl row, and the input of an agent-lightning
rollout. `examples/rllm` writes rLLM's rows.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("dbbench_adapter.export")

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.commands import failed
from agentgrpo.flags import Parser
from agentgrpo.json_text import JsonObject
from agentgrpo.outputs import OutputError, check_output, written
from dbbench_adapter.datatypes import Task
from dbbench_adapter.interaction import Message
from dbbench_adapter.protocols import PROTOCOLS, ProtocolName
from dbbench_adapter.tasks.load import TaskFileError, load_tasks, refuse_repeated_ids, write_tasks

AGENT_NAME = "sql_agent"


def verl_rows(
    tasks: Sequence[Any], messages: Callable[[Any], Sequence[Message]], source: str | None = None
) -> list[dict[str, Any]]:
    """One row per task: `data_source`, `prompt`, `ability`, `reward_model`, `extra_info`, `agent_name`.

    The task is JSON text in `extra_info.task`, since rows with lists of mixed types do not fit parquet. verl counts the
    tokens of the prompt and displays it; it does not play it.

    Args:
        messages: the agent's first prompt of a task.
        source: `data_source` of all rows; None: each task's own.
    """
    return [
        {
            "data_source": source or task.source,
            "prompt": messages(task),
            "ability": task.kind,
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "task": json.dumps(task.to_dict())},
            "agent_name": AGENT_NAME,
        }
        for index, task in enumerate(tasks)
    ]


def write_verl_parquet(tasks: Sequence[Task], path: Path, protocol: ProtocolName = "fc") -> None:
    write_rows(verl_rows(tasks, PROTOCOLS[protocol].messages), path)


def write_rows(rows: Sequence[JsonObject], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with written(path) as part:
        pq.write_table(pa.Table.from_pylist(list(rows)), part)


# The suffix of each format's files, by which readers recognise them, and the function that writes them.
FORMATS = {
    "verl": (".parquet", write_verl_parquet),
    "agl": (".jsonl", lambda tasks, path: write_tasks(path, tasks)),  # rollout inputs; the agent calls `Task.from_dict`
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="agentgrpo tasks export", description="Write tasks as rows for verl or agent-lightning.")
    parser.add_argument("--input", type=Path, nargs="+", required=True, help="task files")
    parser.add_argument("--format", choices=sorted(FORMATS), required=True, help="agl: agent-lightning")
    parser.add_argument("--output", type=Path, required=True, help=".parquet for verl, .jsonl for agl")
    args = parser.parse_args(argv)
    suffix, write = FORMATS[args.format]
    try:
        if args.output.suffix != suffix:
            raise OutputError(f"{args.output} has to end in {suffix} for --format {args.format}; name another --output")
        check_output(args.output, "--output")
        tasks = [task for file in args.input for task in load_tasks(file)]
        refuse_repeated_ids(tasks)
    except (TaskFileError, OutputError) as error:
        return failed(error, 2)
    write(tasks, args.output)
    print(f"{len(tasks)} rows for {args.format}: {args.output}")
    return 0
