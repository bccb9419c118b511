"""verl's own agent loop (`verl.experimental.agent_loop`, its tool agent) with a tool class over DB-Bench's episode.

What a user has to write: the tool class, and a subclass of the loop, which verl calls a custom agent loop: it gives a
rollout its episode, the reward and a limit of a reply, and ends it at the commit, where verl's loop as it comes goes on
until a reply without a call. The rest of the subclass counts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.tool_agent_loop import AgentState, ToolAgentLoop
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

from bench.parts.peers.order import Order, append_lines
from bench.parts.peers.verl_peer import ORDER, ROLLOUTS
from bench.parts.peers.world import count_sampled, open_world, trained_pieces, value_of
from sql_agent.settings.groups import AgentConfig

_opened: dict[str, Any] = {}


def setting() -> tuple[Order, Any]:
    """This process's order, and the world of its episodes."""
    if not _opened:
        _opened["order"] = Order.read(Path(os.environ[ORDER]))
        _opened["world"] = open_world().__enter__()  # it ends with the process
    return _opened["order"], _opened["world"]


class EpisodeTool(BaseTool):
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> tuple[Any, float, dict]:
        episode = kwargs["agent_data"].tools_kwargs["episode"]
        return ToolResponse(text=episode.call_tool(self.name, json.dumps(parameters))), 0.0, {}


_Loop: Any = ToolAgentLoop  # verl's `register` hides its type


class EpisodeLoop(_Loop):
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        order, world = setting()
        episode = world.open(world.task(json.loads(kwargs["extra_info"]["task"])), AgentConfig())
        replies: list[list[int]] = []
        self.server_manager = _Recorded(self.server_manager, replies)
        try:
            limited = {**sampling_params, "max_tokens": order.sizes.reply_tokens}
            output = await super().run(limited, **{**kwargs, "tools_kwargs": {"episode": episode}})
            output.reward_score = value_of(world, episode)
        finally:
            episode.close()
        pieces = trained_pieces(output.response_ids, output.response_mask)
        counts = {"trained": sum(map(len, pieces)), "sampled": count_sampled(pieces, replies)}
        append_lines(order.folder / ROLLOUTS, [counts])
        return output

    async def _handle_processing_tools_state(self, agent_data: Any) -> Any:
        state = await super()._handle_processing_tools_state(agent_data)
        return AgentState.TERMINATED if agent_data.tools_kwargs["episode"].done else state


class _Recorded:
    """verl's client of its vLLM, which keeps what that returned."""

    def __init__(self, client: Any, replies: list[list[int]]) -> None:
        self._client, self._replies = client, replies

    async def generate(self, **kwargs: Any) -> Any:
        output = await self._client.generate(**kwargs)
        self._replies.append(list(output.token_ids))
        return output
