"""How a run's processes grow over 200 steps of rollouts: store in the command, outside by ours, by `agl store`.

Everything around verl is real (`scripts.bench.long_run_player`); the model is a script, so that a step takes a second.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.load import write_tasks
from scripts.bench.children import answer, free_port, python, started, wait_for
from scripts.bench.report import Row
from sql_agent import oracle
from sql_agent.config import load_config
from sql_agent.verl_config import worker_environment

STEPS, WARM_STEPS = 200, 20
"""Growth is counted from the end of the warm steps on: caches and pools are full then."""
ROLLOUTS = 16
TURNS = 4
STEP_ROLLOUTS = 512
"""Of the step whose growth is told where a store keeps everything."""
MOST_GROWTH_MIB = 32.0
STORES = {
    "own": "the store kept in the command",
    "outside": "`python -m sql_agent.store_server`",
    "agl": "`agl store`",
}
START_S = 180.0


def measure(folder: Path, stores: Sequence[str] = tuple(STORES), *, steps: int = STEPS) -> list[Row]:
    return [row for store in stores for row in _rows(store, _run(store, folder, steps))]


def _rows(store: str, seen: list[dict[str, float]]) -> Iterator[Row]:
    """
    Args:
        seen: after every step, the resident memory of each part, in MiB.
    """
    warm, end = seen[WARM_STEPS - 1], seen[-1]
    steps = len(seen) - WARM_STEPS
    holder = "command" if store == "own" else "store"
    for part in end:
        what = f"{STORES[store]}: {part}" + (", which holds the store" if part == holder else "")
        growth = end[part] - warm[part]
        target = None if store == "agl" and part == holder else MOST_GROWTH_MIB
        limit = f"{warm[part]:,.0f} MiB after {WARM_STEPS} steps, {end[part]:,.0f} after {len(seen)}"
        yield Row(f"{what}: growth", growth, "MiB", target, limit=limit)
        if target is None:
            each = growth / (steps * ROLLOUTS)
            yield Row(f"... per step of {STEP_ROLLOUTS} such rollouts", each * STEP_ROLLOUTS, "MiB")


def _run(store: str, folder: Path, steps: int) -> list[dict[str, float]]:
    port, log = free_port(), folder / f"{store}.log"
    tasks = folder / "tasks.jsonl"
    write_tasks(tasks, generate_tasks(ROLLOUTS, seed=0, split="held_out"))
    address = f"http://127.0.0.1:{port}"
    settings = [
        f"store.port={port}" if store == "own" else f"store.address={address}",
        "llm_proxy=true",
        f"run_dir={folder / f'run-{store}'}",
        "rollout.n_runners=2",
        f"rollout.runner_concurrency={ROLLOUTS // 2}",
        "data.max_response_tokens=100000",  # the script's tokens are bytes
        "rollout.redraws=0",
    ]
    environment = worker_environment(load_config(None, settings), cpu=True)
    environment |= {} if store == "own" else {"AGL_MANAGED_STORE": "0"}
    seen = []
    with oracle.serve(oracle.app(script())) as url, _store(store, port, log) as pid:
        arguments = (address, str(pid), url.removesuffix("/v1"), str(tasks), str(steps))
        with started(python("scripts.bench.long_run_player", *arguments, *settings), log, environment, talks=True) as p:
            for step in range(steps):
                seen.append(answer(p, log)["rss_mib"])
                if (step + 1) % WARM_STEPS == 0:
                    print(store, step + 1, json.dumps(seen[-1]), file=sys.stderr, flush=True)
    return seen


def script() -> oracle.Script:
    """`TURNS` replies: looks at the whole table again and again, each time with a comment, then commits."""
    look = "SELECT * FROM sqlite_master -- " + 40 * "one more look at what is there; "
    looks = [oracle.calls(oracle.call("execute_sql", {"query": look})) for _ in range(TURNS - 1)]
    return oracle.recite([*looks, oracle.calls(oracle.call("commit_final_answer", {"answers": ["0"]}))])


@contextmanager
def _store(store: str, port: int, log: Path) -> Iterator[int]:
    """The process id of a store that is kept outside; 0 where the command keeps it."""
    if store == "own":
        yield 0
        return
    agl = str(Path(sys.executable).with_name("agl"))
    command = [agl, "store", "--host", "127.0.0.1"] if store == "agl" else python("sql_agent.store_server")
    with started([*command, "--port", str(port)], log, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}) as process:
        wait_for(f"http://127.0.0.1:{port}/v1/agl/health", process, log, START_S)
        yield process.pid
