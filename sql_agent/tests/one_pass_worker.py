"""verl's own actor worker on a CPU, without Ray: an update after verl's pass for old log-probs, and one without it.

    python -m sql_agent.tests.one_pass_worker MODEL PORT '["SETTING", ...]'...

Answers two lines of JSON for each list of settings, "two passes" and then "one pass": the metrics of an update over
three groups of which one rollout is lost, with a sampler that agrees to 1e-6 and once more with one that does not; and
whether the weights are those of the first way, in every bit.
"""

from __future__ import annotations

import json
import os
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sql_agent.settings.load import load_config
from sql_agent.tests.engine_worker import GROUP, make_batch
from sql_agent.verl_side.config import Files, compose, to_verl

GROUPS = 3
SETTINGS = [
    "optim.learning_rate=5e-4",
    f"data.train_batch_size={GROUPS}",
    f"rollout.group_size={GROUP}",
    "data.max_prompt_tokens=20",
    "data.max_response_tokens=70",
    "agent.max_tokens=60",
    "agent.temperature=0.7",
    "optim.micro_batch_tokens=130",
    "optim.learning_rate=0.05",  # the weights before an update are clearly others than those after it
]


def main() -> None:
    model, port, *lists = sys.argv[1:]
    os.environ |= {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for given in map(json.loads, lists):
        first = None
        for one_pass in (False, True):
            answer, weights = play(model, given, one_pass=one_pass)
            first = first or weights
            same = all(bool((weights[name] == first[name]).all()) for name in weights)
            print(json.dumps(answer | {"same_weights": same}))
    sys.stdout.flush()
    os._exit(0)  # torch.distributed leaves threads behind


def play(model: str, given: list[str], *, one_pass: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    import torch
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.workers.engine_workers import ActorRolloutRefWorker

    unused = Path("unused.parquet")
    verl = compose(to_verl(load_config(None, SETTINGS + given), Files(Path(model), unused, unused), cpu=True))
    assert verl.algorithm.rollout_correction.bypass_mode and verl.actor_rollout_ref.actor.calculate_entropy
    verl.algorithm.rollout_correction.bypass_mode = verl.actor_rollout_ref.actor.calculate_entropy = one_pass
    worker = ActorRolloutRefWorker(verl.actor_rollout_ref, role="actor")
    worker.init_model()
    module = worker.actor.engine.module
    trainer: Any = SimpleNamespace(config=verl, actor_rollout_wg=worker)
    batch, _ = make_batch(module.config.vocab_size, 20, 30, GROUPS)
    old, _ = RayPPOTrainer._compute_old_log_prob(trainer, batch)
    sampler = old.batch["old_log_probs"] + 1e-6
    batch.batch["rollout_log_probs"] = sampler
    metrics = update(trainer, batch, old, one_pass=one_pass)
    weights = {name: weight.full_tensor().detach().clone() for name, weight in module.named_parameters()}
    moved, _ = RayPPOTrainer._compute_old_log_prob(trainer, batch)
    assert not torch.equal(moved.batch["old_log_probs"], old.batch["old_log_probs"])  # so the old ones are old now
    wrong = update(trainer, batch, moved, one_pass=one_pass)
    return {"metrics": metrics, "old_weights_in_the_sampler": wrong}, weights


def update(trainer: Any, batch: Any, old: Any, *, one_pass: bool) -> dict[str, float]:
    """What a step logs of log-probs and update, as verl's `fit` computes it."""
    from verl.trainer.ppo.core_algos import agg_loss
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.rollout_corr_helper import apply_bypass_mode, compute_rollout_correction_and_add_to_batch
    from verl.utils.debug.metrics import calculate_debug_metrics
    from verl.utils.metric import reduce_metrics

    from sql_agent.verl_side.tracking import engine_alarm, rename_verl_metrics

    batch, actor, correction = deepcopy(batch), trainer.config.actor_rollout_ref.actor, trainer.config.algorithm
    metrics: dict[str, Any] = {}
    if one_pass:
        apply_bypass_mode(batch, correction.rollout_correction, deepcopy(actor.policy_loss))
    else:
        batch.batch["old_log_probs"] = old.batch["old_log_probs"]
        entropy = agg_loss(
            loss_mat=old.batch["entropys"],
            loss_mask=batch.batch["response_mask"],
            loss_agg_mode=actor.loss_agg_mode,
            loss_scale_factor=actor.loss_scale_factor,
        )
        metrics = {"actor/entropy": entropy.item()} | calculate_debug_metrics(batch)
        metrics |= compute_rollout_correction_and_add_to_batch(batch, correction.rollout_correction)[1]
    output = RayPPOTrainer._update_actor(trainer, batch)
    named = rename_verl_metrics(metrics | reduce_metrics(output.meta_info["metrics"]))
    return named | engine_alarm(named, "float32")


if __name__ == "__main__":
    main()
