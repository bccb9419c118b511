"""vLLM's engine on a CPU with the settings of a run, and requests that arrive at one moment, each with its seed.

    python -m sql_agent.tests.sampler_worker MODEL SETTINGS GROUPS MEMBERS PROMPT

SETTINGS is JSON, vLLM's arguments. GROUPS prompts of PROMPT random tokens are asked MEMBERS times each, for four
tokens; then each request again with its reply, as the next turn of a conversation. Answers a line of JSON per round:
how many tokens of each prompt were in the prefix cache.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any


def main() -> None:
    model, settings, *sizes = sys.argv[1:]
    groups, members, prompt = map(int, sizes)
    from vllm import LLM

    engine = LLM(model=model, dtype="float32", enforce_eager=True, **json.loads(settings))
    draw = random.Random(0)
    asked = [[draw.randrange(10, 200) for _ in range(prompt)] for _ in range(groups)]
    asked = [ids for ids in asked for _ in range(members)]
    for _ in range(2):
        found = play(engine, asked)
        print(json.dumps([reply.num_cached_tokens for reply in found]))
        asked = [[*ids, *reply.outputs[0].token_ids] for ids, reply in zip(asked, found, strict=True)]
    sys.stdout.flush()
    os._exit(0)


def play(engine: Any, asked: list[list[int]]) -> list[Any]:
    from vllm import SamplingParams

    seeds = [SamplingParams(temperature=1.0, max_tokens=4, ignore_eos=True, seed=seed) for seed in range(len(asked))]
    return engine.generate([{"prompt_token_ids": ids} for ids in asked], seeds, use_tqdm=False)


if __name__ == "__main__":
    main()
