"""Measures a run's servers under hostile requests: `python -m bench.hostile_requests`; about two minutes.

Store, LLM proxy and a guarded model server, which a script answers, run in processes of their own. Callers play
rollouts through the signed address all the time, while another process attacks: with header lines without end,
connections that send a byte a second, bodies and nesting under the signed address of another rollout, bodies under it
that never end, and a hundred requests at once. The exit status is 1 if a call is lost or waits half a second longer
than without an attack, or if a server's memory grows.
"""

from __future__ import annotations

from agentgrpo.commands import execute, starting

if __name__ == "__main__":
    starting()

import asyncio
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil

from agentgrpo.flags import Parser
from agentgrpo.processes import tell
from bench.parts.children import Server, answer, python, started, store
from bench.parts.report import Row, add_json, facts, finish
from sql_agent import oracle
from sql_agent.lightning.store import RetryingStore
from sql_agent.model_address.request_guard import RUN_TOKEN, give_token
from sql_agent.model_address.request_limits import CONTEXT_TOKENS
from sql_agent.model_address.signed_address import RolloutSampling, signed_prefix

CONTEXT = 4096
PHASE_S = 12.0
CALLERS, CALLS_OF_ROLLOUT, PAUSE_S = 8, 10, 0.05
SLOW_CONNECTIONS, UNFINISHED, AT_ONCE = 400, 1200, 100
HEADER_BYTES = 60_000_000
MOST_DELAY_MS, MOST_GROWTH_MIB = 500.0, 64.0
JSON = {"Content-Type": "application/json"}
TIMEOUT = aiohttp.ClientTimeout(total=30)
REQUEST = {"messages": [{"role": "user", "content": "hi"}]}


@dataclass
class Calls:
    seconds: list[float] = field(default_factory=list)
    lost: int = 0


@dataclass(frozen=True)
class Targets:
    servers: list[str]
    signed: str
    """The signed address of a rollout that only the attacker plays."""


async def headers(to: Targets) -> None:
    """Send header lines to each server until it closes the connection or has taken them all."""

    async def flood(url: str) -> None:
        _, writer = await _connect(url)
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        for _ in range(HEADER_BYTES // 50_000):
            writer.write(b"a:b\r\n" * 10_000)
            await writer.drain()

    await asyncio.gather(*map(flood, to.servers), return_exceptions=True)


async def slow(to: Targets) -> None:
    """Open connections to the LLM proxy, send a byte a second on each, and open those again that are closed."""

    async def trickle() -> None:
        with suppress(OSError):
            _, writer = await _connect(to.servers[0])
            for byte in b"GET / HTTP":
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(1)

    await asyncio.gather(*(trickle() for _ in range(SLOW_CONNECTIONS)))


async def unfinished(to: Targets) -> None:
    """Begin bodies under the signed address, and wait until their connections are closed."""
    head = f"POST {urlsplit(to.signed).path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"

    async def begin() -> None:
        with suppress(OSError):
            reader, writer = await _connect(to.signed)
            writer.write(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
            await reader.read()
            writer.close()

    await asyncio.gather(*(begin() for _ in range(UNFINISHED)))


async def bodies(to: Targets) -> None:
    user = b'{"role":"user","content":"hi"}'
    for messages in (b",".join([b"{}"] * 66_000), b",".join([user] * 200_000), b'"' + b"x" * 20_000_000 + b'"'):
        await _ask(to.signed, b'{"messages":[' + messages + b"]}")


async def nesting(to: Targets) -> None:
    for deep in (b"[" * 5_000, b"[" * 500_000, b'{"a":' * 100_000):
        await _ask(to.signed, b'{"messages":' + deep)


async def at_once(to: Targets) -> None:
    """Ask with and without the signature, out of form."""
    urls = [to.signed, *(f"{server}/v1/chat/completions" for server in to.servers)]
    body = b'{"messages":[' + b",".join([b"{}"] * 1000) + b"]}"
    await asyncio.gather(*(_ask(urls[i % len(urls)], body) for i in range(AT_ONCE)))


ATTACKS: dict[str, Callable[[Targets], Awaitable[None]]] = {
    "headers": headers, "slow connections": slow, "unfinished bodies": unfinished, "bodies": bodies, "nesting": nesting,
    "100 at once": at_once,
}  # fmt: skip


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)


async def _ask(url: str, body: bytes) -> None:
    with suppress(aiohttp.ClientError, OSError):
        async with aiohttp.ClientSession(headers=JSON) as session, session.post(url, data=body) as response:
            await response.read()


def attack(name: str, to: Targets, seconds: float) -> None:
    """Repeat an attack; it runs in a process of its own."""

    async def repeat() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    await ATTACKS[name](to)

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # more than the attacked have
    asyncio.run(repeat())


async def play(client: RetryingStore, proxy: str, calls: Calls, until: float) -> None:
    """Play rollouts until then, each with connections of its own."""
    while time.monotonic() < until:
        url = await _signed_address(client, proxy)
        async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
            for _ in range(CALLS_OF_ROLLOUT):
                began = time.perf_counter()
                try:
                    async with session.post(url, json=REQUEST) as response:
                        calls.lost += response.status != 200
                        await response.read()
                except (aiohttp.ClientError, OSError, TimeoutError):
                    calls.lost += 1
                calls.seconds.append(time.perf_counter() - began)
                await asyncio.sleep(PAUSE_S)


async def _signed_address(client: RetryingStore, proxy: str) -> str:
    rollout = await client.start_rollout(input={})
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    prefix = signed_prefix(RolloutSampling(*ids, "policy-0", 0.7, 64), os.environ[RUN_TOKEN])
    return f"{proxy}{prefix}/rollout/{ids[0]}/attempt/{ids[1]}/v1/chat/completions"


async def phase(name: str | None, to: Targets, store_url: str) -> Calls:
    calls, until = Calls(), time.monotonic() + PHASE_S
    client = RetryingStore(store_url)
    attacker = multiprocessing.get_context("spawn").Process(target=attack, args=(name, to, PHASE_S))
    if name is not None:
        attacker.start()
    await asyncio.gather(*(play(client, to.servers[0], calls, until) for _ in range(CALLERS)))
    await client.close()
    if name is not None:
        await asyncio.to_thread(attacker.join)
    return calls


def rows(phases: dict[str | None, Calls], growth_mib: dict[str, float]) -> Iterator[Row]:
    quiet_ms = 1000 * max(phases[None].seconds)
    yield Row("longest call without an attack", quiet_ms, "ms")
    for name, calls in phases.items():
        if name is not None:
            limit = f"{len(calls.seconds)} calls"
            yield Row(f"{name}: lost calls", calls.lost, "", target=0)
            yield Row(f"{name}: delay", 1000 * max(calls.seconds) - quiet_ms, "ms", target=MOST_DELAY_MS, limit=limit)
    for name, mib in growth_mib.items():
        yield Row(f"most memory of the {name} above that before the attacks", mib, "MiB", target=MOST_GROWTH_MIB)


@contextmanager
def servers(log: Path) -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        kept = stack.enter_context(store(log, python("sql_agent.store_server")))
        model = stack.enter_context(started(python("bench.parts.guarded_model"), log, talks=True))
        url = answer(model, log)["url"]
        command = python("sql_agent.lightning.llm_proxy", "--store", kept.url, "--context-tokens", str(CONTEXT))
        proxy = stack.enter_context(started(command, log, talks=True))
        tell(proxy, {"model": oracle.MODEL, "backends": [url]})
        proxy_url = answer(proxy, log)["url"]
        yield {"LLM proxy": Server(proxy_url, 0, proxy.pid), "store": kept, "model server": Server(url, 0, model.pid)}


async def measure(parts: dict[str, Server]) -> Iterator[Row]:
    client = RetryingStore(parts["store"].url)
    to = Targets([part.url for part in parts.values()], await _signed_address(client, parts["LLM proxy"].url))
    await client.close()
    await phase(None, to, parts["store"].url)  # warms up
    before, most = _rss_mib(parts), dict.fromkeys(parts, 0.0)
    phases: dict[str | None, Calls] = {}

    async def watch() -> None:
        while True:
            most.update({name: max(most[name], mib) for name, mib in _rss_mib(parts).items()})
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    for name in (None, *ATTACKS):
        print(f"{name or 'no attack'}, {PHASE_S:.0f} s ...", file=sys.stderr, flush=True)
        phases[name] = await phase(name, to, parts["store"].url)
    watching.cancel()
    return rows(phases, {name: most[name] - before[name] for name in parts})


def _rss_mib(parts: dict[str, Server]) -> dict[str, float]:
    return {name: psutil.Process(part.pid).memory_info().rss / 2**20 for name, part in parts.items()}


def main() -> int:
    parser = Parser(prog="python -m bench.hostile_requests", description=(__doc__ or "").splitlines()[0])
    add_json(parser)
    args = parser.parse_args()
    os.environ[CONTEXT_TOKENS] = str(CONTEXT)
    give_token(shared=False, own_store=True)
    with tempfile.TemporaryDirectory(prefix="agentgrpo-bench-") as folder, servers(Path(folder) / "log") as parts:
        measured = list(asyncio.run(measure(parts)))
    return finish(measured, facts(), args.output)


if __name__ == "__main__":
    execute(main)
