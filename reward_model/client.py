"""Calls a scoring service, also as a command: `agentgrpo reward score --prompt TEXT --response TEXT`.

It works with `agentgrpo reward serve` and with `vllm serve MERGED --runner pooling`, which both answer `POST
/classify` with the raw logit. `sql_agent.rewards` decides what a score is worth.
"""

from __future__ import annotations

if __name__ == "__main__":
    from agentgrpo.commands import run_module

    run_module("reward_model.client")

import argparse
import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp

from agentgrpo.chat.messages import Message
from agentgrpo.durations import pause_s, retry_after_s
from agentgrpo.flags import Parser, positive
from agentgrpo.json_text import JsonObject
from agentgrpo.machine import is_loopback
from reward_model.datatypes import TOKEN_VARIABLE, Preference, RewardScore, compare_scores, with_truncated
from reward_model.preferences import PreferenceFileError, read_preferences

# After this many consecutive failures only one call per `PROBE_EVERY_S` asks whether the service is back.
OPEN_AFTER = 5
PROBE_EVERY_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
CONNECTIONS = 64


class ScorerUnavailableError(RuntimeError):
    """No score arrived within the deadline: the service is down or overloaded, or the circuit breaker is open."""


class ScorerRefusedError(ValueError):
    """The service answered 4xx, so asking again would not help; the message names the field."""


class RewardClient:
    """Many `score` calls of one event loop may run at the same time.

    A failed call is repeated until its deadline, after a pause that doubles and varies at random, or after the
    `Retry-After` that the service names. After `OPEN_AFTER` failures in a row the circuit breaker is open: one call a
    second goes through and the others wait for its result. After a whole deadline without an answer they fail at once.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        max_attempts: int = 6,
        counts_pauses: bool = False,
    ) -> None:
        """
        Args:
            token: a token that is sent as a bearer token.
            timeout_s: the deadline of one score, with its retries and pauses.
            max_attempts: the most requests for one score.
            counts_pauses: whether `down_s` counts a pause before which and after which no score came, for a caller that
                asks for many scores at a time and then for none for minutes.
        Raises:
            ValueError: `base_url` is not an http(s) URL, or a number is out of range.
        """
        if "@" in base_url:  # the URL may hold a password, so the message does not repeat it
            raise ValueError("base_url holds a user name; expected http://host:port, and the token separately")
        try:
            parts = urlsplit(base_url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"base_url {base_url!r}: {error}; expected http://host:port") from None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise ValueError(f"base_url {base_url!r}: expected http://host:port")
        if not 0 < timeout_s < math.inf or max_attempts < 1:
            raise ValueError(f"timeout_s {timeout_s} and max_attempts {max_attempts} have to be above 0")
        self.base_url = base_url.rstrip("/")
        self.timeout_s, self.max_attempts = timeout_s, max_attempts
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._proxies = not is_loopback(host)
        self._session: aiohttp.ClientSession | None = None
        self._counts_pauses = counts_pauses
        self._failed_first: float | None = None
        self._paused_s = 0.0
        self._asking = 0
        self._asked_last = -math.inf
        self._failures = 0
        self._probe_at = 0.0
        self._last_reason = ""

    @property
    def down_s(self) -> float:
        """Seconds since the first failure without an answer since; 0.0 while the service answers or refuses.

        A pause longer than `timeout_s` in which nobody asked is not counted, because the service may have been up
        (but see `counts_pauses`).
        """
        return self._asked_s + self._paused_s * self._counts_pauses

    @property
    def _asked_s(self) -> float:
        return 0.0 if self._failed_first is None else time.monotonic() - self._failed_first - self._pause_s()

    async def score(self, messages: Sequence[Message], tools: str | None = None) -> RewardScore:
        """Raw score of a conversation that ends with the assistant.

        Args:
            tools: the tools' schemas as the text of a JSON list (`Preference.tools`).
        Raises:
            ScorerRefusedError: the service cannot score this; the message names the field.
            ScorerUnavailableError: no score arrived within `timeout_s` or `max_attempts`.
        """
        body: dict[str, Any] = {"messages": [message.to_dict() for message in messages], "use_activation": False}
        if tools:
            body["chat_template_kwargs"] = {"tools": json.loads(tools)}
        deadline = time.monotonic() + self.timeout_s
        if self._failed_first is not None:
            pause_s = self._pause_s()
            self._failed_first, self._paused_s = self._failed_first + pause_s, self._paused_s + pause_s
        self._asking += 1
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._until_answered(body, deadline)
        except TimeoutError:
            self._failed(f"no answer within {self.timeout_s:g} s", counts=True)
            raise self._unavailable(f"no score within {self.timeout_s:g} s") from None
        finally:
            self._asking -= 1
            self._asked_last = time.monotonic()

    async def ready(self) -> bool:
        for path in ("/readyz", "/health"):  # our service's path, then vLLM's
            try:
                timeout = aiohttp.ClientTimeout(total=min(5.0, self.timeout_s))
                async with self._open().get(self.base_url + path, timeout=timeout) as answer:
                    if answer.status != 404:
                        return answer.status == 200
            except (aiohttp.ClientError, TimeoutError):
                return False
        return False

    async def aclose(self) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> RewardClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                trust_env=self._proxies,
                connector=aiohttp.TCPConnector(limit=CONNECTIONS),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    async def _until_answered(self, body: JsonObject, deadline: float) -> RewardScore:
        for attempt in range(self.max_attempts):
            await self._circuit()
            try:
                score = await self._request_score(body)
                self._reset_failures()
                return score
            except ScorerRefusedError:
                self._reset_failures()
                raise
            except _RetryError as error:
                self._failed(str(error), counts=error.after_s is None)
                pause = pause_s(attempt, FIRST_PAUSE_S, LONGEST_PAUSE_S, after_s=error.after_s)
                if attempt + 1 == self.max_attempts or time.monotonic() + pause >= deadline:
                    raise self._unavailable(f"given up after {attempt + 1} attempts") from None
            await asyncio.sleep(pause)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _circuit(self) -> None:
        # At once while the circuit is closed, otherwise as the next probe.
        while self._failures >= OPEN_AFTER:
            now = time.monotonic()
            if now >= self._probe_at:
                self._probe_at = now + PROBE_EVERY_S
                return
            if self._asked_s > self.timeout_s:
                raise self._unavailable("the circuit breaker is open")
            await asyncio.sleep(min(self._probe_at - now, PROBE_EVERY_S / 10))

    async def _request_score(self, body: JsonObject) -> RewardScore:
        status, said, after_s = await self._post(body)
        if status == 400 and "maximum context length" in said:  # vLLM cuts only on request, our service always
            status, said, after_s = await self._post({**body, "truncate_prompt_tokens": -1, "truncation_side": "left"})
            if status == 200:
                return RewardScore(_read_score(said).value, truncated=True)
        if status == 200:
            return _read_score(said)
        if status in (408, 429) or status >= 500:
            raise _RetryError(f"{status} {said[:200]}", after_s)
        raise ScorerRefusedError(f"{self.base_url} answered {status}: {said[:500]}")

    async def _post(self, body: JsonObject) -> tuple[int, str, float | None]:
        try:
            async with self._open().post(self.base_url + "/classify", json=body, allow_redirects=False) as answer:
                return answer.status, await answer.text(), retry_after_s(answer.headers.get("Retry-After"))
        except (aiohttp.ClientError, OSError) as error:
            raise _RetryError(f"{type(error).__name__}: {error}", None) from None

    def _reset_failures(self) -> None:
        self._failed_first, self._paused_s, self._failures = None, 0.0, 0

    def _pause_s(self) -> float:
        """Seconds in which nobody asked, if they are more than one score may take; otherwise 0."""
        pause = 0.0 if self._asking else time.monotonic() - self._asked_last
        return pause if pause > self.timeout_s else 0.0

    def _failed(self, reason: str, *, counts: bool) -> None:
        """
        Args:
            counts: whether it may open the circuit; a service that sends `Retry-After` is busy, but alive.
        """
        self._last_reason = reason
        self._failures += counts
        if self._failed_first is None:
            self._failed_first = time.monotonic()

    def _unavailable(self, what: str) -> ScorerUnavailableError:
        return ScorerUnavailableError(
            f"{self.base_url}: {what}; last: {self._last_reason}; no success for {self.down_s:.0f} s. "
            "Is `agentgrpo reward serve` running there? `/readyz` and its log say more"
        )


class _RetryError(Exception):
    def __init__(self, reason: str, after_s: float | None) -> None:
        super().__init__(reason)
        self.after_s = after_s


def _read_score(said: str) -> RewardScore:
    try:
        (item,) = json.loads(said)["data"]
        (value,) = item["probs"]
        return RewardScore(float(value), truncated=bool(item.get("truncated", False)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _RetryError(f"the answer is not a single score ({error}): {said[:200]}", None) from None


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_score_args(arguments)
    try:
        return asyncio.run(_run(args))
    except (ScorerUnavailableError, ScorerRefusedError, PreferenceFileError) as error:
        print(error, file=sys.stderr)
        return 1


def parse_score_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="agentgrpo reward score",
        description="Score one answer, compare two, or score a file of preferences; print one JSON object per line.",
        epilog=f"Service and command read the token, if the service has one, from {TOKEN_VARIABLE}.",
    )
    parser.add_argument("--url", default="http://127.0.0.1:8008", help="the service, default %(default)s")
    parser.add_argument("--prompt", help="the user's message")
    parser.add_argument("--response", help="the answer to score")
    parser.add_argument("--chosen", help="with --rejected: the answer that should score higher")
    parser.add_argument("--rejected", help="the other answer")
    parser.add_argument("--file", type=Path, help="a converted file; the share of correct pairs is printed last")
    parser.add_argument("--timeout-s", type=positive, default=30.0, help="deadline of one score, default %(default)s")
    args = parser.parse_args(arguments)
    given = {name for name in ("prompt", "response", "chosen", "rejected", "file") if getattr(args, name) is not None}
    if given not in ({"prompt", "response"}, {"prompt", "chosen", "rejected"}, {"file"}):
        parser.error("give --prompt and --response, or --prompt, --chosen and --rejected, or --file")
    try:
        RewardClient(args.url)
    except ValueError as error:
        parser.error(f"--url: {error}")
    return args


async def _run(args: argparse.Namespace) -> int:
    async with RewardClient(args.url, token=os.environ.get(TOKEN_VARIABLE), timeout_s=args.timeout_s) as client:
        if args.response is not None:
            score = await client.score([_message("user", args.prompt), _message("assistant", args.response)])
            print(json.dumps(with_truncated({"score": score.value}, score)))
        elif args.file is None:
            chosen, rejected = ((_message("assistant", text),) for text in (args.chosen, args.rejected))
            row = Preference(prompt=(_message("user", args.prompt),), chosen=chosen, rejected=rejected)
            await _compare(client, row)
        else:
            rows = read_preferences(args.file)
            right = [await _compare(client, row) for row in rows]
            print(f"{sum(right)} of {len(rows)} chosen answers scored higher", file=sys.stderr)
    return 0


async def _compare(client: RewardClient, row: Preference) -> bool:
    chosen, rejected = await asyncio.gather(
        *(client.score([*row.prompt, *side], row.tools) for side in (row.chosen, row.rejected))
    )
    print(json.dumps(compare_scores(chosen, rejected)))
    return chosen.value > rejected.value


def _message(role: Literal["user", "assistant"], content: str) -> Message:
    return Message(role=role, content=content)
