"""verl's own actor worker on a CPU, without Ray, against transformers' own forward of each row by itself.

    python -m sql_agent.tests.engine_worker MODEL PORT PRECISION PROMPT RESPONSE GROUPS REPEATS SHARED_PROMPTS

Plays no episode: rows of random tokens, `GROUPS` groups of four rollouts, each a prompt of PROMPT tokens that its group
shares, half of it with the other groups, as questions about one schema do, and a response of RESPONSE tokens of which
every third is a tool's; one rollout is lost. The second rollout of a group has a second conversation, with a prompt of
its own; the third has a branch, which goes on from its first turn.

Answers a line of JSON: the engine's class, whether the optimiser's step is fused, the largest difference of log-probs
and entropies in nats, the largest relative one of a weight's gradient, seconds of CPU time both ways, what is resident
at most, in GiB, and how many of REPEATS further updates by two threads, from the same weights and rows, give other
gradients than the first of them, in any bit.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sql_agent.settings.load import load_config
from sql_agent.verl_side.config import Files, compose, to_verl

GROUP = 4


def main() -> None:
    model, port, precision, *sizes, shared_prompts = sys.argv[1:]
    prompt, response, groups, repeats = map(int, sizes)
    os.environ |= {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    import torch
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.workers.engine_workers import ActorRolloutRefWorker

    settings = [
        "optim.learning_rate=5e-4",
        f"data.train_batch_size={groups}",
        f"rollout.group_size={GROUP}",
        f"engine.precision={precision}",
        f"data.max_prompt_tokens={max(prompt, 16)}",
        f"data.max_response_tokens={max(response, 16)}",
        f"agent.max_tokens={max(response, 16)}",
        "agent.temperature=0.7",
        "engine.gradient_checkpointing=true",
        f"engine.shared_prompts={shared_prompts}",
    ]
    unused = Path("unused.parquet")
    verl = compose(to_verl(load_config(None, settings), Files(Path(model), unused, unused), cpu=True))
    worker = ActorRolloutRefWorker(verl.actor_rollout_ref, role="actor")
    worker.init_model()
    engine = worker.actor.engine
    batch, rows = make_batch(engine.module.config.vocab_size, prompt, response, groups)
    trainer: Any = SimpleNamespace(config=verl, actor_rollout_wg=worker)

    started = time.process_time()
    old, _ = RayPPOTrainer._compute_old_log_prob(trainer, batch)
    log_prob_s = time.process_time() - started
    entropies = old.batch.pop("entropys")
    gradients: dict[str, Any] = {}

    def keep_gradients() -> float:
        gradients.update((name, weight.grad.full_tensor().clone()) for name, weight in engine.module.named_parameters())
        return 0.0

    engine.optimizer_step = keep_gradients
    whole = batch.union(old)
    started = time.process_time()
    RayPPOTrainer._update_actor(trainer, deepcopy(whole))
    update_s = time.process_time() - started
    first = dict(gradients)

    torch.set_num_threads(2)
    repeated = []
    for _ in range(repeats):
        for weight in engine.module.parameters():
            weight.grad = None
        RayPPOTrainer._update_actor(trainer, deepcopy(whole))
        repeated.append(dict(gradients))
    gradients = first

    resident_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    from transformers import AutoModelForCausalLM

    alone = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    started = time.process_time()
    values = [row and apart(alone, row, precision) for row in rows]
    tokens = sum(sum(row.sampled) for row in rows if row)
    weighted = zip(values, ADVANTAGES * groups, strict=True)
    sum(-(value[0] * weight).sum() / tokens for value, weight in weighted if value).backward()
    apart_s = time.process_time() - started
    answer = {
        "engine": type(engine).__name__,
        "fused": [group["fused"] for group in engine.optimizer.param_groups],
        "log_probs": max(
            difference(old.batch["old_log_probs"][i], value[0], rows[i]) for i, value in enumerate(values) if value
        ),
        "entropies": max(difference(entropies[i], value[1], rows[i]) for i, value in enumerate(values) if value),
        "gradients": max(
            float((gradients[name] - parameter.grad).norm() / parameter.grad.norm())
            for name, parameter in alone.named_parameters()
        ),
        "untrained": float(old.batch["old_log_probs"][~batch.batch["response_mask"].bool()].abs().max()),
        "cpu_s": {"log_probs": log_prob_s, "update": update_s, "apart": apart_s},
        "resident_gib": resident_gib,
        "repeats_that_differ": sum(
            any(not torch.equal(gradient, repeated[0][name]) for name, gradient in again.items()) for again in repeated
        ),
    }
    print(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # torch.distributed leaves threads behind


ADVANTAGES = [1.0, -1.0, 0.5, 0.0]


def make_batch(
    vocabulary: int, prompt: int, response: int, groups: int, *, lost: Iterable[int] = (GROUP - 1,), seed: int = 0
) -> tuple[Any, list[Any]]:
    """verl's batch as the rollout manager gives it, and its rows; by default one rollout of the first group is lost."""
    import numpy as np
    import torch
    from verl import DataProto

    from sql_agent.source.batch import to_tensors
    from sql_agent.tests.records import make_row

    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, vocabulary, (count,), generator=generator).tolist())

    rows: list[Any] = []
    schema = draw(prompt // 2)
    for _ in range(groups):
        first, turn = (*schema, *draw(prompt - len(schema))), draw(response // 3)
        for member in range(GROUP):
            own = draw(response - len(turn) - member)  # the first turn is alike, the lengths are not
            mask = tuple(int(i % 3 != 2) for i in range(len(turn) + len(own)))
            starts: tuple[int, ...] = ()
            if member in (1, 2):
                other, said = draw(prompt) if member == 1 else (*first, *turn), draw(response // 4)
                starts, own = (len(mask),), (*own, *other, *said)
                mask += (0,) * len(other) + (1,) * len(said)
            rows.append(make_row(first, (*turn, *own), mask, (0.0,) * len(mask), 1, starts=starts))
    for row in lost:
        rows[row] = None
    tensors = to_tensors(rows, [1.0 if row else None for row in rows], pad_id=0)
    weights = torch.tensor(ADVANTAGES * groups)[:, None]
    batch = DataProto.from_single_dict(
        {
            **tensors,
            "advantages": weights * tensors["response_mask"],
            "uid": np.array([str(i // GROUP) for i in range(len(rows))], dtype=object),
        }
    )
    batch.meta_info = {"temperature": 0.7, "global_token_num": batch.batch["attention_mask"].sum(dim=1).tolist()}
    return batch, rows


def apart(model: Any, row: Any, precision: str) -> tuple[Any, Any]:
    """Log-probs and entropies of one row's trained tokens by transformers alone, which gets each chain by itself."""
    import torch

    ids = torch.tensor(row.ids)
    chains = ids.tensor_split(list(row.starts))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        logits = torch.cat([model(chain[None]).logits[0] for chain in chains])[:-1].float() / 0.7
    mask = torch.tensor(row.sampled[1:]).bool()
    every = logits[mask].log_softmax(-1)
    return every.gather(1, ids[1:][mask][:, None])[:, 0], -(every.exp() * every).sum(-1)


def difference(padded: Any, values: Any, row: Any) -> float:
    import torch

    mask = torch.tensor(row.sampled[row.prompt_tokens :]).bool()
    return float((padded[: len(mask)][mask] - values.detach()).abs().max())


if __name__ == "__main__":
    main()
