"""What a request is told while the model loads, and when its time is over."""

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import HTTPException

from reward_model.datatypes import EncodedConversation
from reward_model.service import metrics
from reward_model.service.app import Service, make_app
from reward_model.service.request_queue import RequestQueue
from reward_model.service.schemas import TextItem


class Stuck:
    def score(self, batch):
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


LARGE = [
    ("/score", {"messages": [{}] * 100_000}, "messages.0.role"),
    ("/score", {"messages": [{}] * 9_000}, "messages.0.role"),
    ("/score", {"messages": [{"role": "assistant", "tool_calls": [{}] * 9_000}]}, "messages.0.tool_calls.0.function"),
    ("/score", [{}] * 9_000, "0.prompt"),
    ("/score", {"text_1": "a", "text_2": [5] * 100_000}, "text_2.0"),
    ("/score-pair", {"prompt": [{}] * 9_000}, "prompt.0.role"),
    ("/classify", {"input": [1, *["a"] * 100_000]}, "input.1"),
    ("/classify", {"input": [[1, *["a"] * 100_000]]}, "input.0.1"),
    ("/classify", {"input": [1] * 200_000}, "input"),
    ("/score", dict.fromkeys(map(str, range(50_000)), 0), "body"),
]


@pytest.mark.parametrize(("path", "body", "field"), LARGE)
async def test_a_large_body_of_nothing_but_errors_is_refused_at_its_first(path, body, field):
    """Each error of 100,000 would be made and written out before ten are told: seconds without any other answer."""
    transport = httpx.ASGITransport(make_app(service()))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        sent, began = json.dumps(body).encode(), time.monotonic()
        answer = await http.post(path, content=sent, headers={"Content-Type": "application/json"})
        took = time.monotonic() - began
    assert (answer.status_code, answer.json()["detail"][0]["field"]) == (422, field)
    assert len(answer.json()["detail"]) <= 4
    assert took < 2  # 0.4 beside other work


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", {"field": "body", "message": "Field required"}),
        (b"null", {"field": "body", "message": "Field required"}),
        (
            b"{",
            {"field": "body", "message": "not JSON: EOF while parsing an object at line 1 column 1"},
        ),
        (b'{"prompt": "a"}', {"field": "response", "message": "Field required"}),
    ],
)
async def test_what_is_wrong_with_a_body_is_told_and_counted(body, fault):
    counted = metrics.REJECTED.labels("invalid")._value.get()
    transport = httpx.ASGITransport(make_app(service()))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        answer = await http.post("/score", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()) == (422, {"detail": [fault]})
    assert metrics.REJECTED.labels("invalid")._value.get() == counted + 1


async def test_a_refusal_names_no_field_that_may_be_a_text():
    transport = httpx.ASGITransport(make_app(service()))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        answer = await http.post("/score", json={"prompt": "a", "response": "b", "my password is 1234": 1, "more": 1})
    assert [fault["field"] for fault in answer.json()["detail"]] == ["?", "more"]
    assert "1234" not in answer.text


async def test_past_its_deadline_a_request_is_a_503_and_frees_its_slot():
    waiting, queue = service(), RequestQueue(Stuck(), max_queue=1)
    waiting.ready(SimpleNamespace(encode=lambda *_, **__: EncodedConversation((1,))), queue)
    with pytest.raises(HTTPException) as caught:
        await waiting.score(TextItem(prompt="a", response="b"))
    assert (caught.value.status_code, caught.value.headers) == (503, {"Retry-After": "1"})
    assert "not scored within 0.05 s" in caught.value.detail[0]["message"]
    await asyncio.sleep(0)
    assert queue._taken == 0
    Stuck.ended = True
    queue.close()


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/score", {"messages": [{"role": "assistant", "content": "a"}]}, "messages"),
        ("/score", {"prompt": "a", "response": "b"}, "prompt"),
        ("/score-pair", {"prompt": "a", "chosen": "b", "rejected": "c"}, "prompt"),
        ("/classify", {"input": "a"}, "input"),
        ("/score", {"text_1": "a", "text_2": "b"}, "text_2"),
    ],
)
async def test_whatever_a_template_or_tokenizer_raises_is_a_422_without_its_text(path, body, field):
    def fails(*given, **more):
        raise RecursionError("kanarienvogel")

    scorer = SimpleNamespace(encode=fails, tokenizer=fails, model=SimpleNamespace(config=None), max_length=5)
    ready, queue = service(deadline_s=5), RequestQueue(Stuck(), max_queue=128)
    ready.ready(scorer, queue)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app(ready)), base_url="http://x") as http:
        answer = await http.post(path, json=body)
    queue.close()
    assert (answer.status_code, answer.json()["detail"][0]["field"]) == (422, field)
    assert "(RecursionError)" in answer.text and "kanarienvogel" not in answer.text
