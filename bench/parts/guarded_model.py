"""Serves a scripted policy behind the guard of verl's model servers, for `bench.hostile_requests`.

It writes one line, `{"url": ...}`, and ends when standard input closes.
"""

from __future__ import annotations

import sys

from agentgrpo.processes import Events
from sql_agent import oracle
from sql_agent.model_address.request_guard import ModelServerGuard

ANSWER_S = 0.05


def main() -> None:
    script = oracle.recite([{"role": "assistant", "content": "done"}])
    with oracle.serve(ModelServerGuard(oracle.app(script, latency_s=ANSWER_S))) as url:
        Events().emit({"url": url.removesuffix("/v1")})
        sys.stdin.read()


if __name__ == "__main__":
    main()
