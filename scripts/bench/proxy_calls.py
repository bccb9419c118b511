"""Calls of a model in a process of its own, without an agent: `python -m scripts.bench.proxy_calls STORE_URL TASKS`.

For each line `{"url", "model", "calls", "at_once", "traced", "spans"}` it makes that many calls, `at_once` of them in
flight, and answers with `{"latency_ms": [...], "wall_s"}`, the latter until the store has that many spans of each call.
`{rollout}` in the URL becomes the path of a rollout that the store knows. With `traced` it writes the span of each call
to the store beside the next one, as the runner does without the LLM proxy.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from core.processes import Events, end_with_parent
from dbbench_adapter.protocols import fc
from dbbench_adapter.tasks.load import load_tasks
from sql_agent.lightning.agl_light import agl
from sql_agent.lightning.door import RUN_TOKEN, authorization

STORED_S = 60.0


async def call_all(order: dict[str, Any], messages: list[Any], store_url: str) -> dict[str, Any]:
    from sql_agent.lightning.runner import turn_fields

    store = agl.LightningStoreClient(store_url)
    rollout = await store.start_rollout(input={})
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    path = "rollout/{rollout_id}/attempt/{attempt_id}".format(**ids)
    url = f"{order['url'].format(rollout=path)}/chat/completions"
    body = {"model": order["model"], "messages": messages, "temperature": 0, "max_tokens": 16}
    if order["traced"]:
        body |= {"return_token_ids": True, "logprobs": True}
    left, latency_ms, writing = list(range(order["calls"])), [], []

    async def caller(session: aiohttp.ClientSession) -> None:
        while left:
            number = left.pop()
            started = time.perf_counter()
            async with session.post(url, json=body) as response:
                answer = await response.json()
                response.raise_for_status()
            latency_ms.append(1000 * (time.perf_counter() - started))
            if order["traced"]:
                span = agl.Span.from_core_fields(turn_fields(answer), sequence_id=number + 1, **ids)
                writing.append(asyncio.create_task(store.add_span(span)))

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=authorization(RUN_TOKEN)) as session:
        started = time.perf_counter()
        await asyncio.gather(*(caller(session) for _ in range(order["at_once"])))
        await asyncio.gather(*writing)
        await until_stored(store, rollout.rollout_id, order["calls"] * order["spans"])
        wall_s = time.perf_counter() - started
    await store.close()
    return {"latency_ms": latency_ms, "wall_s": wall_s}


async def until_stored(store: Any, rollout_id: str, spans: int) -> None:
    """
    Raises:
        RuntimeError: they are not there in time.
    """
    deadline = time.monotonic() + STORED_S
    while spans and (stored := (await store.query_spans(rollout_id, limit=1)).total) < spans:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the store has {stored} spans after {STORED_S:.0f} s, expected {spans}")
        await asyncio.sleep(0.02)


def main() -> None:
    events = Events()
    end_with_parent()
    store_url, tasks = sys.argv[1:]
    messages = fc.messages(load_tasks(Path(tasks))[0])
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            events.emit(runner.run(call_all(json.loads(line), messages, store_url)))


if __name__ == "__main__":
    main()
