"""The service's routes: `/score`, `/score-pair`, vLLM's `/classify`, and what operators ask.

A request is answered by `Service.answer`: admitted to the queue, tokenised, scored, each within one deadline. Responses
are built from numbers and written as they are; FastAPI's second validation of them is left out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from reward_model.datatypes import Encoded, RewardScore
from reward_model.service import metrics
from reward_model.service.batching import Batcher, BusyError
from reward_model.service.schemas import (
    ClassifyBody,
    PairAnswer,
    PairBody,
    Refusal,
    ScoreAnswer,
    ScoreBody,
    UnreadableError,
    VllmAnswer,
    VllmChat,
    VllmOptions,
    VllmPairs,
    faults_of,
)
from reward_model.service.strict_json import StrictJsonError, read_json

if TYPE_CHECKING:
    from reward_model.scorer import Scorer

log = logging.getLogger(__name__)

RETRY_AFTER_S = "1"
LARGE_BODY = 1 << 16
"""From so many bytes on a body is read in a thread; the probes are answered meanwhile."""


class Service:
    """What the routes share: the model once it is loaded, its queue, and whether it may be asked."""

    def __init__(self, model_path: Path, *, commit: str, deadline_s: float) -> None:
        self.model_path, self.commit, self.deadline_s = model_path, commit, deadline_s
        self.status = "loading"
        """loading, ready or draining."""
        self.scorer: Scorer | None = None
        self.batcher: Batcher | None = None
        self.started = time.time()

    def ready(self, scorer: Scorer, batcher: Batcher) -> None:
        self.scorer, self.batcher, self.status = scorer, batcher, "ready"

    async def answer(
        self, count: int, encode: Callable[[Scorer], list[Encoded]]
    ) -> tuple[list[Encoded], list[RewardScore]]:
        """Scores of what `encode` makes, `count` conversations.

        Raises:
            HTTPException: 503 with Retry-After: loading, draining, no place, or past the deadline; 422: unreadable.
        """
        scorer, batcher = self.scorer, self.batcher
        if scorer is None or batcher is None:
            raise _later("loading", "the model is still loading")
        kept: list[Encoded] = []

        def encode_and_keep() -> list[Encoded]:
            kept.extend(encode(scorer))
            return kept

        try:
            async with asyncio.timeout(self.deadline_s):
                return kept, await batcher.score(count, encode_and_keep)
        except BusyError as error:
            raise _later(error.reason, str(error)) from None
        except TimeoutError:
            raise _later("deadline", f"not scored within {self.deadline_s:g} s; the service has more to do") from None
        except UnreadableError as error:
            raise HTTPException(422, [{"field": error.field, "message": str(error)}]) from None


def _later(reason: str, message: str) -> HTTPException:
    metrics.REJECTED.labels(reason).inc()
    return HTTPException(503, [{"field": "", "message": message}], {"Retry-After": RETRY_AFTER_S})


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            body = await self.body()
            return read_json(body) if len(body) < LARGE_BODY else await asyncio.to_thread(read_json, body)
        except StrictJsonError as error:
            raise HTTPException(422, [{"field": error.field or "body", "message": str(error)}]) from None


class _StrictRoute(APIRoute):
    """Bodies are read by `read_json`: a request class of the route's own is FastAPI's documented way in."""

    def get_route_handler(self) -> Any:
        handler = super().get_route_handler()

        async def strict(request: Request) -> Any:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict


REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"model": Refusal, "description": "no token or a wrong one"},
    413: {"model": Refusal, "description": "a body of more than 1 MiB"},
    422: {"model": Refusal, "description": "the field that cannot be scored, and why"},
    503: {
        "model": Refusal,
        "description": "loading, draining, no place or no time; `Retry-After` says when to ask again",
    },
}


def make_app(service: Service) -> FastAPI:
    app = FastAPI(
        title="Reward model", version=service.commit[:12], docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.router.route_class = _StrictRoute
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _failed)
    _add_scoring(app, service)
    _add_operations(app, service)
    return app


def _add_scoring(app: FastAPI, service: Service) -> None:
    @app.post("/score", response_model=ScoreAnswer | list[ScoreAnswer] | VllmAnswer, responses=REFUSALS)
    async def score(body: ScoreBody) -> Response:
        """One conversation, a list of them, or vLLM's lists of two texts."""
        if isinstance(body, VllmPairs):
            pairs = body
            encoded, scores = await service.answer(len(body.pairs()), lambda s: _texts().vllm_pairs(s, pairs))
            return _vllm(service, "score", encoded, [{"object": "score", "score": v} for v in _activated(scores, body)])
        items = body if isinstance(body, list) else [body]
        _, scores = await service.answer(len(items), lambda s: [_texts().item(s, each) for each in items])
        answers = [_marked({"score": score.value}, score) for score in scores]
        return _json(answers if isinstance(body, list) else answers[0])

    @app.post("/score-pair", response_model=PairAnswer | list[PairAnswer], responses=REFUSALS)
    async def score_pair(body: PairBody) -> Response:
        """Two answers to one prompt, or a list of such pairs."""
        pairs = body if isinstance(body, list) else [body]
        _, scores = await service.answer(
            2 * len(pairs), lambda s: [each for pair in pairs for each in _texts().pair(s, pair)]
        )
        answers = [_compared(*two) for two in zip(scores[::2], scores[1::2], strict=True)]
        return _json(answers if isinstance(body, list) else answers[0])

    @app.post("/classify", response_model=VllmAnswer, responses=REFUSALS)
    async def classify(body: ClassifyBody) -> Response:
        """vLLM's route: `messages`, or `input` as texts or token ids."""
        if isinstance(body, VllmChat):
            chat = body
            encoded, scores = await service.answer(1, lambda s: _texts().vllm_chat(s, chat))
        else:
            given = body
            many = given.input if isinstance(given.input, list) and not isinstance(given.input[0], int) else [given]
            encoded, scores = await service.answer(len(many), lambda s: _texts().vllm_input(s, given))
        label = _label(service.scorer)
        data = [{"label": label, "probs": [value], "num_classes": 1} for value in _activated(scores, body)]
        return _vllm(service, "classify", encoded, [_marked(*both) for both in zip(data, scores, strict=True)])


def _add_operations(app: FastAPI, service: Service) -> None:
    @app.head("/livez", include_in_schema=False)
    @app.get("/livez")
    async def livez() -> dict[str, str]:
        """The process answers."""
        return {"status": "alive"}

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", responses={503: {"description": "loading, or draining"}})
    @app.get("/health", include_in_schema=False)
    async def readyz() -> Response:
        """200 once warm-up scores matched; vLLM's `/health` is the same here."""
        return _json({"status": service.status}, 200 if service.status == "ready" else 503)

    @app.get("/healthz")
    async def healthz() -> dict[str, Any]:
        """Which model and commit this is."""
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
        """A page of our own: FastAPI's loads its scripts from a server elsewhere."""
        return Response((Path(__file__).parent / "docs.html").read_bytes(), media_type="text/html")


def _texts() -> Any:
    """Imported at the first request: it needs transformers, which load while the service already listens."""
    from reward_model.service import texts

    return texts


def _compared(chosen: RewardScore, rejected: RewardScore) -> dict[str, Any]:
    difference = chosen.value - rejected.value
    preference = "chosen" if difference > 0 else "rejected" if difference < 0 else "tie"
    answer = {
        "chosen_score": chosen.value,
        "rejected_score": rejected.value,
        "preference": preference,
        "score_diff": difference,
    }
    return _marked(answer, chosen, rejected)


def _marked(answer: dict[str, Any], *scores: RewardScore) -> dict[str, Any]:
    return answer | {"truncated": True} if any(score.truncated for score in scores) else answer


def _activated(scores: Sequence[RewardScore], options: VllmOptions) -> list[float]:
    """vLLM's default is the sigmoid for a head of one label (`PoolerClassify`)."""
    raw = [score.value for score in scores]
    return raw if options.use_activation is False else [1 / (1 + math.exp(-max(-700.0, value))) for value in raw]


def _label(scorer: Scorer | None) -> str | None:
    return getattr(scorer.model.config, "id2label", {}).get(0) if scorer else None


def _vllm(service: Service, prefix: str, encoded: Sequence[Encoded], data: Sequence[dict[str, Any]]) -> Response:
    tokens = sum(len(each.ids) for each in encoded)
    return _json(
        {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": service.model_path.name,
            "data": [{"index": index} | each for index, each in enumerate(data)],
            "usage": {
                "prompt_tokens": tokens,
                "total_tokens": tokens,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
            },
        }
    )


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(value).encode(), status, headers, media_type="application/json")


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    metrics.REJECTED.labels("invalid").inc()
    faults = faults_of([{**each, "loc": each["loc"][1:]} for each in error.errors()[:10]])
    return _json({"detail": faults}, 422)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 422:
        metrics.REJECTED.labels("invalid").inc()
    return _json({"detail": error.detail}, error.status_code, dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    """Of a fault of ours; `Edge` logs where."""
    return _json({"detail": [{"field": "", "message": f"{type(error).__name__}; the service's log says where"}]}, 500)
