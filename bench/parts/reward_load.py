"""Plays the clients of the scoring benchmark, in their own processes.

They use HTTP/1.1 over plain asyncio streams, because a client library costs as much CPU as the service does. They
connect to 127.0.0.1 only; their number and time are limited.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROBE_EVERY_S = 0.02


@dataclass(frozen=True)
class Job:
    """What to ask of the server on a port, and for how long."""

    port: int
    seconds: float
    bodies: str = ""
    """A file of legal request bodies, one per line."""
    clients: int = 0
    """The number of clients; each sends one legal request after the other."""
    skip: int = 0
    """The number of bodies to skip at the beginning."""
    probe: tuple[str, ...] = ()
    """These paths are asked all the time."""
    malformed: int = 0
    """The number of bodies that should be refused, spread evenly over the time."""
    slow: int = 0
    """The number of clients that never finish their request."""


@dataclass
class Found:
    statuses: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    """The latencies of answers with status 200."""


class Connection:
    """One kept-alive connection; it is opened again after the server closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, head: str, body: bytes) -> tuple[str, bytes]:
        """Status and body; the status is "lost" if the connection broke."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(f"{head}\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(answer.partition("content-length: ")[2].partition("\r\n")[0] or 0)
            said = await reader.readexactly(length)
            if "connection: close" in answer:
                self.close()
            return answer[9:12], said
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return "lost", b""

    def close(self) -> None:
        if self._streams:
            self._streams[1].close()
            self._streams = None


POST = "POST /score HTTP/1.1\r\ncontent-type: application/json"


async def legal(port: int, bodies: Iterator[bytes], until: float, found: Found) -> None:
    connection = Connection(port)
    while time.monotonic() < until:
        began = time.monotonic()
        status, _ = await connection.ask(POST, next(bodies))
        if time.monotonic() < until:
            found.statuses[status] += 1
            if status == "200":
                found.latencies_ms.append((time.monotonic() - began) * 1000)
        if status != "200":
            await asyncio.sleep(0.2)  # a polite client waits; the service's Retry-After is longer
    connection.close()


async def probe(port: int, path: str, until: float, found: Found) -> None:
    connection = Connection(port)
    while time.monotonic() < until:
        began = time.monotonic()
        status, _ = await connection.ask(f"GET {path} HTTP/1.1", b"")
        found.statuses[status] += 1
        found.latencies_ms.append((time.monotonic() - began) * 1000)
        await asyncio.sleep(PROBE_EVERY_S)
    connection.close()


MALFORMED = (
    b"",
    b"{",
    b'{"prompt": NaN, "response": "a"}',
    b'{"prompt": "a"}',
    b'{"prompt": "a", "response": ""}',
    b'{"prompt": "a", "response": "b", "more": 1}',
    b'{"prompt": "\\ud800", "response": "b"}',
    b'{"prompt": "\xff", "response": "b"}',
    b"[" * 2000,
    b'{"messages": [{"role": "god", "content": "a"}]}',
    b'{"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}',
    json.dumps([{"prompt": "a", "response": "b"}] * 200).encode(),
    json.dumps({"messages": [{}] * 25_000}).encode(),
    json.dumps({"text_1": "a", "text_2": [1] * 33_000}).encode(),
)


async def malformed(job: Job, numbers: Iterator[int], began: float, found: Found) -> None:
    """Take numbers until none are left, each at its time, and send a malformed body for each."""
    connection = Connection(job.port)
    for number in numbers:
        await asyncio.sleep(max(0.0, began + job.seconds * number / job.malformed - time.monotonic()))
        status, _ = await connection.ask(POST, MALFORMED[number % len(MALFORMED)])
        found.statuses[status] += 1
    connection.close()


async def slow(port: int, until: float) -> None:
    """Send a request that never ends: one byte of its body per second."""
    while time.monotonic() < until:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{POST}\r\nhost: bench\r\ncontent-length: 1000\r\n\r\n".encode())
            while time.monotonic() < until and not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(1)
            writer.close()
        except OSError:
            await asyncio.sleep(0.1)


def play(job: Job) -> dict[str, Any]:
    """Statuses and latencies of legal requests (`asked`), probes (`probed`), malformed bodies (`refused`)."""
    return asyncio.run(play_here(job))


async def play_here(job: Job) -> dict[str, Any]:
    bodies = itertools.cycle(Path(job.bodies).read_bytes().splitlines()) if job.bodies else iter(())
    bodies = itertools.islice(bodies, job.skip, None)
    asked, probed, refused = Found(), Found(), Found()
    began = time.monotonic()
    until = began + job.seconds
    numbers = iter(range(job.malformed))
    tasks = [legal(job.port, bodies, until, asked) for _ in range(job.clients)]
    tasks += [probe(job.port, path, until, probed) for path in job.probe]
    tasks += [slow(job.port, until) for _ in range(job.slow)]
    tasks += [malformed(job, numbers, began, refused) for _ in range(8)]
    await asyncio.gather(*tasks)
    return {name: _summary(found) for name, found in (("asked", asked), ("probed", probed), ("refused", refused))}


def _summary(found: Found) -> dict[str, Any]:
    times = sorted(found.latencies_ms)
    return {
        "statuses": dict(found.statuses),
        "p50_ms": times[len(times) // 2] if times else None,
        "p99_ms": times[int(len(times) * 0.99)] if times else None,
        "max_ms": times[-1] if times else None,
    }
