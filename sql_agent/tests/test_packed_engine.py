"""verl's training worker on a CPU: shared prompts once, the head on trained positions only, the same numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgrpo.machine import free_port
from sql_agent.settings.load import load_config
from sql_agent.verl_side.config import worker_environment
from sql_agent.verl_side.micro_batch_file import MicroBatches, read_progress

ROOT = Path(__file__).parents[2]
PRETRAINED = ROOT / "models" / "smollm2-135m-instruct"
ENGINES = [("null", "PackedEngine"), ("flex_attention", "FlexEngine")]


def played(model, precision, prompt, response, groups, repeats=0, shared_prompts="null"):
    """What `engine_worker` answers."""
    command = [sys.executable, "-m", "sql_agent.tests.engine_worker", str(model), str(free_port()), precision]
    settings = [f"model={model}", f"engine.precision={precision}", f"engine.shared_prompts={shared_prompts}"]
    environment = os.environ | worker_environment(load_config(None, settings), cpu=True)
    result = subprocess.run(
        [*command, *map(str, (prompt, response, groups, repeats, shared_prompts))],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Three query heads on one key-value head, tied embeddings, a vocabulary of 500; weights large enough to differ."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=500, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=1, tie_word_embeddings=True, initializer_range=0.3, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(500)}, unk_token="w2"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1").save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("shared_prompts", "engine"), ENGINES)
def test_log_probs_entropies_and_gradients_are_those_of_rows_apart_and_the_update_is_reported(
    model, run_id, shared_prompts, engine
):
    found = played(model, "float32", 20, 30, 3, shared_prompts=shared_prompts)
    assert (found["engine"], found["fused"]) == (engine, [True])
    assert read_progress(run_id) == MicroBatches(False, 1, 1, 1)  # twelve rows of fifty tokens fit into one of 4,096
    assert found["log_probs"] < 1e-4
    assert found["entropies"] < 1e-4
    assert found["gradients"] < 1e-4
    assert found["untrained"] == 0.0  # of a tool's tokens nothing is computed, and nothing read


@pytest.mark.slow
def test_flex_attentions_numbers_of_the_small_policy_are_those_of_rows_apart(small_policy):
    found = played(small_policy, "float32", 120, 60, 1, shared_prompts="flex_attention")
    assert found["engine"] == "FlexEngine"
    assert max(found[what] for what in ("log_probs", "entropies", "gradients")) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("shared_prompts", "engine"), ENGINES)
def test_numbers_of_a_pretrained_policy_are_those_of_rows_apart(shared_prompts, engine):
    if not (PRETRAINED / "model.safetensors").is_file():
        pytest.skip("make models/smollm2-135m-instruct with `agentgrpo pretrained-policy`")
    found = played(PRETRAINED, "float32", 120, 60, 1, shared_prompts=shared_prompts)
    assert found["engine"] == engine
    assert found["log_probs"] < 1e-4
    assert found["gradients"] < 1e-4
    assert found["entropies"] < 1e-4


@pytest.mark.slow
def test_an_update_by_two_threads_has_the_same_bits_every_time(model):
    """Rows that share a sampled turn share its hidden states. 32,768 numbers are what torch splits among threads."""
    assert played(model, "float32", 20, 600, 1, repeats=60)["repeats_that_differ"] == 0


def test_rows_of_a_group_are_told_by_their_ids():
    pytest.importorskip("verl")
    from sql_agent.verl_side.plugin.packed_engine import group_size

    assert group_size(["a", "a", "b", "b"], 4) == 2
    assert group_size(["a", "b", "a", "b"], 4) == 1  # not side by side
    assert group_size(["a", "a", "b"], 3) == 1  # not alike
    assert group_size(["a", "a", "a", "a", "b", "b"], 6) == 2  # a whole group, and half of one
    assert group_size(None, 4) == 1


def test_a_batch_is_parted_into_whole_groups_or_even_parts_of_one():
    from sql_agent.verl_side.plugin.packed_engine import even_shares

    assert even_shares(64, 8) == [64, 32, 16, 8, 4, 2, 1]
    assert even_shares(24, 8) == [24, 8, 4, 2, 1]  # 16 leaves eight rows, 12 cuts across a group
    assert even_shares(6, 2) == [6, 2, 1]
    assert even_shares(5, 1) == [5, 1]


@pytest.mark.slow  # imports verl
def test_a_model_that_carries_a_state_from_token_to_token_is_refused():
    """Its rows would run into one another where attention keeps them apart."""
    lines = [
        "import verl.workers.engine.fsdp",
        "from types import SimpleNamespace as N",
        "from sql_agent.verl_side.plugin.packed_engine import PackedEngine",
        "from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead",
        "from transformers import Qwen3NextConfig",
        "config = Qwen3NextConfig(num_hidden_layers=4)",
        "FSDPEngineWithLMHead._build_module = lambda self: N(config=config)",
        "object.__new__(PackedEngine)._build_module()",
    ]
    environment = os.environ | worker_environment(load_config(None), cpu=True)
    command = [sys.executable, "-c", "\n".join(["import verl", *lines])]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert (
        "NotImplementedError: model type qwen3_next has layers that hand a state from token to token" in result.stderr
    )
