"""Rollouts of agent-lightning for verl's trainer, one sample a turn, as agent-lightning's own trainer has them.

agent-lightning 0.3.0 trains with verl through `agl.VERL`, which does not import beside verl 0.9.1: it wants
`create_rl_sampler` of `verl.trainer.main_ppo`, and workers that verl has removed. The smallest change that lets it
train is a rollout manager of verl's (`agent_loop_manager_class`), which this is: it queues a step's rollouts, waits for
them, and hands verl a row for each turn that agent-lightning's adapter finds, each with its rollout's reward and its
task as its group, as `agentlightning/verl/daemon.py` does (aggregation `transition`, the default).

verl's trainer takes a row per rollout, so two methods of its batch are changed in its process (`Turns`).
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import agentlightning as agl
import numpy as np
import torch
from agentlightning.utils.server_launcher import PythonServerLauncherArgs
from omegaconf import open_dict
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo import ray_trainer

from agentgrpo.machine import free_port
from bench.parts.peers.order import Order, append_lines
from bench.parts.peers.verl_peer import ORDER, ROLLOUTS, STORE

POLL_S = 0.1
# A row of the batch: the rollout's place among verl's prompts, the ids of prompt and reply, the reward.
Sample = tuple[int, list[int], list[int], float]


class Turns(DataProto):
    """A batch whose rows are turns; the trainer repeats its own rows as often."""

    of: ClassVar[np.ndarray | None] = None
    """For each turn of a batch that has just been played the place of its task; the next `repeat` uses it up."""

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> DataProto:
        of, Turns.of = Turns.of, None
        return super().repeat(repeat_times, interleave) if of is None else self.select_idxs(of)

    def slice(self, *args: Any, **kwargs: Any) -> DataProto:
        return self  # the trainer would cut it to a row a rollout


class TurnManager:
    def __init__(self, config: Any, llm_client: Any, **_: Any) -> None:
        self.config, self.llm_client = config, llm_client
        self.order = Order.read(Path(os.environ[ORDER]))
        self.store, self.adapter = agl.LightningStoreClient(os.environ[STORE]), agl.LlmProxyTraceToTriplet()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self._run(self._start())

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> TurnManager:
        return cls(*args, **kwargs)

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        return self._run(self._rollouts(prompts))

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def _start(self) -> None:
        address, _ = await self.llm_client._acquire_server("peer")
        port = free_port()
        backend = {
            "model": f"hosted_vllm/{self.config.actor_rollout_ref.model.path}",
            "api_base": f"http://{address}/v1/",
        }
        where = PythonServerLauncherArgs(
            host="127.0.0.1",
            access_host="127.0.0.1",
            port=port,
            launch_mode="thread",
            healthcheck_url="/health/liveliness",
        )
        models: Any = [{"model_name": "policy", "litellm_params": backend}]
        self.proxy = agl.LLMProxy(store=self.store, model_list=models, launcher_args=where)
        await self.proxy.start()

    async def _rollouts(self, prompts: DataProto) -> DataProto:
        started = time.monotonic()
        tasks = [json.loads(row["task"]) for row in prompts.non_tensor_batch["extra_info"]]
        resources = await self.store.add_resources({"main_llm": self.proxy.as_resource(model="policy")})
        queued = [
            await self.store.enqueue_rollout(input=t, mode="train", resources_id=resources.resources_id) for t in tasks
        ]
        ids, done = [rollout.rollout_id for rollout in queued], 0
        while done < len(ids):
            await asyncio.sleep(POLL_S)
            done = len(await self.store.wait_for_rollouts(rollout_ids=ids, timeout=0))
        samples: list[Sample] = []
        for place, rollout in enumerate(ids):
            spans = await self.store.query_spans(rollout, attempt_id="latest")
            samples += of_rollout(place, self.adapter.adapt(spans))
        if not samples:
            raise RuntimeError(f"none of {len(ids)} rollouts left a turn; runners.log says why")
        trained = [0] * len(ids)
        for place, _, reply, _ in whole_groups(samples, self.order.sizes.group_size):
            trained[place] += len(reply)
        append_lines(self.order.folder / ROLLOUTS, [{"trained": n, "sampled": n} for n in trained])
        batch = self._batch(samples)
        batch.meta_info = {"timing": {"rollouts": time.monotonic() - started}, "reward_extra_keys": []}
        return batch

    def _batch(self, samples: Sequence[Sample]) -> DataProto:
        rows = whole_groups(samples, self.order.sizes.group_size)
        Turns.of = np.array([place // self.order.sizes.group_size for place, *_ in rows])
        # one update a step, as the others make
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.ppo_mini_batch_size = len(rows) // self.order.sizes.group_size
        tensors = to_tensors(rows, pad_id=0)
        others = {"multi_modal_inputs": np.array([{} for _ in rows], dtype=object)}
        return Turns(TensorDict(tensors, batch_size=len(rows)), others)


def of_rollout(place: int, triplets: Sequence[Any]) -> list[Sample]:
    """The rows of a rollout; its reward, which is on the last turn, counts for each."""
    reward = next((t.reward for t in reversed(triplets) if t.reward is not None), 0.0)
    return [(place, t.prompt["token_ids"], t.response["token_ids"], reward) for t in triplets]


def whole_groups(samples: Sequence[Sample], size: int) -> list[Sample]:
    """The samples without the last few: verl cuts a step into mini-batches of whole groups. agent-lightning's trainer
    leaves out a remainder too."""
    return list(samples[: len(samples) // size * size])


def to_tensors(rows: Sequence[Sample], *, pad_id: int) -> dict[str, torch.Tensor]:
    """verl's layout: prompts padded left, replies right, the reward on the last token of the reply."""
    longest = max(len(prompt) for _, prompt, _, _ in rows), max(len(reply) for _, _, reply, _ in rows)
    prompts, responses = (torch.full((len(rows), width), pad_id) for width in longest)
    attended = torch.zeros(len(rows), sum(longest), dtype=torch.long)
    rewards = torch.zeros(responses.shape)
    for row, (_, prompt, reply, reward) in enumerate(rows):
        prompts[row, longest[0] - len(prompt) :] = torch.tensor(prompt)
        responses[row, : len(reply)] = torch.tensor(reply)
        attended[row, longest[0] - len(prompt) : longest[0] + len(reply)] = 1
        rewards[row, len(reply) - 1] = reward
    return {
        "prompts": prompts,
        "responses": responses,
        "response_mask": attended[:, longest[0] :].clone(),
        "rm_scores": rewards,
        "input_ids": torch.cat([prompts, responses], 1),
        "attention_mask": attended,
        "position_ids": (attended.cumsum(-1) - 1).clamp(min=0),
    }


ray_trainer.DataProto = Turns  # type: ignore[misc]
