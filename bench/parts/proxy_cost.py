"""Measures what the LLM proxy adds to a call, on each way of a call, and how many calls per second it allows.

A plain HTTP client, without an agent, calls scripted servers in separate processes. One answers after `LATENCY_MS`, to
measure how much longer a call takes; the other answers at once, to measure the most calls per second.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.processes import tell
from bench.parts.children import Server, answer, cpu_s, oracle, python, started, store
from bench.parts.proxy_calls import Order, call_all
from bench.parts.report import Row
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.tasks.load import write_tasks
from sql_agent.model_address.request_guard import give_token

AT_ONCE = 16
LATENCY_MS = 100
# The number of calls to the slow server, by calls in flight.
CALLS = {1: 40, AT_ONCE: 320}
FULL_SPEED_CALLS = 480
DIRECT = "direct"
# agent-lightning's own callbacks leave this many spans in the store for a call; ours leave one.
DEFAULT_SPANS = 7
# The ways of a call, each with its largest cost.
TRACING, OURS, DEFAULT = WAYS = {
    "runner tracing, no proxy": "the caller writes the span, beside the next call",
    "our proxy": "reading and writing the answer twice; its span",
    "agent-lightning's proxy as it comes": "LiteLLM, a sequence id asked of the store, seven spans",
}


@dataclass(frozen=True)
class Cost:
    """The calls of one way. Milliseconds are medians."""

    alone_ms: float
    crowd_ms: float
    """The median with `AT_ONCE` calls in flight."""
    calls_per_s: float
    """Calls per second to a server that answers at once, `AT_ONCE` in flight, until the store has every span."""
    cpu_ms: Mapping[str, float]
    """CPU milliseconds per call of proxy and store."""


def measure(_model: Path, folder: Path) -> list[Row]:
    tasks, log = folder / "proxy_tasks.jsonl", folder / "proxy_cost.log"
    write_tasks(tasks, generate_tasks(1, seed=0, split="held_out"))
    give_token(shared=False, own_store=False)
    with ExitStack() as stack:
        slow, fast = (stack.enter_context(oracle(tasks, log, latency_ms)) for latency_ms in (LATENCY_MS, 0))
        kept = stack.enter_context(store(log))
        client = stack.enter_context(ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")))

        def cost(urls: list[str], model: str, spans: int, pids: Mapping[str, int], *, traced: bool = False) -> Cost:
            """Measure calls to the slow and the fast server behind these addresses."""

            def calls(url: str, count: int, at_once: int = AT_ONCE) -> tuple[list[float], float]:
                order = Order(url, model, count, at_once, spans, traced)
                return client.submit(call_all, order, kept.url).result()

            for url in urls:
                calls(url, AT_ONCE)  # warms up
            ms = {at_once: statistics.median(calls(urls[0], count, at_once)[0]) for at_once, count in CALLS.items()}
            before = {name: cpu_s(pid) for name, pid in pids.items()}
            _, wall_s = calls(urls[1], FULL_SPEED_CALLS)
            return Cost(
                ms[1],
                ms[AT_ONCE],
                FULL_SPEED_CALLS / wall_s,
                {name: 1000 * (cpu_s(pid) - before[name]) / FULL_SPEED_CALLS for name, pid in pids.items()},
            )

        straight = [f"{slow.url}/v1", f"{fast.url}/v1"]
        costs = {DIRECT: cost(straight, "oracle", 0, {})}
        costs[TRACING] = cost(straight, "oracle", 1, {"store": kept.pid}, traced=True)
        with _proxies("sql_agent.lightning.llm_proxy", kept, [slow, fast], log) as (urls, pid):
            routes = [f"{url}/{{rollout}}/v1" for url in urls]
            costs[OURS] = cost(routes, "policy-0", 1, {"proxy": pid, "store": kept.pid})
        with _proxies("bench.parts.default_proxy", kept, [slow, fast], log) as (urls, pid):
            routes = [f"{url}/{{rollout}}/v1" for url in urls]
            costs[DEFAULT] = cost(routes, "policy-0", DEFAULT_SPANS, {"proxy": pid, "store": kept.pid})
    return proxy_rows(costs)


def proxy_rows(costs: Mapping[str, Cost]) -> list[Row]:
    """What each of `WAYS` adds to a direct call, and its share of the direct calls per second."""
    direct = costs[DIRECT]
    at_once = f"... of one that answers at once, {AT_ONCE} at once"
    rows = [
        Row(f"direct: a call of a server that takes {LATENCY_MS} ms", direct.alone_ms, "ms"),
        Row(f"... {AT_ONCE} at once", direct.crowd_ms, "ms"),
        Row(at_once, direct.calls_per_s, "calls/s", limit="client, server"),
    ]
    for name, limit in WAYS.items():
        cost = costs[name]
        share = f"{cost.calls_per_s / direct.calls_per_s:.0%} of direct"
        rows += [
            Row(f"{name}: added per call", cost.alone_ms - direct.alone_ms, "ms", limit=limit),
            Row(f"... {AT_ONCE} at once", cost.crowd_ms - direct.crowd_ms, "ms"),
            Row("... calls/s", cost.calls_per_s, "calls/s", limit=share),
            *(Row(f"... CPU per call: {part}", ms, "ms") for part, ms in cost.cpu_ms.items()),
        ]
    return rows


@contextmanager
def _proxies(module: str, kept: Server, servers: list[Server], log: Path) -> Iterator[tuple[list[str], int]]:
    """Start a proxy before each server; yield their addresses, and the pid of the last."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(started(python(module, "--store", kept.url), log, talks=True)) for _ in servers]
        for proxy, server in zip(proxies, servers, strict=True):
            tell(proxy, {"model": "oracle", "backends": [server.url]})
        yield [answer(proxy, log)["url"] for proxy in proxies], proxies[-1].pid
