"""Runs agent-lightning's LLM proxy unchanged, in its own process: `python -m bench.parts.default_proxy --store URL`.

It has its own middlewares, LiteLLM and OpenTelemetry callbacks. It reads and answers one line of JSON as our proxy does
(`sql_agent.lightning.llm_proxy`), and ends with standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# agent-lightning 0.3.0 gives its proxy no key, without which LiteLLM 1.108.7 does not start; it is on loopback
os.environ.setdefault("LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY", "true")

import agentlightning as agl
from agentlightning.utils.server_launcher import PythonServerLauncherArgs

from agentgrpo.machine import free_port
from agentgrpo.processes import Events, end_with_parent
from sql_agent.model_address.request_guard import RUN_TOKEN


async def serve(store_url: str, server_url: str, model: str, events: Events) -> None:
    port = free_port()
    proxy = agl.LLMProxy(
        store=agl.LightningStoreClient(store_url),
        model_list=[
            {
                "model_name": "policy-0",
                "litellm_params": {
                    "model": f"hosted_vllm/{model}",
                    "api_base": f"{server_url}/v1/",
                    "api_key": f"os.environ/{RUN_TOKEN}",  # LiteLLM looks there: its config is a file
                    "timeout": 120.0,
                },
            }
        ],
        launcher_args=PythonServerLauncherArgs(
            host="127.0.0.1",
            access_host="127.0.0.1",
            port=port,
            launch_mode="thread",
            healthcheck_url="/health/liveliness",
        ),
    )
    await proxy.start()
    events.emit({"url": f"http://127.0.0.1:{port}"})
    await asyncio.to_thread(sys.stdin.read)
    await proxy.stop()


def main() -> None:
    events = Events()
    end_with_parent()
    order = json.loads(sys.stdin.readline())
    asyncio.run(serve(sys.argv[2], order["backends"][0], order["model"], events))


if __name__ == "__main__":
    main()
