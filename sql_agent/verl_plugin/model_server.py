"""verl's model server (workers/rollout/vllm_rollout/vllm_async_server.py) looks at itself before it serves."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from sql_agent import patches


def _check_before_serving(module: ModuleType) -> None:
    upstream = module.vLLMHttpServer.run_server

    async def run_server(self: Any, args: Any) -> None:
        await upstream(self, args)  # imports what it serves with
        patches.require("server")

    module.vLLMHttpServer.run_server = run_server
