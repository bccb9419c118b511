"""Asks a model server from code without an event loop, each request with one deadline, and reads what it lists.

httpx's own limits begin anew with every byte, so it would wait without an end for a server that sends one now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any

import httpx

# Ollama lists names with this tag and takes them without it.
TAG = ":latest"
# Gemini's servers list names with it and take them without it.
PREFIX = "models/"


class DeadlineClient:
    def __init__(self, api_key: str) -> None:
        self._loop = asyncio.Runner()
        self._client = httpx.AsyncClient(headers={"Authorization": f"Bearer {api_key}"}, timeout=None)

    def __enter__(self) -> DeadlineClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._client.aclose())
        self._loop.close()

    def get(self, url: str, *, timeout_s: float) -> httpx.Response:
        """
        Args:
            timeout_s: limit of the whole request.
        Raises:
            httpx.HTTPError, httpx.InvalidURL: there is no answer.
        """
        return self._loop.run(self._request("GET", url, timeout_s))

    def post(self, url: str, body: object, *, timeout_s: float) -> httpx.Response:
        """
        Args:
            timeout_s: limit of the whole request.
        Raises:
            httpx.HTTPError, httpx.InvalidURL: there is no answer.
        """
        return self._loop.run(self._request("POST", url, timeout_s, json=body))

    async def _request(self, method: str, url: str, timeout_s: float, **options: Any) -> httpx.Response:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._client.request(method, url, **options)
        except TimeoutError:
            raise httpx.ReadTimeout(f"{url} gave no whole answer within {timeout_s:g} s") from None


def listed_models(answer: object) -> dict[str, dict[str, object]]:
    """What a server's `/models` says about each; none if that is no list of models."""
    if isinstance(answer, dict):
        answer = next((answer[name] for name in ("data", "models") if isinstance(answer.get(name), list)), None)
    entries = [e if isinstance(e, dict) else {"id": e} for e in answer] if isinstance(answer, list) else []
    named = [(next((e[n] for n in ("id", "name", "model") if isinstance(e.get(n), str)), None), e) for e in entries]
    return {name: entry for name, entry in named if name}


def served_as(model: str, listed: Collection[str]) -> str | None:
    """The listed name of a model, or the pattern (of a router, `openai/*`) that it fits; None without one."""
    names = (model, model + TAG, model.removesuffix(TAG), PREFIX + model, model.removeprefix(PREFIX))
    patterns = (pattern for pattern in listed if "*" in pattern and fnmatchcase(model, pattern))
    return next((name for name in names if name in listed), next(patterns, None))


def lists_all(listed: Collection[str]) -> bool:
    # A router with patterns may know further names.
    return bool(listed) and not any("*" in name for name in listed)
