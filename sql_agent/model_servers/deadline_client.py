"""Asks a model server from code without an event loop, each request with one deadline.

httpx's own limits begin anew with every byte, so it would wait without an end for a server that sends one now and then.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx


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

    def post(self, url: str, body: Any, *, timeout_s: float) -> httpx.Response:
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
