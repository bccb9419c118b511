"""Measures one setting of an update benchmark in its own process: `python -m bench.parts.update_worker`.

It runs verl's own actor worker (`ActorRolloutRefWorker`, role "actor") without Ray, over fixed batches of rows; verl's
own `_compute_old_log_prob` and `_update_actor` drive it. It reads one line of JSON, which
`bench.parts.update.run_worker` writes, and answers with one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentgrpo.model_kinds import count_weights
from agentgrpo.processes import Events, end_with_parent
from sql_agent.settings.load import load_config
from sql_agent.startup.plan import with_learning_rate
from sql_agent.verl_side.config import Files, compose, to_verl


def main() -> None:
    events = Events()
    end_with_parent()
    spec = json.loads(sys.stdin.readline())
    os.environ |= {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(spec["port"])}
    from omegaconf import OmegaConf
    from verl.workers.engine_workers import ActorRolloutRefWorker

    if spec["upstream"]:
        _restore_upstream()
    unused = Path("unused.parquet")
    cfg, model = load_config(None, spec["settings"]), Path(spec["model"])
    optim, _ = with_learning_rate(cfg.optim, count_weights(model), lora=cfg.lora.rank > 0)
    verl = compose(to_verl(cfg.model_copy(update={"optim": optim}), Files(model, unused, unused), cpu=True))
    for key, value in spec["verl"].items():
        OmegaConf.update(verl, key, value, force_add=True)
    worker = ActorRolloutRefWorker(verl.actor_rollout_ref, role="actor")
    worker.init_model()
    results = {}
    for name, rows in spec["batches"].items():
        # one update over all rows, whatever their number
        verl.actor_rollout_ref.actor.ppo_mini_batch_size = len(rows) // verl.actor_rollout_ref.rollout.n
        results[name] = _measure(verl, worker, rows, spec["pad_to"], spec["repeats"])
    events.emit(results)
    os._exit(0)  # torch.distributed leaves threads behind


def _measure(verl: Any, worker: Any, rows: Sequence[Any], pad_to: int | None, repeats: int) -> dict[str, Any]:
    import numpy as np
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    trainer: Any = SimpleNamespace(config=verl, actor_rollout_wg=worker)
    seconds: dict[str, list[float]] = {"log_probs_s": [], "update_s": []}
    log_prob_sum = None
    for _ in range(1 + repeats):  # the first repetition warms up
        group = verl.actor_rollout_ref.rollout.n
        ids = np.array([str(i // group) for i in range(len(rows))], dtype=object)
        batch = DataProto.from_single_dict(make_batch(rows, pad_to) | {"uid": ids})
        lengths = [len(prompt) + len(response) for prompt, response, _ in rows]
        batch.meta_info = {"temperature": 1.0, "global_token_num": lengths}
        started = time.perf_counter()
        old, _ = RayPPOTrainer._compute_old_log_prob(trainer, batch)
        between = time.perf_counter()
        old.batch.pop("entropys")
        if log_prob_sum is None:  # later ones are of updated weights
            log_prob_sum = (old.batch["old_log_probs"] * batch.batch["response_mask"]).sum().item()
        RayPPOTrainer._update_actor(trainer, batch.union(old))
        seconds["log_probs_s"].append(between - started)
        seconds["update_s"].append(time.perf_counter() - between)
    return {name: values[1:] for name, values in seconds.items()} | {"log_prob_sum": log_prob_sum}


def make_batch(rows: Sequence[Any], pad_to: int | None) -> dict[str, Any]:
    """Rows of (prompt ids, response ids, response mask) in verl's layout with advantages 1 and -1, each row `pad_to`
    tokens wide or as wide as the longest.
    """
    import torch
    import torch.nn.functional as F

    from sql_agent.credit.row import Row
    from sql_agent.source.batch import to_tensors

    trained = [
        Row((*p, *r), (0,) * len(p) + tuple(mask), (0.0,) * (len(p) + len(r)), prompt_tokens=len(p), num_turns=1)
        for p, r, mask in rows
    ]
    tensors = to_tensors(trained, [0.0] * len(rows), pad_id=0)
    more = max((pad_to or 0) - tensors["input_ids"].shape[1], 0)
    tensors = {k: v if k == "prompts" else F.pad(v, (0, more)) for k, v in tensors.items()}
    signs = torch.tensor([1.0, -1.0]).repeat(len(rows))[: len(rows)]
    return tensors | {"advantages": signs[:, None] * tensors["response_mask"]}


def _restore_upstream() -> None:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register("sdpa", sdpa_attention_forward)
    AttentionMaskInterface.register("sdpa", sdpa_mask)


if __name__ == "__main__":
    main()
