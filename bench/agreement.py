"""Compare the log-probs of vLLM with the trainer's, for small random models: `python -m bench.agreement`.

Four rows of each of three prompts are sampled by vLLM's engine on a CPU in float32, at temperature 1. The local trainer
scores the same tokens, with what rows share computed once where it can. Random weights say nothing about learning, and
everything about whether both compute the same function. The table gives the reason where one of them refuses a model.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgrpo.flags import described_parser
from agentgrpo.machine import git_commit
from bench.parts.children import ROOT

VOCABULARY, LIMIT_S = 512, 300.0
MEASURED = ROOT / "doc" / "data" / "agreement.json"
HEAD = "| model | tokens | largest difference, nats | what rows share is computed |\n| --- | ---: | ---: | --- |"
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # that of 128 and four heads; vLLM's attention on a CPU has no smaller one
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,  # with the usual 0.02 all tokens are alike
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 32
"""Tokens that a layer with a window sees; rows are twice to six times as long."""
MODELS: Mapping[str, Mapping[str, Any]] = {
    "Llama": {"model_type": "llama"},
    "SmolLM3": {"model_type": "smollm3"},
    "Qwen2.5": {"model_type": "qwen2"},
    "Qwen3": {"model_type": "qwen3"},
    "Qwen3, experts": {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    },
    "Gemma 3": {"model_type": "gemma3_text", "sliding_window": WINDOW},
    "Phi 3 and 4": {"model_type": "phi3"},
    "Mistral": {"model_type": "mistral", "sliding_window": None},
    "Mistral, a window": {"model_type": "mistral", "sliding_window": WINDOW},
    "Granite 3": {"model_type": "granite", "logits_scaling": 4.0, "residual_multiplier": 0.5},
    "OLMo 2": {"model_type": "olmo2"},
    "GLM 4": {"model_type": "glm4"},
}


def make_model(kind: str, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**SIZES, **MODELS[kind]})
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    model.save_pretrained(folder)


def sample(folder: Path) -> tuple[list[tuple[list[int], list[int]]], list[list[float]]]:
    """
    Returns:
        Prompt and reply of each row, and vLLM's log-probs of the reply's tokens.
    """
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(folder), dtype="float32", enforce_eager=True, max_model_len=512, skip_tokenizer_init=True, seed=0
    )
    draw = random.Random(0)
    prompts = [[draw.randrange(3, VOCABULARY) for _ in range(length)] for length in (20, 60, 120)]
    asked = [prompt for prompt in prompts for _ in range(4)]
    wanted = [
        SamplingParams(temperature=1.0, max_tokens=60, ignore_eos=True, logprobs=0, seed=seed, detokenize=False)
        for seed in range(len(asked))
    ]
    replies: list[Any] = [
        reply.outputs[0]
        for reply in engine.generate([{"prompt_token_ids": ids} for ids in asked], wanted, use_tqdm=False)
    ]
    rows = [(prompt, list(reply.token_ids)) for prompt, reply in zip(asked, replies, strict=True)]
    return rows, [
        [said[token].logprob for token, said in zip(reply.token_ids, reply.logprobs, strict=True)] for reply in replies
    ]


def score(folder: Path, rows: list[tuple[list[int], list[int]]]) -> tuple[list[list[float]], bool]:
    """
    Returns:
        The trainer's log-probs of each reply, and whether it computed what rows share once.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import AutoModelForCausalLM

    from sql_agent.local.packed_model import packs, score_tokens

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    ids = pad_sequence([torch.tensor([*prompt, *reply]) for prompt, reply in rows], batch_first=True)
    lengths = torch.tensor([[len(prompt), len(prompt) + len(reply)] for prompt, reply in rows])
    at = torch.arange(ids.shape[1])
    attention, chosen = at < lengths[:, 1:], (at >= lengths[:, :1]) & (at < lengths[:, 1:])
    with torch.no_grad():
        found = score_tokens(model, ids, attention.long(), chosen).log_probs
    return [part.tolist() for part in found.split([len(reply) for _, reply in rows])], packs(model)


def compare(kind: str) -> dict[str, Any]:
    """
    Returns:
        The largest difference in nats, how many tokens were compared, and whether rows shared what they begin with.
    """
    with tempfile.TemporaryDirectory() as folder:
        make_model(kind, Path(folder))
        rows, theirs = sample(Path(folder))
        ours, together = score(Path(folder), rows)
    pairs = [(a, b) for left, right in zip(theirs, ours, strict=True) for a, b in zip(left, right, strict=True)]
    return {
        "largest": max(abs(a - b) for a, b in pairs),
        "tokens": len(pairs),
        "together": together,
    }


def in_a_process(kind: str) -> dict[str, Any]:
    """`compare`, or why it ended."""
    command = [sys.executable, "-m", "bench.agreement", "--only", kind, "--json"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer in {LIMIT_S:.0f} s"}
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    return {"failed": next((line for line in reversed(done.stderr.splitlines()) if "Error" in line), "ended")}


def line_of(kind: str, found: Mapping[str, Any]) -> str:
    name = f"{kind} (`{MODELS[kind]['model_type']}`)"
    if "failed" in found:
        return f"| {name} | - | - | {found['failed']} |"
    return f"| {name} | {found['tokens']} | {found['largest']:.0e} | {'once' if found['together'] else 'in each row'} |"


def main() -> None:
    parser = described_parser("python -m bench.agreement", __doc__)
    parser.add_argument("--only", choices=MODELS, action="append", help="one of them; can be repeated (default: all)")
    parser.add_argument("--json", action="store_true", help="compare in this process and print figures as JSON")
    parser.add_argument("--write", action="store_true", help="write the figures to doc/data/agreement.json, too")
    args: argparse.Namespace = parser.parse_args()
    if args.json:
        print(json.dumps(compare(args.only[0])), flush=True)
        os._exit(0)  # vLLM's engine process is not waited for
    print(f"commit {git_commit()}, vLLM and the local trainer in float32 on a CPU\n")
    print(HEAD)
    measured: dict[str, Any] = {} if not MEASURED.is_file() else json.loads(MEASURED.read_text("utf-8"))
    for kind in args.only or MODELS:
        measured[kind] = in_a_process(kind)
        print(line_of(kind, measured[kind]), flush=True)
    if args.write:
        MEASURED.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
