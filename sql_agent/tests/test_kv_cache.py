"""The size of a CPU's KV cache, worked out by hand."""

import json

import pytest

from sql_agent.model_shape import ModelShape, kv_cache_bytes
from sql_agent.settings.load import load_config
from sql_agent.verl_side.config import Files, to_verl

SHAPE = ModelShape(
    hidden=4, intermediate=8, layers=3, heads=2, kv_heads=1, head_dim=2, vocab=10, positions=1000, tied=True
)
# a row of 100 tokens takes 4 blocks of 32
LENGTHS = ["data.max_prompt_tokens=84", "data.max_response_tokens=16", "agent.max_tokens=16"]
BLOCK = 32 * 2 * 3 * 1 * 2  # tokens, keys and values, layers, heads, numbers of a head
GIB = 2**30


@pytest.mark.parametrize(
    ("settings", "shape", "number_bytes", "expected"),
    [
        # two rows for each of five requests, and the block that vLLM leaves empty
        pytest.param(["engine.max_num_seqs=5"], SHAPE, 4, (2 * 5 * 4 + 1) * BLOCK * 4, id="requests_in_float32"),
        pytest.param(["engine.max_num_seqs=5"], SHAPE, 2, (2 * 5 * 4 + 1) * BLOCK * 2, id="requests_in_bfloat16"),
        # eight rollouts of a batch and 16 held-out ones, of which two runners play three each
        pytest.param(
            ["engine.max_num_seqs=5", "rollout.n_runners=2", "rollout.runner_concurrency=3"],
            SHAPE,
            4,
            (2 * 6 * 4 + 1) * BLOCK * 4,
            id="rollouts_in_flight",
        ),
        pytest.param(["engine.max_num_seqs=1000000"], SHAPE, 4, GIB, id="never_more_than_the_setting"),
        pytest.param(["engine.kv_cache_gib=3"], None, 4, 3 * GIB, id="a_shape_that_is_not_known"),
    ],
)
def test_the_cache_holds_what_rollouts_can_use_and_never_more_than_the_setting(settings, shape, number_bytes, expected):
    one = ["rollout.n_runners=1", "rollout.runner_concurrency=1"]
    cfg = load_config(None, [*LENGTHS, *one, *settings])
    assert kv_cache_bytes(cfg.engine, 100, cfg.rollouts_at_once, shape, number_bytes) == expected


@pytest.mark.parametrize(("kind", "expected"), [("qwen3", (2 * 5 * 4 + 1) * BLOCK * 4), ("mamba", GIB)])
def test_vllm_is_given_its_bytes_on_a_cpu(tmp_path, kind, expected):
    shape = {"hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2}
    shape |= {"num_key_value_heads": 1, "head_dim": 2, "vocab_size": 10, "max_position_embeddings": 1000}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **shape}))
    one = ["rollout.n_runners=1", "rollout.runner_concurrency=1", "engine.max_num_seqs=5"]
    files = Files(tmp_path, tmp_path / "train.parquet", tmp_path / "val.parquet")
    of = {cpu: to_verl(load_config(None, [*LENGTHS, *one]), files, cpu=cpu) for cpu in (True, False)}
    engine = {cpu: each["actor_rollout_ref"]["rollout"]["engine_kwargs"]["vllm"] for cpu, each in of.items()}
    assert (engine[True]["kv_cache_memory_bytes"], engine[True]["block_size"]) == (expected, 32)
    assert "kv_cache_memory_bytes" not in engine[False]
