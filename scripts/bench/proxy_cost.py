"""What the LLM proxy adds to a call, in each way a call can take, and how many calls a second it lets through.

Calls are made by a bare HTTP client, without an agent, of a scripted server in a process of its own: one that answers
after `LATENCY_MS`, for the time that a call takes longer, and one that answers at once, for the most calls a second.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.machine import free_port
from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.tasks.load import write_tasks
from scripts.bench.children import answer, cpu_s, python, say, started, wait_for
from scripts.bench.report import Row
from sql_agent.lightning.door import give_token

AT_ONCE = 16
LATENCY_MS = 100
CALLS = {1: 40, AT_ONCE: 320}
"""By calls in flight, of the server that takes its time."""
FULL_SPEED_CALLS = 480
START_S = 120.0
DIRECT = "direct"


@dataclass(frozen=True)
class Way:
    """How a call can go."""

    spans: int
    """That it leaves in the store."""
    limit: str
    """What it costs most by."""


WAYS = {
    "runner tracing, no proxy": Way(1, "the caller writes the span, beside the next call"),
    "our proxy": Way(1, "reading and writing the answer twice; its span"),
    "our proxy, through LiteLLM": Way(0, "LiteLLM's translation; no span, the call belongs to no rollout"),
    "agent-lightning's proxy as it comes": Way(7, "LiteLLM, a sequence id asked of the store, seven spans"),
}


@dataclass(frozen=True)
class Cost:
    """One way's calls. Milliseconds are medians."""

    alone_ms: float
    crowd_ms: float
    """With `AT_ONCE` in flight."""
    calls_per_s: float
    """Of a server that answers at once, `AT_ONCE` in flight, until the store has every span."""
    cpu_ms: Mapping[str, float]
    """CPU per call of proxy and store."""


def measure(_model: Path, folder: Path) -> list[Row]:
    tasks, log = folder / "proxy_tasks.jsonl", folder / "proxy_cost.log"
    write_tasks(tasks, generate_tasks(1, seed=0, split="held_out"))
    give_token(shared=False, own_store=False)
    with ExitStack() as stack:
        slow = stack.enter_context(_oracle(tasks, log, LATENCY_MS))
        fast = stack.enter_context(_oracle(tasks, log, 0))
        store_url, store = stack.enter_context(_store(log))
        client = stack.enter_context(
            started(python("scripts.bench.proxy_calls", store_url, str(tasks)), log, talks=True)
        )

        def cost(urls: Sequence[str], model: str, pids: Mapping[str, int], spans: int, *, traced: bool = False) -> Cost:
            slow_url, fast_url = urls
            order = {"model": model, "traced": traced, "spans": spans}

            def calls(url: str, count: int, at_once: int) -> Any:
                say(client, {**order, "url": url, "calls": count, "at_once": at_once})
                return answer(client, log)

            calls(slow_url, AT_ONCE, AT_ONCE)  # warms up
            calls(fast_url, AT_ONCE, AT_ONCE)
            ms = {at_once: calls(slow_url, count, at_once)["latency_ms"] for at_once, count in CALLS.items()}
            before = {name: cpu_s(pid) for name, pid in pids.items()}
            wall_s = calls(fast_url, FULL_SPEED_CALLS, AT_ONCE)["wall_s"]
            return Cost(
                statistics.median(ms[1]),
                statistics.median(ms[AT_ONCE]),
                FULL_SPEED_CALLS / wall_s,
                {name: 1000 * (cpu_s(pid) - before[name]) / FULL_SPEED_CALLS for name, pid in pids.items()},
            )

        straight = [f"{slow}/v1", f"{fast}/v1"]
        costs = {DIRECT: cost(straight, "oracle", {}, 0)}
        tracing, ours, litellm, default = WAYS
        costs[tracing] = cost(straight, "oracle", {"store": store}, WAYS[tracing].spans, traced=True)
        for name, module in ((ours, "sql_agent.lightning.llm_proxy"), (default, "scripts.bench.default_proxy")):
            with ExitStack() as proxies:
                (to_slow, _), (to_fast, pid) = (
                    proxies.enter_context(_proxy(module, store_url, server, log)) for server in (slow, fast)
                )
                routes = [f"{url}/{{rollout}}/v1" for url in (to_slow, to_fast)]
                costs[name] = cost(routes, "policy-0", {"proxy": pid, "store": store}, WAYS[name].spans)
                if name == ours:
                    costs[litellm] = cost([f"{to_slow}/v1", f"{to_fast}/v1"], "policy-0", {"proxy": pid}, 0)
    return proxy_rows(costs)


def proxy_rows(costs: Mapping[str, Cost]) -> list[Row]:
    """What each of `WAYS` adds to a direct call, and its share of the direct calls a second."""
    direct = costs[DIRECT]
    rows = [
        Row(f"direct: a call of a server that takes {LATENCY_MS} ms", direct.alone_ms, "ms"),
        Row(f"... {AT_ONCE} at once", direct.crowd_ms, "ms"),
        Row(
            f"... of one that answers at once, {AT_ONCE} at once", direct.calls_per_s, "calls/s", limit="client, server"
        ),
    ]
    for name, way in WAYS.items():
        cost = costs[name]
        rows += [
            Row(f"{name}: added per call", cost.alone_ms - direct.alone_ms, "ms", limit=way.limit),
            Row(f"... {AT_ONCE} at once", cost.crowd_ms - direct.crowd_ms, "ms"),
            Row(
                "... calls/s",
                cost.calls_per_s,
                "calls/s",
                limit=f"{cost.calls_per_s / direct.calls_per_s:.0%} of direct",
            ),
            *(Row(f"... CPU per call: {part}", ms, "ms") for part, ms in cost.cpu_ms.items()),
        ]
    return rows


@contextmanager
def _oracle(tasks: Path, log: Path, latency_ms: int) -> Iterator[str]:
    port = free_port()
    command = python("sql_agent.oracle", "--tasks", str(tasks), "--port", str(port), "--latency-ms", str(latency_ms))
    with started(command, log) as server:
        wait_for(f"http://127.0.0.1:{port}/v1/models", server, log, START_S)
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _store(log: Path) -> Iterator[tuple[str, int]]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    agl = str(Path(sys.executable).with_name("agl"))
    with started([agl, "store", "--host", "127.0.0.1", "--port", str(port)], log) as store:
        wait_for(f"{url}/v1/agl/health", store, log, START_S)
        yield url, store.pid


@contextmanager
def _proxy(module: str, store_url: str, server: str, log: Path) -> Iterator[tuple[str, int]]:
    arguments: Sequence[str] = (
        ("--store", store_url) if module == "sql_agent.lightning.llm_proxy" else (store_url, server, "oracle")
    )
    with started(python(module, *arguments), log, talks=True) as proxy:
        if module == "sql_agent.lightning.llm_proxy":
            say(proxy, {"model": "oracle", "backends": [server]})
        yield answer(proxy, log)["url"], proxy.pid
