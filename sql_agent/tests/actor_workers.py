"""One of verl's own actor workers on a CPU, without Ray and beside others of its kind: what they make of the same rows.

    RANK=R WORLD_SIZE=W MASTER_PORT=PORT python -m sql_agent.tests.actor_workers MODEL PLAN...

A plan is JSON, [FOLDER, FROM, TO, SETTING...]: train steps FROM to TO, from the checkpoint of the step before if there
is one, with a checkpoint after each in FOLDER/N/actor. Every step has four groups of four rows in two mini-batches.
The first worker writes a line of JSON a step into FOLDER/metrics.jsonl: its metrics, and the tokens of each worker.
Every plan has a worker of its own, which begins with the random numbers of a new process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sql_agent.settings.load import load_config
from sql_agent.tests.engine_worker import GROUP, make_batch
from sql_agent.verl_side.config import Files, compose, to_verl

GROUPS = 4
LOST = {1: (3, *range(8, 12)), 2: (*range(4), *range(8, 16)), 3: ()}
"""Rows that are lost, by step: one of the first mini-batch and a group of the second, so all rows of one of two workers
there; a group of the first and all of the second; none."""


def main() -> None:
    import torch

    model, *plans = sys.argv[1:]
    drawn = torch.get_rng_state()
    for plan in plans:
        torch.set_rng_state(drawn)
        take(model, *json.loads(plan))
    sys.stdout.flush()
    os._exit(0)  # torch.distributed leaves threads behind


def take(model: str, folder: str, first: int, last: int, *given: str) -> None:
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.utils.metric import reduce_metrics
    from verl.workers.engine_workers import ActorRolloutRefWorker

    from sql_agent.verl_side.tracking import rename_verl_metrics

    settings = [
        "optim.learning_rate=5e-4",
        f"cluster.workers_per_node={workers}",
        f"data.train_batch_size={GROUPS}",
        f"rollout.group_size={GROUP}",
        "optim.mini_batch_size=2",
        "data.max_prompt_tokens=20",
        "data.max_response_tokens=70",
        "agent.max_tokens=60",
        "agent.temperature=0.7",
        "loss.entropy_coef=0.01",
        *given,
    ]
    unused = Path("unused.parquet")
    verl = compose(to_verl(load_config(None, settings), Files(Path(model), unused, unused), cpu=True))
    worker = ActorRolloutRefWorker(verl.actor_rollout_ref, role="actor")
    worker.init_model()
    trainer: Any = SimpleNamespace(config=verl, actor_rollout_wg=worker, _get_dp_size=lambda *_: workers)
    if first > 1:
        worker.load_checkpoint(f"{folder}/{first - 1}/actor")
    for step in range(first, last + 1):
        vocabulary = worker.actor.engine.module.config.vocab_size
        whole, _ = make_batch(vocabulary, 20, 30, GROUPS, lost=LOST[step], seed=step)
        balance: dict[str, float] = {}
        if verl.trainer.balance_batch:
            RayPPOTrainer._balance_batch(trainer, whole, metrics=balance)
        batch = whole.chunk(workers)[rank]
        old, _ = RayPPOTrainer._compute_old_log_prob(trainer, batch)
        old.batch.pop("entropys")
        metrics = RayPPOTrainer._update_actor(trainer, batch.union(old)).meta_info["metrics"]
        worker.save_checkpoint(f"{folder}/{step}/actor")
        if rank == 0:
            with Path(folder, "metrics.jsonl").open("a") as file:
                print(json.dumps(rename_verl_metrics(reduce_metrics(metrics)) | balance), file=file)


if __name__ == "__main__":
    main()
