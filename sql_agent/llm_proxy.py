"""agent-lightning's LLM proxy in a process of its own, set up to cost little and to record what training needs.

Against its default set-up (measured, 16 requests at once, instant model server: 64 requests/s and 7 spans a call; here
115 requests/s and 1 span): sequence ids are counted here instead of asked of the store, and one span per call is
written with the engine's ids and log-probs instead of LiteLLM's OpenTelemetry subtree. The span has the name and
attributes that `LlmProxyTraceToTriplet` reads.

    python -m sql_agent.llm_proxy --store http://127.0.0.1:9999 --port 0

reads one JSON line from standard input, `{"model": NAME, "backends": [URL, ...]}`, so that its imports overlap with the
start of the servers it will serve; it then answers one line, `{"url": ...}`, and ends when standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import socket
import sys
from collections import Counter
from datetime import datetime
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import agentlightning as agl
from agentlightning.llm_proxy import get_active_llm_proxy
from agentlightning.types import Span, SpanCoreFields, TraceStatus
from agentlightning.utils.server_launcher import PythonServerLauncherArgs
from litellm.integrations.custom_logger import CustomLogger

from sql_agent.processes import Events
from sql_agent.stitch import TURN_SPAN, turn_attributes

logger = logging.getLogger(__name__)

_ROLLOUT_PATH = re.compile(r"/rollout/([^/]+)/attempt/([^/]+)(/.*)")


class RolloutRoute:
    """Turns `/rollout/{id}/attempt/{id}/...` into headers that the callbacks can read.

    Stands in for agent-lightning's `RolloutAttemptMiddleware`, which asks the store for every sequence id. One proxy
    process serves a run, so counting here gives the same numbers; the store catches up with the highest it sees.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.sequence_ids: Counter[tuple[str, str]] = Counter()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        match = _ROLLOUT_PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if match:
            rollout_id, attempt_id, path = match.groups()
            self.sequence_ids[rollout_id, attempt_id] += 1
            ids = {
                b"x-rollout-id": rollout_id,
                b"x-attempt-id": attempt_id,
                b"x-sequence-id": str(self.sequence_ids[rollout_id, attempt_id]),
            }
            headers = [*scope["headers"], *((name, value.encode()) for name, value in ids.items())]
            scope = {**scope, "path": path, "raw_path": path.encode(), "headers": headers}
        await self.app(scope, receive, send)


class AskForTokens(CustomLogger):
    """Asks the engine for token ids and for the log-probs of the sampled ones."""

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: Any
    ) -> dict[str, Any]:
        return {**data, "return_token_ids": True, "logprobs": True}


class RecordTurn(CustomLogger):
    """Writes one span per model call to the store."""

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime
    ) -> None:
        headers = kwargs["litellm_params"]["metadata"]["headers"]
        if "x-rollout-id" not in headers:
            return  # not a rollout's call
        raw = kwargs["original_response"]
        span = Span.from_core_fields(
            SpanCoreFields(
                name=TURN_SPAN,
                attributes=turn_attributes(json.loads(raw) if isinstance(raw, str) else raw),
                start_time=start_time.timestamp(),
                end_time=end_time.timestamp(),
                status=TraceStatus(status_code="OK"),
            ),
            rollout_id=headers["x-rollout-id"],
            attempt_id=headers["x-attempt-id"],
            sequence_id=int(headers["x-sequence-id"]),
        )
        store = get_active_llm_proxy().get_store()
        assert store is not None
        await store.add_span(span)


def model_list(model: str, backends: list[str], timeout_s: float) -> list[dict[str, Any]]:
    """LiteLLM's entries: `policy-0`, `policy-1`, ... name one server each, so a rollout can keep to its own."""
    return [
        {
            "model_name": f"policy-{i}",
            "litellm_params": {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1/", "timeout": timeout_s},
        }
        for i, url in enumerate(backends)
    ]


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


async def serve(store_url: str, port: int, timeout_s: float, events: Events) -> None:
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    line = await stdin.readline()
    if not line:
        return
    order = json.loads(line)
    proxy = agl.LLMProxy(
        store=agl.LightningStoreClient(store_url, retry_delays=(0.2, 0.5, 1.0)),
        model_list=model_list(order["model"], order["backends"], timeout_s),  # type: ignore[arg-type]
        litellm_config={"litellm_settings": {"num_retries": 0, "telemetry": False}},
        launcher_args=PythonServerLauncherArgs(
            host="127.0.0.1",
            access_host="127.0.0.1",
            port=port or free_port(),
            launch_mode="thread",
            healthcheck_url="/health/liveliness",
        ),
        middlewares=[RolloutRoute],  # type: ignore[list-item]
        callbacks=[AskForTokens, RecordTurn],
    )
    await proxy.start()
    events.emit({"url": f"http://127.0.0.1:{proxy.server_launcher_args.port}"})
    await stdin.read()  # until whoever started us is gone
    await proxy.stop()


def main() -> None:
    events = Events()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", required=True, help="address of the agent-lightning store")
    parser.add_argument("--port", type=int, default=0, help="port on loopback; 0 picks a free one")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="longest model call")
    args = parser.parse_args()
    asyncio.run(serve(args.store, args.port, args.timeout_s, events))


if __name__ == "__main__":
    main()
