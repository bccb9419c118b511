"""Measures the cost of store, proxy and runners against the same agent that talks directly to the model server.

There are two model servers: the oracle, which answers every call after 300 ms, and vLLM with the small policy on the
CPU. Three ways lead to each: straight (two plain processes), through the store with the LLM proxy, and through the
store with runner tracing. The ways share tasks, greedy decoding and 16 episodes in flight. The store way is the run's
own code: `agl store`, `RolloutManager`, `ConcurrentRunner`, `SqlLitAgent`, the LLM proxy.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.processes import tell
from bench.parts.children import Server, answer, oracle, python, serving, started, store
from bench.parts.report import Row
from dbbench_adapter.datatypes import Task
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.tasks.load import load_tasks, write_tasks
from sql_agent.settings.load import load_config
from sql_agent.verl_side.config import worker_environment

AT_ONCE = 16
PROCESSES = 2
LATENCY_MS = 300
# All episodes are asked for at once, as in a train step of 64 rows; a longer queue slows down the manager's polls.
EPISODES = 64
ROUNDS = 3
CHAIN_SETTINGS = [
    f"rollout.n_runners={PROCESSES}",
    f"rollout.runner_concurrency={AT_ONCE // PROCESSES}",
    "data.max_response_tokens=100000",  # the oracle's tokens are bytes
    "rollout.max_resamples=0",  # there is no file of training tasks to draw from
]


@dataclass(frozen=True)
class Load:
    """The measurements of `EPISODES` played with `AT_ONCE` in flight."""

    wall_s: float
    rollout_s: float
    """Mean time inside `run_rollout`."""
    around_s: float
    """Mean time from a runner's claim to the rollout's end in the store, without `run_rollout`."""
    turns: float
    """Model calls per episode, mean."""
    batch_s: float
    """Wall clock of `AT_ONCE` episodes played as one batch, nothing queued behind them."""
    cpu_s: dict[str, float]
    """CPU seconds of each part over all the episodes, without the model server."""

    @property
    def episodes_per_s(self) -> float:
        return EPISODES / self.wall_s


def measure(model: Path, folder: Path) -> list[Row]:
    tasks, log = folder / "tasks.jsonl", folder / "overhead.log"
    write_tasks(tasks, generate_tasks(EPISODES, seed=0, split="held_out"))
    with oracle(tasks, log, LATENCY_MS) as server:
        rows = list(_compare(server.url, "oracle", tasks, log, f"{LATENCY_MS} ms server", 0.95))
    with _vllm(model, log) as server:
        return rows + list(_compare(server.url, str(model), tasks, log, "vLLM on the CPU", 0.5))


def _compare(url: str, model: str, tasks: Path, log: Path, server: str, target: float) -> Iterator[Row]:
    direct = _direct(url, model, tasks)
    cpu_ms = 1000 * direct.cpu_s["agents"] / (EPISODES * direct.turns)
    limit = f"{direct.turns:.1f} calls an episode, {cpu_ms:.1f} ms CPU of the agent a call"
    yield Row(f"{server}: straight", direct.episodes_per_s, "episodes/s", limit=limit)
    for proxy, name in ((True, "store + LLM proxy"), (False, "store, runner tracing")):
        load = _through_store(url, model, tasks, log, proxy=proxy)
        yield from overhead_rows(f"{server}: {name}", direct, load, target)


def overhead_rows(name: str, direct: Load, load: Load, target: float) -> list[Row]:
    """The ratio of episodes/s, and where the difference goes, in milliseconds per model call."""
    inside_ms, around_ms = (1000 * s / load.turns for s in (load.rollout_s - direct.rollout_s, load.around_s))
    ratio, batch = load.episodes_per_s / direct.episodes_per_s, direct.batch_s / load.batch_s
    calls = EPISODES * load.turns
    return [
        Row(f"{name}, share of the straight episodes/s", ratio, "", target, "at least", "CPU of proxy and store"),
        Row("... episodes/s", load.episodes_per_s, "episodes/s"),
        Row("... added per call inside the rollout", inside_ms, "ms", limit="proxy, and sharing the cores"),
        Row("... added per call around the rollout", around_ms, "ms", limit="spans, end of a rollout"),
        Row("... one batch of 16, share of the straight one's", batch, "", limit="bursts, polls"),
        *(Row(f"... CPU per call: {part}", 1000 * seconds / calls, "ms") for part, seconds in load.cpu_s.items()),
    ]


def _direct(url: str, model: str, tasks: Path) -> Load:
    with ExitStack() as stack:
        spawn = multiprocessing.get_context("spawn")
        pools = [stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn)) for _ in range(PROCESSES)]

        def play(episodes: int) -> tuple[float, list[tuple[float, int]], float]:
            """The wall clock of `episodes`, spread over the processes; (seconds, turns) of each; CPU seconds."""
            at = time.perf_counter()
            playing = [
                pool.submit(play_straight, f"{url}/v1", model, tasks, slice(part, episodes, PROCESSES))
                for part, pool in enumerate(pools)
            ]
            played, cpu = zip(*(share.result() for share in playing), strict=True)
            return time.perf_counter() - at, list(itertools.chain.from_iterable(played)), sum(cpu)

        play(AT_ONCE)  # warms up imports, connections and the server
        batch_s, *_ = play(AT_ONCE)
        walls_s, rounds, cpu = zip(*(play(EPISODES) for _ in range(ROUNDS)), strict=True)
    seconds, turns = zip(*itertools.chain.from_iterable(rounds), strict=True)
    return Load(
        wall_s=statistics.median(walls_s),
        rollout_s=statistics.fmean(seconds),
        around_s=0.0,
        turns=statistics.fmean(turns),
        batch_s=batch_s,
        cpu_s={"agents": statistics.fmean(cpu)},
    )


def play_straight(url: str, model: str, tasks: Path, share: slice) -> tuple[list[tuple[float, int]], float]:
    """Play a share of the tasks in this process; return (seconds, turns) of each, and the CPU seconds of all.

    Raises:
        RuntimeError: an episode was not judged.
    """
    from dbbench_adapter.engines import open_backend
    from sql_agent.environments.dbbench import DbBench
    from sql_agent.play.served import run_rollout, size_thread_pool
    from sql_agent.settings.groups import AgentConfig

    async def play_all() -> list[tuple[float, int]]:
        size_thread_pool(AT_ONCE // PROCESSES)
        room, config = asyncio.Semaphore(AT_ONCE // PROCESSES), AgentConfig(temperature=0.0)

        async def play(task: Task) -> tuple[float, int]:
            async with room:
                record = await run_rollout(task, base_url=url, model=model, environment=environment, config=config)
            if record.score.value is None:
                raise RuntimeError(f"task {task.id} was not judged: {record.score.reason}, {record.error}")
            return record.seconds, record.num_turns

        return await asyncio.gather(*map(play, load_tasks(tasks)[share]))

    with open_backend("sqlite") as backend:
        environment, before = DbBench("strict", backend=backend), time.process_time()
        return asyncio.run(play_all()), time.process_time() - before


def _through_store(url: str, model: str, tasks: Path, log: Path, *, proxy: bool) -> Load:
    with store(log) as kept:
        run_dir = log.with_name(f"run-{kept.port}")
        settings = [f"store.address={kept.url}", f"llm_proxy={str(proxy).lower()}", f"run_dir={run_dir}"]
        order = {"store_url": kept.url, "store_pid": kept.pid, "server": url, "model": model, "tasks": str(tasks)}
        environment = worker_environment(load_config(None, settings), cpu=True) | {"AGL_MANAGED_STORE": "0"}
        with started(python("bench.parts.chain"), log, environment, talks=True) as chain:
            tell(chain, {**order, "settings": settings + CHAIN_SETTINGS})
            return Load(**answer(chain, log))


# `import verl` loads sql_agent.verl_side.plugin, as in verl's own server process.
_VLLM = "import verl; from vllm.entrypoints.cli.main import main; main()"


@contextmanager
def _vllm(model: Path, log: Path) -> Iterator[Server]:
    # Start vLLM as verl starts it in a run on a CPU (`sql_agent.verl_side.config`).
    cfg = load_config(None)
    context = cfg.data.prompt_tokens + cfg.data.max_response_tokens
    flags = {
        "host": "127.0.0.1",
        "dtype": "float32",
        "seed": cfg.seed,
        "max-model-len": context,
        "max-num-batched-tokens": max(4096, context),
        "max-num-seqs": cfg.engine.max_num_seqs,
        "tool-call-parser": cfg.rollout.tool_parser,
        "distributed-executor-backend": "uni",
        "kv-cache-memory-bytes": 2**30,
    }
    command = [sys.executable, "-c", _VLLM, "serve", str(model), "--enforce-eager", "--enable-auto-tool-choice"]
    command += [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    with serving(command, "/health", log, worker_environment(cfg, cpu=True)) as server:
        yield server
