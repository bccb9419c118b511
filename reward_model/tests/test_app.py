"""What a request is told while the model loads, and when its time is over."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import HTTPException

from reward_model.service.app import Service, make_app
from reward_model.service.batching import Batcher


class Stuck:
    def score(self, round_):
        while not self.ended:
            pass
        yield from ()

    ended = False


def service(**more):
    return Service(Path("model"), commit="abc", **{"deadline_s": 0.05, **more})


async def test_while_the_model_loads_scores_are_a_503_with_retry_after():
    transport = httpx.ASGITransport(make_app(service()))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        answer = await http.post("/score", json={"prompt": "a", "response": "b"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json() == {"detail": [{"field": "", "message": "the model is still loading"}]}
        assert (await http.get("/livez")).status_code == 200
        assert (await http.get("/readyz")).status_code == 503
        health = (await http.get("/healthz")).json()
        assert (health["status"], health["commit"], health["max_length"]) == ("loading", "abc", None)


async def test_past_its_deadline_a_request_is_a_503_and_gives_its_place_back():
    waiting, batcher = service(), Batcher(Stuck(), max_queue=1)
    waiting.ready(SimpleNamespace(), batcher)
    with pytest.raises(HTTPException) as caught:
        await waiting.answer(1, lambda scorer: [SimpleNamespace(ids=(1,))])
    assert (caught.value.status_code, caught.value.headers) == (503, {"Retry-After": "1"})
    assert "not scored within 0.05 s" in caught.value.detail[0]["message"]
    await asyncio.sleep(0)
    assert batcher._places == 0
    Stuck.ended = True
    batcher.close()
