"""Calls a model without an agent, in its own process, for `bench.parts.proxy_cost`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from dbbench_adapter.generator import generate_tasks
from dbbench_adapter.protocols import fc
from sql_agent.lightning.spans import turn_span
from sql_agent.lightning.store import RetryingStore
from sql_agent.model_address.request_guard import RUN_TOKEN, authorization
from sql_agent.model_servers.turns import TURN, with_turn

STORED_S = 60.0


@dataclass(frozen=True)
class Order:
    url: str
    """The address; `{rollout}` in it is replaced by the path of a rollout that the store knows."""
    model: str
    calls: int
    at_once: int
    spans: int
    """The number of spans that each call leaves in the store."""
    traced: bool
    """Whether the caller writes the span of each call beside the next one, as the runner does without the LLM proxy."""


def call_all(order: Order, store_url: str) -> tuple[list[float], float]:
    """The milliseconds of each call, and the seconds until the last one ended and the store had all spans."""
    return asyncio.run(_call_all(order, store_url))


async def _call_all(order: Order, store_url: str) -> tuple[list[float], float]:
    store = RetryingStore(store_url)
    rollout = await store.start_rollout(input={})
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    path = "rollout/{rollout_id}/attempt/{attempt_id}".format(**ids)
    url = f"{order.url.format(rollout=path)}/chat/completions"
    messages = fc.messages(generate_tasks(1, seed=0, split="held_out")[0])  # the server knows this task
    body = {"model": order.model, "messages": messages, "temperature": 0, "max_tokens": 16}
    if order.traced:
        body |= {"return_token_ids": True, "logprobs": True}
    left, latency_ms, writing = list(range(order.calls)), [], []

    async def caller(session: aiohttp.ClientSession) -> None:
        while left:
            number = left.pop()
            started = time.perf_counter()
            async with session.post(url, json=body) as response:
                answer = await response.json()
                response.raise_for_status()
            latency_ms.append(1000 * (time.perf_counter() - started))
            if order.traced:
                span = turn_span(with_turn(answer)[TURN], **ids, number=number + 1)
                writing.append(asyncio.create_task(store.add_span(span)))

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=authorization(RUN_TOKEN)) as session:
        started = time.perf_counter()
        await asyncio.gather(*(caller(session) for _ in range(order.at_once)))
        await asyncio.gather(*writing)
        await until_stored(store, rollout.rollout_id, order.calls * order.spans)
        wall_s = time.perf_counter() - started
    await store.close()
    return latency_ms, wall_s


async def until_stored(store: Any, rollout_id: str, spans: int) -> None:
    """Wait until the store has this many spans of a rollout.

    Raises:
        RuntimeError: the spans are not there in time.
    """
    deadline = time.monotonic() + STORED_S
    while spans and (stored := (await store.query_spans(rollout_id, limit=1)).total) < spans:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the store has {stored} spans after {STORED_S:.0f} s, expected {spans}")
        await asyncio.sleep(0.02)
