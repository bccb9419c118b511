"""A checkpoint engine of verl's in place of NCCL: a file in the run's folder, which servers on a CPU can read."""

import asyncio
import os
import time
from pathlib import Path

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry


@CheckpointEngineRegistry.register("folder")
class FolderEngine(CheckpointEngine):
    def __init__(self, bucket_size, is_master=False):
        self.is_master = is_master

    def prepare(self):
        return None

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        file = f"{os.environ['TMPDIR']}/weights-{time.monotonic_ns()}.pt"
        return {"file": [file] * actor_wg_world_size}, {"file": [file] * rollout_world_size}

    def init_process_group(self, file):
        self.file = Path(file)

    def finalize(self):
        self.file.unlink(missing_ok=True)

    async def send_weights(self, weights, global_steps=None):
        whole = {name: weight.detach().clone() for name, weight in weights}  # every worker takes part in each
        if self.is_master:
            torch.save(whole, self.file.with_suffix(".new"))
            self.file.with_suffix(".new").rename(self.file)

    async def receive_weights(self, global_steps=None):
        while not self.file.exists():
            await asyncio.sleep(0.05)
        weights = torch.load(self.file)
        with Path(os.environ["WEIGHTS_READ"]).open("a") as file:  # Ray may lose a line that a worker prints at the end
            file.write("read\n")
        for name, weight in weights.items():
            yield name, weight
