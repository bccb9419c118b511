"""The runners of agent-lightning, unchanged: `python -m bench.parts.peers.agl_agent STORE_URL`; they play until ended.

The agent is openai-agents' with DB-Bench's tools, and ends at the commit.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import agentlightning as agl

from agentgrpo.processes import end_with_parent
from bench.parts.peers.order import Order
from bench.parts.peers.verl_peer import ORDER
from bench.parts.peers.world import open_world, value_of
from dbbench_adapter.protocols.fc import TOOLS

# A runner plays one rollout at a time. It looks for the next every 5 s unless told otherwise, longer than a step takes.
RUNNERS, POLL_S = 8, 0.1


class Episodes(agl.LitAgent[dict[str, Any]]):
    def __init__(self, order: Order) -> None:
        super().__init__()
        self.sizes, self.world = order.sizes, open_world().__enter__()  # it ends with the process

    async def rollout_async(self, task: dict[str, Any], resources: Any, rollout: Any) -> float:
        from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner, StopAtTools
        from agents.exceptions import AgentsException
        from openai import APIStatusError, AsyncOpenAI

        from sql_agent.settings.groups import AgentConfig

        model = resources["main_llm"]
        address = model.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        client = AsyncOpenAI(base_url=address, api_key="-", max_retries=0)
        its_task = self.world.task(task)
        rules, question = self.world.messages(its_task)
        settings = ModelSettings(temperature=1.0, max_tokens=self.sizes.reply_tokens)
        with self.world.open(its_task, AgentConfig()) as episode:
            agent = Agent(
                name="dbbench",
                instructions=rules["content"],
                tools=list(map(_tool(episode), TOOLS)),
                model=OpenAIChatCompletionsModel(model=model.model, openai_client=client),
                model_settings=settings,
                tool_use_behavior=StopAtTools(stop_at_tool_names=["commit_final_answer"]),
            )
            with suppress(AgentsException, APIStatusError):  # a call of no tool, or the context is full
                await Runner.run(agent, question["content"], max_turns=15, run_config=RunConfig(tracing_disabled=True))
            return value_of(self.world, episode)


def _tool(episode: Any) -> Any:
    from agents import FunctionTool

    def made(schema: dict[str, Any]) -> Any:
        function = schema["function"]

        async def call(_: Any, arguments: str) -> str:
            return episode.call_tool(function["name"], arguments)

        return FunctionTool(
            name=function["name"],
            description=function["description"],
            params_json_schema=function["parameters"],
            on_invoke_tool=call,
            strict_json_schema=False,
        )

    return made


class NoAlgorithm(agl.Algorithm):
    def run(self, *_: Any, **__: Any) -> None:
        """verl's process has the algorithm."""


def main() -> None:
    end_with_parent()
    trainer = agl.Trainer(
        algorithm=NoAlgorithm(),
        n_runners=RUNNERS,
        store=agl.LightningStoreClient(sys.argv[1]),
        runner=agl.LitAgentRunner(agl.OtelTracer(), poll_interval=POLL_S, interval_jitter=POLL_S / 2),
        tracer=agl.OtelTracer(),
        adapter=agl.LlmProxyTraceToTriplet(),
    )
    trainer.fit(Episodes(Order.read(Path(os.environ[ORDER]))), [json.loads("{}")])


if __name__ == "__main__":
    main()
