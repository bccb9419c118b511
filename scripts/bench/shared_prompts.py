"""Log-probs and update of groups that share their first prompt, against the same rows with prompts of their own.

Two groups of eight rollouts at the lengths of LifelongAgentBench's tasks under a pretrained policy: a first prompt of
440 tokens, then 310, of which every third is a tool's. Run with `--model models/smollm2-135m-instruct`; a small model
shows nothing, since its prompts cost nothing.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from scripts.bench.report import Row
from scripts.bench.update import Setting, UpdateRow, median, run_worker

PROMPT, RESPONSE, GROUP, GROUPS = 440, 310, 8, 2
REPEATS = 2


def random_groups(*, shared: bool) -> list[UpdateRow]:
    """Rows of random ids; the prompts of a group are one, or differ from their first token on."""
    draw = random.Random(0)
    mask = [int(i % 3 != 2) for i in range(RESPONSE)]
    rows: list[UpdateRow] = []
    for _ in range(GROUPS):
        prompt = [draw.randrange(1000) for _ in range(PROMPT)]
        for member in range(GROUP):
            own = prompt if shared else [member, *prompt[1:]]
            rows.append((own, [draw.randrange(1000) for _ in range(RESPONSE)], mask))
    return rows


def measure(model: Path, folder: Path) -> list[Row]:
    setting = Setting(
        "two groups", os.cpu_count() or 1, more=(f"rollout.group_size={GROUP}", "engine.gradient_checkpointing=true")
    )
    batches = {"apart": random_groups(shared=False), "shared": random_groups(shared=True)}
    found = run_worker(batches, model, folder / "shared.log", setting, repeats=REPEATS)
    apart, shared = found["apart"], found["shared"]
    seconds = {name: median(r, "log_probs_s") + median(r, "update_s") for name, r in found.items()}
    tokens = GROUPS * GROUP * (PROMPT + RESPONSE), GROUPS * (PROMPT + GROUP * RESPONSE)
    limit = "attention and the head cost the same; recomputed activations"
    return [
        Row("tokens, shared / apart", tokens[1] / tokens[0], "x", 0.5, "at most", f"{tokens[1]} of {tokens[0]}"),
        Row("seconds, shared / apart", seconds["shared"] / seconds["apart"], "x", 0.6, "at most", limit),
        *(
            Row(f"... {name}", median(r, "log_probs_s") + median(r, "update_s"), "s", limit=parts)
            for name, r in (("apart", apart), ("shared", shared))
            for parts in [f"log-probs {median(r, 'log_probs_s'):.1f} s, update {median(r, 'update_s'):.1f} s"]
        ),
    ]
