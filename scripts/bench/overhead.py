"""What store, proxy and runners cost against the same agent talking straight to the model server.

Two model servers: the oracle, which answers every call after 300 ms, and vLLM with the small policy on the CPU. Three
ways to each: straight (two plain processes), through the store with the LLM proxy, through the store with runner
tracing. The ways share tasks, greedy decoding and 16 episodes in flight. The store way is the run's own code:
`agl store`, `LightningRolloutManager`, `ConcurrentRunner`, `SqlLitAgent`, the LLM proxy.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.machine import free_port
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.tasks.load import write_tasks
from scripts.bench.children import answer, cpu_s, python, say, started, wait_for
from scripts.bench.report import Row
from sql_agent.config import load_config
from sql_agent.verl_side.config import worker_environment

AT_ONCE = 16
PROCESSES = 2
LATENCY_MS = 300
EPISODES = 64
"""Asked for at once, as a train step of 64 rows would; a longer queue makes the manager's looks dearer."""
ROUNDS = 3
START_S = 180.0


@dataclass(frozen=True)
class Load:
    """`EPISODES` played with `AT_ONCE` in flight."""

    wall_s: float
    rollout_s: float
    """Mean time inside `run_rollout`."""
    around_s: float
    """Mean time from a runner's claim to the rollout's end in the store, `run_rollout` left out."""
    turns: float
    """Model calls per episode, mean."""
    batch_s: float
    """Wall clock of `AT_ONCE` episodes played as one batch, nothing queued behind them."""
    cpu_s: dict[str, float]
    """CPU seconds of each part over all the episodes; the model server left out."""

    @property
    def episodes_per_s(self) -> float:
        return EPISODES / self.wall_s


def measure(model: Path, folder: Path) -> list[Row]:
    rows: list[Row] = []
    tasks = folder / "tasks.jsonl"
    write_tasks(tasks, generate_tasks(EPISODES, seed=0, split="held_out"))
    with _oracle(tasks, folder) as url:
        rows += _compare(url, "oracle", tasks, folder, f"{LATENCY_MS} ms server", 0.95)
    with _vllm(model, folder) as url:
        rows += _compare(url, str(model), tasks, folder, "vLLM on the CPU", 0.5)
    return rows


def _compare(url: str, model: str, tasks: Path, folder: Path, server: str, target: float) -> Iterator[Row]:
    direct = _direct(url, model, tasks, folder)
    cpu_ms = 1000 * direct.cpu_s["agents"] / (EPISODES * direct.turns)
    limit = f"{direct.turns:.1f} calls an episode, {cpu_ms:.1f} ms CPU of the agent a call"
    yield Row(f"{server}: straight", direct.episodes_per_s, "episodes/s", limit=limit)
    for proxy, name in ((True, "store + LLM proxy"), (False, "store, runner tracing")):
        load, alone = _through_store(url, model, tasks, folder, proxy=proxy)
        yield from overhead_rows(f"{server}: {name}", direct, load, target, alone)


def overhead_rows(name: str, direct: Load, load: Load, target: float, alone_ms: dict[str, float]) -> list[Row]:
    """The ratio of episodes/s and where the difference goes, in milliseconds per model call.

    Args:
        alone_ms: what single operations take with nothing else going on.
    """
    inside = load.rollout_s - direct.rollout_s
    per_call = 1000 / load.turns
    ratio = load.episodes_per_s / direct.episodes_per_s
    rows = [
        Row(f"{name}, share of the straight episodes/s", ratio, "", target, "at least", "CPU of proxy and store"),
        Row("... episodes/s", load.episodes_per_s, "episodes/s"),
        Row("... added per call inside the rollout", inside * per_call, "ms", limit="proxy, and sharing the cores"),
        Row("... added per call around the rollout", load.around_s * per_call, "ms", limit="spans, end of a rollout"),
        Row(
            "... one batch of 16, share of the straight one's", direct.batch_s / load.batch_s, "", limit="bursts, polls"
        ),
    ]
    calls = EPISODES * load.turns
    rows += [Row(f"... CPU per call: {part}", 1000 * seconds / calls, "ms") for part, seconds in load.cpu_s.items()]
    return rows + [Row(f"... alone: {what}", ms, "ms") for what, ms in alone_ms.items()]


def _direct(url: str, model: str, tasks: Path, folder: Path) -> Load:
    log = folder / "direct.log"
    with ExitStack() as stack:
        shares = [
            python("scripts.bench.straight", url, model, str(tasks), f"{p}/{PROCESSES}") for p in range(PROCESSES)
        ]
        players = [stack.enter_context(started(share, log, talks=True)) for share in shares]
        _play(players, log, AT_ONCE)  # warms up imports, connections and the server
        batch_s, _ = _play(players, log, AT_ONCE)
        before = sum(cpu_s(player.pid) for player in players)
        walls_s, rounds = zip(*(_play(players, log, EPISODES) for _ in range(ROUNDS)), strict=True)
        agents_s = (sum(cpu_s(player.pid) for player in players) - before) / ROUNDS
    played = [episode for episodes in rounds for episode in episodes]
    return Load(
        wall_s=statistics.median(walls_s),
        rollout_s=statistics.fmean(seconds for seconds, _ in played),
        around_s=0.0,
        turns=statistics.fmean(turns for _, turns in played),
        batch_s=batch_s,
        cpu_s={"agents": agents_s},
    )


def _play(players: Sequence[Any], log: Path, episodes: int) -> tuple[float, list[tuple[float, int]]]:
    """Wall clock of `episodes`, spread over the processes, and (seconds, turns) of each."""
    at = time.perf_counter()
    for player in players:
        say(player, {"episodes": episodes // PROCESSES, "at_once": AT_ONCE // PROCESSES})
    played = list(itertools.chain.from_iterable(answer(player, log)["played"] for player in players))
    return time.perf_counter() - at, played


def _through_store(url: str, model: str, tasks: Path, folder: Path, *, proxy: bool) -> tuple[Load, dict[str, float]]:
    log, port = folder / f"store-{'proxy' if proxy else 'runner'}.log", free_port()
    store_url = f"http://127.0.0.1:{port}"
    agl = str(Path(sys.executable).with_name("agl"))
    settings = [
        f"store.address={store_url}",
        f"llm_proxy={str(proxy).lower()}",
        f"run_dir={folder / f'run-{port}'}",
        f"rollout.n_runners={PROCESSES}",
        f"rollout.runner_concurrency={AT_ONCE // PROCESSES}",
        "data.max_response_tokens=100000",  # the oracle's tokens are bytes
        "rollout.redraws=0",  # validation batches only: there is no file of training tasks to draw from
    ]
    environment = worker_environment(load_config(None, settings), cpu=True) | {"AGL_MANAGED_STORE": "0"}
    with started([agl, "store", "--host", "127.0.0.1", "--port", str(port)], log, environment) as store:
        wait_for(f"{store_url}/v1/agl/health", store, log, START_S)
        server = (url.removesuffix("/v1"), model, str(tasks))
        command = python("scripts.bench.through_store", str(store.pid), *server, *settings)
        with started(command, log, environment, talks=True) as chain:
            result = answer(chain, log)
    return Load(**result["load"]), result["alone_ms"]


@contextmanager
def _oracle(tasks: Path, folder: Path) -> Iterator[str]:
    port, log = free_port(), folder / "oracle.log"
    command = python("sql_agent.oracle", "--tasks", str(tasks), "--port", str(port), "--latency-ms", str(LATENCY_MS))
    with started(command, log) as server:
        wait_for(f"http://127.0.0.1:{port}/v1/models", server, log, START_S)
        yield f"http://127.0.0.1:{port}/v1"


# `import verl` loads sql_agent.verl_side.plugin, as in verl's own server process.
_VLLM = "import verl; from vllm.entrypoints.cli.main import main; main()"


@contextmanager
def _vllm(model: Path, folder: Path) -> Iterator[str]:
    """vLLM as verl starts it in a run on a CPU (`sql_agent.verl_side.config`)."""
    port, log, cfg = free_port(), folder / "vllm.log", load_config(None)
    context = cfg.data.max_prompt_tokens + cfg.data.max_response_tokens
    flags = {
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "seed": cfg.seed,
        "max-model-len": context,
        "max-num-batched-tokens": max(4096, context),
        "max-num-seqs": cfg.engine.max_num_seqs,
        "tool-call-parser": cfg.rollout.tool_parser,
        "distributed-executor-backend": "uni",
    }
    command = [sys.executable, "-c", _VLLM, "serve", str(model), "--enforce-eager", "--enable-auto-tool-choice"]
    command += [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    with started(command, log, worker_environment(cfg, cpu=True)) as server:
        wait_for(f"http://127.0.0.1:{port}/health", server, log, START_S)
        yield f"http://127.0.0.1:{port}/v1"
