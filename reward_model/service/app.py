"""Declares the service's routes: `/score`, `/score-pair`, vLLM's `/classify`, and the routes for operators.

`Service.score` answers a request: it is queued, tokenised and scored within one deadline. Answers are built from
numbers and are not validated a second time; the models in `schemas` describe them for `/openapi.json`.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from agentgrpo.json_text import JsonObject
from reward_model.datatypes import EncodedConversation, RewardScore, compare_scores, with_truncated
from reward_model.service import metrics
from reward_model.service.encoding import Item, encode, num_conversations
from reward_model.service.request_queue import BusyError, RequestQueue
from reward_model.service.schemas import (
    ClassifyBody,
    PairAnswer,
    PairBody,
    Refusal,
    ScoreAnswer,
    ScoreBody,
    VllmAnswer,
    VllmOptions,
    VllmPairs,
    describe_errors,
)
from reward_model.service.strict_json import UnreadableError, read_strict_json

if TYPE_CHECKING:
    from reward_model.scorer import Scorer

RETRY_AFTER_S = "1"
# Health checks are answered while a thread reads a body of so many bytes.
LARGE_BODY = 1 << 16


class Service:
    def __init__(self, model_path: Path, *, commit: str, deadline_s: float) -> None:
        self.model_path, self.commit, self.deadline_s = model_path, commit, deadline_s
        # The status: loading, ready or draining.
        self.status = "loading"
        self.scorer: Scorer | None = None
        self.queue: RequestQueue | None = None
        self.started = time.time()

    def ready(self, scorer: Scorer, queue: RequestQueue) -> None:
        self.scorer, self.queue, self.status = scorer, queue, "ready"

    async def score(self, body: Item | Sequence[Item]) -> tuple[list[EncodedConversation], list[RewardScore]]:
        """The conversations of a body as tokens, and their scores.

        Raises:
            HTTPException: 503 with Retry-After while loading or draining, if the queue is full or the deadline is over;
                422 if the model cannot read a text.
        """
        scorer, queue = self.scorer, self.queue
        if scorer is None or queue is None:
            raise _busy("loading", "the model is still loading")
        try:
            async with asyncio.timeout(self.deadline_s):
                return await queue.score(num_conversations(body), lambda: encode(scorer, body))
        except BusyError as error:
            raise _busy(error.reason, str(error)) from None
        except TimeoutError:
            raise _busy("deadline", f"not scored within {self.deadline_s:g} s, the service is overloaded") from None
        except UnreadableError as error:
            raise HTTPException(422, [{"field": error.field, "message": str(error)}]) from None


def _busy(reason: str, message: str) -> HTTPException:
    metrics.REJECTED.labels(reason).inc()
    return HTTPException(503, [{"field": "", "message": message}], {"Retry-After": RETRY_AFTER_S})


class _StrictRoute(APIRoute):
    """Reads bodies with `read_strict_json`, and answers what is wrong with one at once, in FastAPI's words. FastAPI
    would raise it through its layers, which takes longer than reading and checking most bodies. A route with a body
    takes nothing else, and returns a response."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[None, None, Response]]:
        form = self.body_field
        if form is None:
            return super().get_route_handler()
        asked = self.dependant
        assert not (asked.dependencies or asked.query_params or asked.path_params or asked.header_params)

        async def strict(request: Request) -> Response:
            body = await request.body()
            try:
                value = await _read(body) if body else None
            except UnreadableError as error:
                return _invalid([{"field": error.field or "body", "message": str(error)}])
            if value is None:
                return _invalid([{"field": "body", "message": "Field required"}])
            parsed, errors = form.validate(value)
            return _invalid(describe_errors(errors)) if errors else await self.endpoint(parsed)

        return strict


async def _read(body: bytes) -> object:
    return read_strict_json(body) if len(body) < LARGE_BODY else await asyncio.to_thread(read_strict_json, body)


def _invalid(detail: list[dict[str, str]]) -> Response:
    metrics.REJECTED.labels("invalid").inc()
    return JSONResponse({"detail": detail}, 422)


REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"model": Refusal, "description": "the token is missing or wrong"},
    413: {"model": Refusal, "description": "the body has more than 1 MiB"},
    422: {"model": Refusal, "description": "the field that cannot be scored, and why"},
    503: {
        "model": Refusal,
        "description": "loading, draining, queue full or deadline over; `Retry-After` says when to ask again",
    },
}


def make_app(service: Service) -> FastAPI:
    app = FastAPI(
        title="Reward model", version=service.commit[:12], docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.router.route_class = _StrictRoute
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_unexpected_error)
    _add_scoring_routes(app, service)
    _add_operator_routes(app, service)
    return app


def _add_scoring_routes(app: FastAPI, service: Service) -> None:
    @app.post("/score", response_model=ScoreAnswer | list[ScoreAnswer] | VllmAnswer, responses=REFUSALS)
    async def score(body: ScoreBody) -> Response:
        """Score one conversation, a list of them, or vLLM's lists of two texts."""
        encoded, scores = await service.score(body)
        if isinstance(body, VllmPairs):
            data = [{"object": "score", "score": value} for value in _activated(scores, body)]
            return _vllm_response(service, "score", encoded, data)
        answers = [with_truncated({"score": score.value}, score) for score in scores]
        return JSONResponse(answers if isinstance(body, list) else answers[0])

    @app.post("/score-pair", response_model=PairAnswer | list[PairAnswer], responses=REFUSALS)
    async def score_pair(body: PairBody) -> Response:
        """Score two answers to one prompt, or a list of such pairs."""
        _, scores = await service.score(body)
        answers = [compare_scores(*pair) for pair in zip(scores[::2], scores[1::2], strict=True)]
        return JSONResponse(answers if isinstance(body, list) else answers[0])

    @app.post("/classify", response_model=VllmAnswer, responses=REFUSALS)
    async def classify(body: ClassifyBody) -> Response:
        """Score as vLLM's route does: `messages`, or `input` as texts or token ids."""
        encoded, scores = await service.score(body)
        label = getattr(service.scorer.model.config, "id2label", {}).get(0) if service.scorer else None
        data = [
            with_truncated({"label": label, "probs": [value], "num_classes": 1}, score)
            for value, score in zip(_activated(scores, body), scores, strict=True)
        ]
        return _vllm_response(service, "classify", encoded, data)


def _add_operator_routes(app: FastAPI, service: Service) -> None:
    @app.head("/livez", include_in_schema=False)
    @app.get("/livez")
    async def livez() -> dict[str, str]:
        """Answer while the process lives."""
        return {"status": "alive"}

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", responses={503: {"description": "loading, or draining"}})
    @app.get("/health", include_in_schema=False)
    async def readyz() -> Response:
        """Answer 200 once the warm-up scores matched; vLLM's `/health` is the same here."""
        return JSONResponse({"status": service.status}, 200 if service.status == "ready" else 503)

    @app.get("/healthz")
    async def healthz() -> dict[str, object]:
        """Say which model and commit is served."""
        scorer = service.scorer
        return {
            "status": service.status,
            "model": service.model_path.name,
            "commit": service.commit,
            "max_length": scorer.max_length if scorer else None,
            "device": str(scorer.model.device) if scorer else None,
            "uptime_s": round(time.time() - service.started, 1),
        }

    @app.get("/metrics", include_in_schema=False)
    async def prometheus() -> Response:
        return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """Serve our own page, because FastAPI's loads its scripts from another server."""
        return FileResponse(Path(__file__).parent / "docs.html")


def _activated(scores: Sequence[RewardScore], options: VllmOptions) -> list[float]:
    """The scores, by default through a sigmoid, as vLLM does for a head of one label (`PoolerClassify`)."""
    raw = [score.value for score in scores]
    return raw if options.use_activation is False else [1 / (1 + math.exp(-max(-700.0, value))) for value in raw]


def _vllm_response(
    service: Service, prefix: str, encoded: Sequence[EncodedConversation], data: Sequence[JsonObject]
) -> Response:
    tokens = sum(len(each.ids) for each in encoded)
    return JSONResponse(
        {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": service.model_path.name,
            "data": [{"index": index, **each} for index, each in enumerate(data)],
            "usage": {
                "prompt_tokens": tokens,
                "total_tokens": tokens,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
            },
        }
    )


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 422:
        metrics.REJECTED.labels("invalid").inc()
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


async def _on_unexpected_error(request: Request, error: Exception) -> Response:
    """Answer 500. Starlette then raises the error again, and `RequestMiddleware` logs where it came from."""
    message = f"{type(error).__name__}; the service's log says where"
    return JSONResponse({"detail": [{"field": "", "message": message}]}, 500)
