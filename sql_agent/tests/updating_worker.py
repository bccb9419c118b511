"""verl's own actor worker on a CPU, without Ray, driven by its trainer's own `_update_actor`: what updates do to it.

    python -m sql_agent.tests.updating_worker MODEL PORT LOSS_AGG_MODE,... BATCH...

A batch is a word of `r` (a rollout) and `-` (a lost one), two of them a mini-batch. Answers a line of JSON per batch,
with a worker of its own for each way to aggregate the loss.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sql_agent.settings.load import load_config
from sql_agent.verl_side.config import Files, compose, to_verl

SETTINGS = ["data.train_batch_size=2", "rollout.group_size=2", "optim.mini_batch_size=1"]
SETTINGS += ["optim.learning_rate=5e-4", "optim.weight_decay=0.1"]


def main() -> None:
    model, port, aggregations, *batches = sys.argv[1:]
    os.environ |= {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for aggregation in aggregations.split(","):
        play(model, aggregation, batches)
    sys.stdout.flush()
    os._exit(0)  # torch.distributed leaves threads behind


def play(model: str, aggregation: str, batches: list[str]) -> None:
    from verl.workers.engine_workers import ActorRolloutRefWorker

    unused = Path("unused.parquet")
    verl = compose(to_verl(load_config(None, SETTINGS), Files(Path(model), unused, unused), cpu=True))
    verl.actor_rollout_ref.actor.loss_agg_mode = aggregation
    worker = ActorRolloutRefWorker(verl.actor_rollout_ref, role="actor")
    worker.init_model()
    trainer: Any = SimpleNamespace(config=verl, actor_rollout_wg=worker)
    for batch in batches:
        before = state(worker)
        metrics = update(trainer, batch)
        after = state(worker)
        changed = {name: not same(before[name], after[name]) for name in ("weights", "moments")}
        print(json.dumps({"metrics": metrics, "changed": changed, "steps": after["steps"] - before["steps"]}))


def update(trainer: Any, word: str) -> dict[str, float]:
    """One train step's update; its metrics as they reach metrics.jsonl."""
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.utils.metric import reduce_metrics

    from sql_agent.source.batch import to_tensors
    from sql_agent.tests.records import make_row
    from sql_agent.verl_side.tracking import rename_verl_metrics

    row = make_row((1, 50, 60), (70, 71, 72), (1, 0, 1), (-6.9, 0.0, -6.9), 2)
    rows = [row if letter == "r" else None for letter in word]
    tensors = to_tensors(rows, [1.0 if row else None for row in rows], pad_id=0)
    # not centred: rows that are all alike have to move the policy
    batch = DataProto.from_single_dict(tensors | {"advantages": 1.0 * tensors["response_mask"]})
    batch.meta_info = {"temperature": 1.0, "global_token_num": batch.batch["attention_mask"].sum(dim=1).tolist()}
    old, _ = RayPPOTrainer._compute_old_log_prob(trainer, batch)
    old.batch.pop("entropys")
    output = RayPPOTrainer._update_actor(trainer, batch.union(old))
    return rename_verl_metrics(reduce_metrics(output.meta_info["metrics"]))


def state(worker: Any) -> dict[str, Any]:
    """Weights, AdamW's moments, and its steps."""
    engine = worker.actor.engine
    states = list(engine.optimizer.state.values())
    return {
        "weights": [whole(parameter) for parameter in engine.module.parameters()],
        "moments": [whole(state[name]) for state in states for name in ("exp_avg", "exp_avg_sq")],
        "steps": int(states[0]["step"]) if states else 0,
    }


def whole(tensor: Any) -> Any:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def same(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(bool((a == b).all()) for a, b in zip(before, after, strict=True))


if __name__ == "__main__":
    main()
