"""Runs agent-lightning's LLM proxy in a process of its own, at little cost, and records what training needs.

A rollout's calls of the policy bypass LiteLLM (`rollout_route`), which takes 9 to 14 ms of CPU a call (measured) and
has nothing to translate between two OpenAI-compatible ends. All other calls go through it. Each answered call writes
one span with the name and attributes that `LlmProxyTraceToTriplet` reads. Sequence ids are counted here, without asking
the store.

    python -m sql_agent.lightning.llm_proxy --store http://127.0.0.1:9999 --port 0

The command accepts the token in AGENTGRPO_TOKEN and sends it to the model servers. It reads one JSON line from standard
input, `{"model": NAME, "backends": [URL, ...]}`, so its imports overlap with the start of those servers. Then it writes
one line, `{"url": ...}`, and ends when standard input closes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from agentgrpo.flags import Parser
from agentgrpo.http_protocol import guard_upstreams_servers
from agentgrpo.machine import free_port, port_number
from agentgrpo.processes import Events, end_with_parent

if __name__ == "__main__":
    end_with_parent()  # before the imports below, which take ten seconds

import agentlightning as agl
from agentlightning.llm_proxy import get_active_llm_proxy
from agentlightning.utils.server_launcher import PythonServerLauncherArgs

from sql_agent.lightning.spans import turn_span
from sql_agent.lightning.store import PatientStore
from sql_agent.model_address.request_guard import RUN_TOKEN, authorization
from sql_agent.model_address.request_limits import UNKNOWN_CONTEXT, RequestLimits
from sql_agent.model_address.rollout_route import ProxyRequestGuard, RolloutRoute, Turn
from sql_agent.model_servers.turns import turn_of

logger = logging.getLogger(__name__)


async def write(turn: Turn) -> None:
    store = get_active_llm_proxy().get_store()
    assert store is not None
    try:
        ids = turn.rollout_id, turn.attempt_id, turn.sequence_id
        attributes = turn_of(turn.answer, agent=turn.agent, asked_again=turn.asked_again)
        await store.add_span(turn_span(attributes, *ids, started=turn.started))
    except Exception:  # the rollout manager will miss the span and count the rollout as lost
        logger.exception("the span of rollout %s, call %d is lost", turn.rollout_id, turn.sequence_id)


def model_list(model: str, servers: dict[str, str], timeout_s: float) -> list[dict[str, Any]]:
    """Return LiteLLM's entries for the same servers, for calls that belong to no rollout."""
    return [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"hosted_vllm/{model}",
                "api_base": f"{url}/",
                "api_key": f"os.environ/{RUN_TOKEN}",  # LiteLLM looks there: its config is a file
                "timeout": timeout_s,
            },
        }
        for name, url in servers.items()
    ]


async def serve(store_url: str, host: str, port: int, timeout_s: float, context_tokens: int, events: Events) -> None:
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    line = await stdin.readline()
    if not line:
        return
    order = json.loads(line)
    # each server has its own name, so that a rollout can stay with one
    servers = {f"policy-{i}": f"{url}/v1" for i, url in enumerate(order["backends"])}
    RolloutRoute.servers, RolloutRoute.served_model, RolloutRoute.timeout_s = servers, order["model"], timeout_s
    RolloutRoute.headers, RolloutRoute.write = authorization(RUN_TOKEN), write
    RolloutRoute.limits = RequestLimits(context_tokens)
    guard_upstreams_servers()
    proxy = agl.LLMProxy(
        store=PatientStore(store_url),
        model_list=model_list(order["model"], servers, timeout_s),  # type: ignore[arg-type]
        litellm_config={"litellm_settings": {"num_retries": 0, "telemetry": False}},
        launcher_args=PythonServerLauncherArgs(
            host=host,
            access_host=host,
            port=port or free_port(host),
            launch_mode="thread",
            healthcheck_url="/health/liveliness",
        ),
        middlewares=[RolloutRoute, ProxyRequestGuard],  # type: ignore[list-item]
        callbacks=[],
    )
    await proxy.start()
    gc.collect()
    gc.freeze()  # later collections skip LiteLLM's 860,000 objects, which took 0.6 s without answers (measured)
    events.emit({"url": f"http://{host}:{proxy.server_launcher_args.port}"})
    await stdin.read()  # returns when the parent process is gone
    await proxy.stop()


def main() -> None:
    events = Events()
    parser = Parser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", required=True, help="address of the agent-lightning store")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default loopback)")
    parser.add_argument("--port", type=port_number, default=0, help="port; 0 picks a free one")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="longest model call")
    parser.add_argument("--context-tokens", type=int, default=UNKNOWN_CONTEXT, help="context length of the policy")
    args = parser.parse_args()
    asyncio.run(serve(args.store, args.host, args.port, args.timeout_s, args.context_tokens, events))


if __name__ == "__main__":
    main()
