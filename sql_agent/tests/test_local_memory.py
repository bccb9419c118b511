"""The memory estimate: its counts are the models' own, its parts worked out by hand, its warning says what to do."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from sql_agent.local import memory
from sql_agent.local.memory import (
    Demand,
    Estimate,
    Workload,
    available_bytes,
    choose_pass,
    read_shape,
    warning_of,
)
from sql_agent.model_shape import ModelShape, shape_of
from sql_agent.settings.groups import AgentConfig
from sql_agent.settings.local import AdapterConfig, ModelConfig, OptimConfig

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 500,
    "max_position_embeddings": 512,
}
SHAPE = ModelShape(
    hidden=4, intermediate=8, layers=2, heads=2, kv_heads=1, head_dim=2, vocab=10, positions=1000, tied=True
)
MODELS = [
    pytest.param({"model_type": "qwen2", "tie_word_embeddings": True}, id="qwen2"),
    pytest.param({"model_type": "qwen3", "tie_word_embeddings": False}, id="qwen3"),
    pytest.param({"model_type": "llama", "attention_bias": True, "mlp_bias": True}, id="llama_with_biases"),
    pytest.param({"model_type": "mistral"}, id="mistral"),
]
QWEN_1_5B = {
    "model_type": "qwen2",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}


def model_of(config, device="meta"):
    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))


def adapted(model, adapter: AdapterConfig):
    modules = adapter.target_modules
    modules = modules if isinstance(modules, str) else list(modules)
    return get_peft_model(model, LoraConfig(r=adapter.rank, lora_dropout=adapter.dropout, target_modules=modules))


@pytest.mark.parametrize("own", MODELS)
def test_parameters_are_those_of_the_model(own):
    model = model_of({**SMALL, **own})
    shape = shape_of(model.config.to_dict())
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_parameters_of_a_published_model():
    assert shape_of(QWEN_1_5B).parameters == 1_543_714_304


@pytest.mark.parametrize("modules", ["all-linear", ("q_proj", "v_proj"), ("down_proj", "o_proj", "up_proj")], ids=str)
def test_adapter_parameters_are_those_of_peft(modules):
    adapter = AdapterConfig(rank=8, target_modules=modules)
    model = adapted(model_of({**SMALL, "model_type": "qwen3"}), adapter)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert shape_of({**SMALL, "model_type": "qwen3"}).adapter_parameters(adapter) == trained


@pytest.mark.parametrize(
    ("kind", "modules", "dropout", "precision"),
    [
        ("qwen2", "all-linear", 0.05, "float32"),
        ("qwen2", "all-linear", 0.0, "float32"),
        ("qwen3", "all-linear", 0.05, "float32"),
        ("qwen3", ("q_proj", "v_proj"), 0.0, "float32"),
        ("qwen3", ("down_proj", "o_proj"), 0.0, "float32"),
        ("llama", "all-linear", 0.05, "autocast"),
        ("llama", "all-linear", 0.0, "autocast"),
        ("llama", ("down_proj", "o_proj"), 0.05, "autocast"),
    ],
    ids=str,
)
def test_activations_are_what_autograd_keeps(kind, modules, dropout, precision):
    adapter, config = AdapterConfig(rank=8, dropout=dropout, target_modules=modules), {**SMALL, "model_type": kind}
    model = adapted(model_of(config, "cpu"), adapter).train()
    model.enable_input_require_grads()
    rows, tokens = 4, 128
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast")
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), autocast:
        padded = torch.tensor([[0] + [1] * (tokens - 1)] * rows)
        model(input_ids=torch.zeros(rows, tokens, dtype=torch.long), attention_mask=padded, logits_to_keep=1)
    expected = demand(
        shape=ModelShape(**{**vars(shape_of(config)), "vocab": 10**6}),  # logits hide what one layer needs in passing
        adapter=adapter,
        precision=precision,
        rows=rows,
        group_size=1,
        prompt_tokens=0,
        micro_batch_tokens=rows * tokens,
    ).estimate_of(tokens)
    # beyond its layers a model keeps the last norm's input and the rotation, here as much as 4 %
    assert expected.activations == pytest.approx(sum(kept.values()), rel=0.04)


def estimate_by_hand(**changes) -> Estimate:
    """The estimate of three rows of 100 tokens, of which 60 are sampled."""
    settings = {
        "shape": SHAPE,
        "adapter": AdapterConfig(rank=2, target_modules=("q_proj",)),
        "precision": "float32",
        "rows": 3,
        "group_size": 3,
        "prompt_tokens": 40,
        "micro_batch_tokens": 200,
        "gradient_checkpointing": True,
        "reference": True,
    }
    return demand(**{**settings, **changes}).estimate_of(100)


def test_the_parts_worked_out_by_hand():
    # a layer: q 4*4, k and v 4*2 each, o 4*4, three of 4*8 -> 144 and two norms of 4; embedding 10*4, last norm 4
    parameters = 2 * (144 + 8) + 40 + 4
    # kept of a token in a layer: two norms' inputs 2*4, q k v and output 4*4, the MLP's 3*8, a row of the mask 100;
    # adapter of q: its input and its dropout's noise 2*4, rank 2
    kept = 4 * (8 + 16 + 24 + 100 + 8 + 2)
    passing = 4 * (4 * 8 + 3 * 4)
    assert estimate_by_hand() == Estimate(
        weights=4 * parameters,
        adapter=16 * 2 * 2 * (4 + 4),  # weight, gradient, two states; two layers, rank 2, inputs and outputs
        reference=4 * parameters,
        kv_cache=2 * 4 * 2 * 300 * 2,  # keys and values, bytes, one head of 2, tokens of three rows, layers
        sampling=300 * (passing + 400) + 28 * 3 * 10,
        # a pass of at most 200 tokens has the prompt of 40 once and two rows of 60; inputs of two layers, then one
        # layer whole, less what the logits have given back by then
        activations=2 * 160 * 4 * 4 + 160 * (passing + kept) - 3 * 4 * 120 * 10,
        logits=3 * 4 * 120 * 10,  # copies of one tile: sampled tokens of two rows, all ten tokens of the vocabulary
        runtime=96 * 2**20,
    )


def test_logits_are_a_tile_of_them_whatever_the_vocabulary():
    large = replace(SHAPE, vocab=100_000)  # sampled tokens of two rows: 120
    assert estimate_by_hand(shape=large).logits == 3 * 4 * 2**21
    assert estimate_by_hand(shape=large, precision="bfloat16").logits == 9 * 4 * 120 * 4096


def test_a_pass_of_fine_tuning_holds_what_it_takes_and_not_a_byte_less(monkeypatch):
    # kept of a token in a layer: norms 2*4, q k v and output 4*4, the MLP 3*8, a row of the mask 40; inputs
    # of attention, MLP and its last matrix 4 + 4 + 8, and a number for each of seven matrices
    kept, in_layer = 2 * 4 * (8 + 16 + 24 + 40 + 16 + 7), 4 * (4 * 8 + 3 * 4)
    # the output layer's gradient, weights' gradients and two moments
    whole = 100 * (kept + in_layer) + 4 * 10 * 4 + 12 * 348 + 96 * 2**20
    for room in (0, -1):
        monkeypatch.setattr(memory, "available_bytes", lambda device, room=room: whole + room)
        assert memory.training_holds(SHAPE, None, "cpu", "float32", 40, 100) is (room == 0)


def test_four_bits_hold_the_layers_matrices_alone():
    # 288 parameters in 4 bits and their scales; the other 60 in float32, as PEFT prepares them
    assert estimate_by_hand(precision="4bit").weights == int(288 * 0.516) + 60 * 4
    assert estimate_by_hand(precision="4bit").reference == 2 * 348


def test_the_peak_is_the_larger_of_sampling_and_update():
    parts = {"weights": 10, "adapter": 1, "reference": 0, "activations": 5, "logits": 4}
    assert Estimate(**parts, kv_cache=6, sampling=2).peak == 20
    assert Estimate(**parts, kv_cache=6, sampling=4).peak == 21


def test_a_shape_is_read_from_a_folder_or_from_its_adapters_base(tmp_path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir()
    adapter.mkdir()
    (base / "config.json").write_text(json.dumps(QWEN_1_5B))
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    assert read_shape(str(base)) == read_shape(str(adapter)) == shape_of(QWEN_1_5B)
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        read_shape(str(tmp_path))
    with pytest.raises(ValueError, match="not estimated for model type gpt2, only for llama, mistral, qwen2, qwen3"):
        shape_of({"model_type": "gpt2"})


def demand(**changes) -> Demand:
    settings = {
        "shape": shape_of(QWEN_1_5B),
        "adapter": AdapterConfig(),
        "precision": "bfloat16",
        "rows": 4,
        "group_size": 4,
        "prompt_tokens": 400,
        "common_tokens": 0,
        "replies": 3,
        "max_new_tokens": 512,
        "micro_batch_tokens": 4096,
        "gradient_checkpointing": False,
        "reference": False,
    }
    return Demand(**{**settings, **changes})


QWEN_7B = QWEN_1_5B | {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("config", "settings", "gib"),
    [
        pytest.param(QWEN_1_5B, {"precision": "4bit", "max_new_tokens": 64}, 2.6, id="4_gb"),
        pytest.param(QWEN_7B, {"precision": "bfloat16"}, 16.9, id="24_gb"),
        pytest.param(QWEN_7B, {"precision": "4bit"}, 11.9, id="24_gb_4_bit"),
    ],
)
def test_the_page_says_what_is_estimated_for_small_cards(config, settings, gib):
    asked = demand(shape=shape_of(config), gradient_checkpointing=True, micro_batch_tokens=1, **settings)
    assert asked.estimate.peak / 2**30 == pytest.approx(gib, abs=0.05)
    memory = (Path(__file__).parents[2] / "doc" / "guides/local.md").read_text().partition("## Memory")[2]
    assert f" {gib}" in memory


def test_a_run_that_fits_gets_no_warning():
    assert warning_of(demand(), 80 * 2**30) is None


def test_settings_are_lowered_in_order_until_the_run_fits():
    warning = warning_of(demand(), 7 * 2**29)
    assert warning is not None
    places = [
        warning.index(text)
        for text in (
            "this run may need",
            "3.5 GiB are free",
            "load_in_4bit",
            "gradient_checkpointing",
            "micro_batch_",
        )
    ]
    assert places == sorted(places)
    assert "sampled together" not in warning and warning.endswith("GiB.")


def test_what_is_lowered_already_is_not_proposed():
    flags = [flag for flag, _ in demand(precision="float32", gradient_checkpointing=True, rows=2).lowered()]
    assert flags == [
        "micro_batch_tokens 1 (one trajectory at a time)",
        "max_new_tokens 256",
        "max_new_tokens 128",
        "max_new_tokens 64",
    ]


def test_a_model_that_never_fits_is_said_to_be_too_large():
    assert str(warning_of(demand(), 2**30)).endswith("that is still too much: take a smaller model.")


def test_a_model_of_another_kind_is_said_not_to_be_estimated(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    workload = Workload([], 4, 4, AgentConfig(max_turns=3, max_tokens=10), OptimConfig())
    model = ModelConfig(model_path=str(tmp_path))
    tokens = {"prompt_tokens": 10, "common_tokens": 5}
    chosen, warnings = choose_pass(model, AdapterConfig(), workload, device="cpu", **tokens, reference=False)
    assert chosen == 2048
    assert warnings[0].startswith("memory is not estimated for model type gpt2")


def test_there_is_some_memory_here():
    assert 2**20 < available_bytes("cpu") < 2**50


FREED = """
import numpy as np
from sql_agent.local.memory import give_back_freed_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
{call}
np.ones(30 * 2**17); before = resident()  # glibc raises its limit when this is freed
tensors = [np.ones(2**17) for _ in range(200)]
last = tensors[-1]; del tensors
print((resident() - before) // 2**20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
@pytest.mark.parametrize(("call", "held"), [("", range(150, 202)), ("give_back_freed_memory()", range(0, 10))])
def test_freed_tensors_go_back_to_the_system(call, held):
    command = [sys.executable, "-c", FREED.format(call=call)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) in held  # MiB
