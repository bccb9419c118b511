"""Asks a scoring service for scores; by hand: `python -m reward_model.client --url URL --prompt TEXT --response TEXT`.

Works against `reward_model/inference_api.py` and against `vllm serve MERGED --runner pooling`: both answer
`POST /classify` with the raw logit. Leaves out what a score is worth; `sql_agent.rewards` decides that.
"""

from __future__ import annotations

from core.commands import execute, starting

if __name__ == "__main__":
    starting()

import argparse
import asyncio
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from core.messages import Message
from reward_model.data.preferences import PreferenceFileError, read_preferences
from reward_model.datatypes import Preference, RewardScore
from reward_model.service.access import TOKEN_VARIABLE, is_loopback, positive

OPEN_AFTER = 5
"""Consecutive failures after which one call at a time finds out whether the service is back."""
PROBE_EVERY_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
CONNECTIONS = 64


class ScorerUnavailableError(RuntimeError):
    """No score within the deadline: the service is down, overloaded, or its circuit is open."""


class ScorerRefusedError(ValueError):
    """The service answered 4xx; the message names the field. Asking again is no use."""


class RewardClient:
    """Scores conversations over HTTP; many `score` calls of one event loop may run at once.

    A failed call is repeated after a jittered, doubling pause, or after the `Retry-After` that the service names, until
    the deadline. After `OPEN_AFTER` failures in a row the circuit is open: one call a second goes through, the others
    wait for what it finds, and once the service has been silent for a whole deadline they fail at once.
    """

    def __init__(
        self, base_url: str, *, token: str | None = None, timeout_s: float = 30.0, max_attempts: int = 6
    ) -> None:
        """
        Args:
            token: sent as a bearer token.
            timeout_s: deadline of one score, its retries and its pauses included.
            max_attempts: requests that one score may cost.
        Raises:
            ValueError: `base_url` is no http(s) URL, or a number is out of range.
        """
        if "@" in base_url:  # not said back: it may be a password
            raise ValueError("base_url holds a user name; expected http://host:port, and the token apart from it")
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
        self._failed_first: float | None = None
        self._asking = 0
        self._asked_last = -math.inf
        self._failures = 0
        self._probe_at = 0.0
        self._last_reason = ""

    @property
    def down_s(self) -> float:
        """Seconds since the first failure with no answer in between; 0.0 while the service answers, refusals included.

        A pause longer than `timeout_s` in which nobody asked does not count: nobody knows how the service was.
        """
        return 0.0 if self._failed_first is None else time.monotonic() - self._failed_first - self._pause_s()

    async def score(self, messages: Sequence[Message], tools: str | None = None) -> RewardScore:
        """The raw score of a conversation that ends with the assistant.

        Args:
            tools: the tools' schemas, a JSON list as a text (`Preference.tools`).
        Raises:
            ScorerRefusedError: the service will not score this; the message names the field.
            ScorerUnavailableError: no score within `timeout_s` or `max_attempts`.
        """
        body: dict[str, Any] = {"messages": [message.to_dict() for message in messages], "use_activation": False}
        if tools:
            body["chat_template_kwargs"] = {"tools": json.loads(tools)}
        deadline = time.monotonic() + self.timeout_s
        if self._failed_first is not None:
            self._failed_first += self._pause_s()
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
        """Whether the service says that it can score now."""
        for path in ("/readyz", "/health"):  # ours, vLLM's
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

    async def _until_answered(self, body: dict[str, Any], deadline: float) -> RewardScore:
        for attempt in range(self.max_attempts):
            await self._circuit()
            try:
                score = await self._ask(body)
                self._answers()
                return score
            except ScorerRefusedError:
                self._answers()
                raise
            except _AgainError as again:
                self._failed(str(again), counts=again.after_s is None)
                pause = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S) * random.uniform(0.5, 1.5)
                pause = max(pause, again.after_s or 0.0)
                if attempt + 1 == self.max_attempts or time.monotonic() + pause >= deadline:
                    raise self._unavailable(f"given up after {attempt + 1} attempts") from None
            await asyncio.sleep(pause)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _circuit(self) -> None:
        """Return when this call may go out: always while the circuit is closed, else as the one that probes."""
        while self._failures >= OPEN_AFTER:
            now = time.monotonic()
            if now >= self._probe_at:
                self._probe_at = now + PROBE_EVERY_S
                return
            if self.down_s > self.timeout_s:
                raise self._unavailable("the circuit is open")
            await asyncio.sleep(min(self._probe_at - now, PROBE_EVERY_S / 10))

    async def _ask(self, body: dict[str, Any]) -> RewardScore:
        status, said, after_s = await self._post(body)
        if status == 400 and "maximum context length" in said:  # vLLM cuts only when asked to; our service always does
            status, said, after_s = await self._post(body | {"truncate_prompt_tokens": -1, "truncation_side": "left"})
            if status == 200:
                return RewardScore(_read(said).value, truncated=True)
        if status == 200:
            return _read(said)
        if status in (408, 429) or status >= 500:
            raise _AgainError(f"{status} {said[:200]}", after_s)
        raise ScorerRefusedError(f"{self.base_url} answered {status}: {said[:500]}")

    async def _post(self, body: dict[str, Any]) -> tuple[int, str, float | None]:
        try:
            async with self._open().post(self.base_url + "/classify", json=body, allow_redirects=False) as answer:
                return answer.status, await answer.text(), _seconds(answer.headers.get("Retry-After"))
        except (aiohttp.ClientError, OSError) as error:
            raise _AgainError(f"{type(error).__name__}: {error}", None) from None

    def _answers(self) -> None:
        self._failed_first, self._failures = None, 0

    def _pause_s(self) -> float:
        """How long nobody has asked, where that is longer than one score may take."""
        pause = 0.0 if self._asking else time.monotonic() - self._asked_last
        return pause if pause > self.timeout_s else 0.0

    def _failed(self, reason: str, *, counts: bool) -> None:
        """`counts`: towards the circuit; a service that names a `Retry-After` is alive, only busy."""
        self._last_reason = reason
        self._failures += counts
        if self._failed_first is None:
            self._failed_first = time.monotonic()

    def _unavailable(self, what: str) -> ScorerUnavailableError:
        return ScorerUnavailableError(
            f"{self.base_url}: {what}; last: {self._last_reason}; no success for {self.down_s:.0f} s. "
            "Is `reward_model/inference_api.py` running there? `/readyz` and its log say more"
        )


class _AgainError(Exception):
    def __init__(self, reason: str, after_s: float | None) -> None:
        super().__init__(reason)
        self.after_s = after_s


def _read(said: str) -> RewardScore:
    """The score of an answer of `/classify`."""
    try:
        (item,) = json.loads(said)["data"]
        (value,) = item["probs"]
        return RewardScore(float(value), truncated=bool(item.get("truncated", False)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _AgainError(f"an answer that is no single score ({error}): {said[:200]}", None) from None


def _seconds(retry_after: str | None) -> float | None:
    """`Retry-After` in seconds; its other form, a date, is taken as not said."""
    try:
        return max(0.0, float(retry_after or "x"))
    except ValueError:
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_args(arguments)
    try:
        return asyncio.run(_run(args))
    except (ScorerUnavailableError, ScorerRefusedError, PreferenceFileError) as error:
        print(error, file=sys.stderr)
        return 1


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m reward_model.client",
        description="Score one answer, compare two, or score a file of preferences; one JSON object a line.",
        epilog=f"A service that wants a token reads it from {TOKEN_VARIABLE}, and so does this command.",
    )
    parser.add_argument("--url", default="http://127.0.0.1:8008", help="of the service, default %(default)s")
    parser.add_argument("--prompt", help="what the user said")
    parser.add_argument("--response", help="the answer to score")
    parser.add_argument("--chosen", help="with --rejected: the answer that should score higher")
    parser.add_argument("--rejected", help="the other answer")
    parser.add_argument("--file", type=Path, help="a converted file of preferences; ends with the share it gets right")
    parser.add_argument("--timeout_s", type=positive, default=30.0, help="deadline of one score, default %(default)s")
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
            score = await client.score([_said("user", args.prompt), _said("assistant", args.response)])
            _print({"score": score.value}, score)
        elif args.file is None:
            ask, sides = (_said("user", args.prompt),), (args.chosen, args.rejected)
            await _compare(
                client,
                Preference(
                    prompt=ask, chosen=(_said("assistant", sides[0]),), rejected=(_said("assistant", sides[1]),)
                ),
            )
        else:
            rows = read_preferences(args.file)
            right = [await _compare(client, row) for row in rows]
            print(f"{sum(right)} of {len(rows)} chosen answers scored higher", file=sys.stderr)
    return 0


async def _compare(client: RewardClient, row: Preference) -> bool:
    chosen, rejected = await asyncio.gather(
        client.score([*row.prompt, *row.chosen], row.tools), client.score([*row.prompt, *row.rejected], row.tools)
    )
    difference = chosen.value - rejected.value
    preference = "chosen" if difference > 0 else "rejected" if difference < 0 else "tie"
    _print(
        {
            "chosen_score": chosen.value,
            "rejected_score": rejected.value,
            "preference": preference,
            "score_diff": difference,
        },
        chosen,
        rejected,
    )
    return difference > 0


def _said(role: Any, content: str) -> Message:
    return Message(role=role, content=content)


def _print(line: dict[str, Any], *scores: RewardScore) -> None:
    print(json.dumps(line | ({"truncated": True} if _any_cut(scores) else {})))


def _any_cut(scores: Iterable[RewardScore]) -> bool:
    return any(score.truncated for score in scores)


if __name__ == "__main__":
    execute(main)
