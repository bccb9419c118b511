"""Weights that do not fit their config are named before anything is loaded."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentgrpo.hub import ModelError
from agentgrpo.weights import HEAD, LANGUAGE_HEADS, check_adapter_weights, check_weights_fit, wrong_head
from reward_model.scorer import Scorer, check_base

EMBEDDINGS, UP = "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"
GATE, DOWN = (UP.replace("up", other) for other in ("gate", "down"))
Q, OUT = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qo")
FILE = "model.safetensors"


def changed(base: Path, folder: Path, *, config=None, weights=None, shards: int = 1) -> Path:
    """A copy of `base` whose config and weights went through a function each, in one file or in several."""
    shutil.copytree(base, folder)
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | (config or {})))
    tensors = load_file(folder / FILE)
    for name, shape in (weights or {}).items():
        if shape is None:
            del tensors[name]
        else:
            tensors[name] = torch.zeros(shape)
    (folder / FILE).unlink()
    names = sorted(tensors)
    files = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(names)}
    if shards == 1:
        files = dict.fromkeys(names, FILE)
    for file in set(files.values()):
        save_file({n: tensors[n] for n in names if files[n] == file}, folder / file, metadata={"format": "pt"})
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


HIDDEN = 32  # of the base: 32 wide, 64 in the feed-forward layer, 2 heads of 16


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("weights", "config", "faults"),
    [
        ({}, {}, None),
        ({UP: None}, {}, f"1 missing ({UP})"),
        ({EMBEDDINGS: None}, {}, f"2 missing (lm_head.weight, {EMBEDDINGS})"),
        ({}, {"tie_word_embeddings": False}, "1 missing (lm_head.weight)"),
        ({"extra.weight": [3]}, {}, "1 unexpected (extra.weight)"),
        ({"score.weight": [1, HIDDEN]}, {}, "1 unexpected (score.weight)"),
        ({UP: [3, 5]}, {}, f"1 of another shape ({UP}: 3x5, expected 64x32)"),
        (
            {},
            {"intermediate_size": 63},
            f"3 of another shape ({DOWN}: 32x64, expected 32x63, {GATE}: 64x32, expected 63x32, {UP}: 64x32, expected "
            "63x32)",
        ),
        (
            {},
            {"num_attention_heads": 4},
            f"2 of another shape ({OUT}: 32x32, expected 32x64, {Q}: 32x32, expected 64x32)",
        ),
        (
            {UP: None, Q: [1], "z": [1]},
            {},
            f"1 missing ({UP}); 1 unexpected (z); 1 of another shape ({Q}: 1, expected 32x32)",
        ),
    ],
)
def test_what_is_missing_unexpected_or_of_another_shape_is_named(base, tmp_path, weights, config, faults, shards):
    folder = changed(base, tmp_path / "m", weights=weights, config=config, shards=shards)
    said = f"the weights of {folder} do not fit its config.json as a Qwen3ForCausalLM: {faults}"
    assert check_weights_fit(folder, "ForCausalLM") == (faults and said)


@pytest.mark.parametrize("name", [EMBEDDINGS, UP, Q, "model.norm.weight", "model.layers.0.input_layernorm.weight"])
def test_every_tensor_counts(base, tmp_path, name):
    assert f"missing ({'lm_head.weight, ' if name == EMBEDDINGS else ''}{name})" in str(
        check_weights_fit(changed(base, tmp_path / "without", weights={name: None}), "ForCausalLM")
    )
    assert f"1 of another shape ({name}: 7, expected" in str(
        check_weights_fit(changed(base, tmp_path / "other", weights={name: [7]}), "ForCausalLM")
    )


def test_of_many_names_three_are_said(base, tmp_path):
    folder = changed(base, tmp_path / "m", config={"num_hidden_layers": 2, "layer_types": None})
    assert str(check_weights_fit(folder, "ForCausalLM")).endswith(
        "11 missing (model.layers.1.input_layernorm.weight, model.layers.1.mlp.down_proj.weight, "
        "model.layers.1.mlp.gate_proj.weight and 8 more)"
    )


def test_tied_weights_may_both_be_in_the_file(base, tmp_path):
    rows = len(load_file(base / FILE)[EMBEDDINGS])
    assert (
        check_weights_fit(changed(base, tmp_path / "m", weights={"lm_head.weight": [rows, HIDDEN]}), "ForCausalLM")
        is None
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "nosuch"}, "cannot be loaded as a model ForCausalLM (ValueError: The checkpoint you are tryi"),
        ({"hidden_size": "many"}, "cannot be loaded as a model ForCausalLM (StrictDataclassFieldValidationError: "),
        ({"architectures": ["LlamaForCausalLM"]}, "names a LlamaForCausalLM, and its model_type makes a Qwen3ForCausa"),
    ],
)
def test_a_config_that_makes_no_model_is_said_in_a_line(base, tmp_path, config, words):
    fault = check_weights_fit(changed(base, tmp_path / "m", config=config), "ForCausalLM")
    assert words in str(fault)
    assert "\n" not in str(fault)


class Program:
    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self):
        return os.mkdir, (str(self.ran),)


def test_a_pickle_of_tensors_fits_and_one_of_a_program_is_refused_and_not_run(base, tmp_path):
    folder = changed(base, tmp_path / "m")
    tensors = load_file(folder / FILE)
    (folder / FILE).unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    assert check_weights_fit(folder, "ForCausalLM") is None
    torch.save(tensors | {"a": Program(tmp_path / "ran")}, folder / "pytorch_model.bin")
    said = f"the weights of {folder} (*.bin) are no pickle of plain tensors: it may run a program, or is damaged"
    assert check_weights_fit(folder, "ForCausalLM") == said
    assert not (tmp_path / "ran").exists()
    (folder / "pytorch_model.bin").write_bytes(b"no pickle")
    assert check_weights_fit(folder, "ForCausalLM") == said
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert "cannot be loaded as a model ForCausalLM (EOFError" in str(check_weights_fit(folder, "ForCausalLM"))


@pytest.mark.parametrize(
    ("architecture", "what"),
    [
        ("Qwen3ForCausalLM", None),
        ("GPT2LMHeadModel", None),
        ("Qwen3ForSequenceClassification", "a reward model or another classifier (Qwen3ForSequenceClassification)"),
        ("Qwen3Model", "a model without a language model's head (Qwen3Model)"),
        ("BertForMaskedLM", "a model without a language model's head (BertForMaskedLM)"),
    ],
)
def test_a_policy_has_the_head_of_a_language_model(tmp_path, architecture, what):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    said = f"{tmp_path} is {what}, expected a language model (...ForCausalLM)"
    assert wrong_head(tmp_path) == (what and said)


# A reward model -------------------------------------------------------------------------------------------------------


def test_a_reward_model_may_lack_its_new_head_and_leave_the_old_one(base, tmp_path):
    rows = len(load_file(base / FILE)[EMBEDDINGS])
    untied = changed(
        base, tmp_path / "m", weights={"lm_head.weight": [rows, HIDDEN]}, config={"tie_word_embeddings": False}
    )
    for folder in (base, untied):
        becomes = check_weights_fit(folder, "ForSequenceClassification", num_labels=1, new=HEAD, unused=LANGUAGE_HEADS)
        assert becomes is None
    assert str(check_weights_fit(base, "ForSequenceClassification", num_labels=1)).endswith(
        ": 1 missing (score.weight)"
    )


def test_reward_training_and_the_service_refuse_what_does_not_fit(base, tmp_path):
    folder = changed(base, tmp_path / "base", weights={UP: None})
    with pytest.raises(ModelError, match=rf"as a Qwen3ForSequenceClassification: 1 missing \({UP}\); take config"):
        check_base(folder)
    classifier = {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}
    headless = changed(base, tmp_path / "reward", config=classifier)
    with pytest.raises(ModelError, match=r"1 missing \(score.weight\)"):
        Scorer.load(headless, device="cpu")
    with pytest.raises(ModelError, match=r"1 missing \(score.weight\)"):
        check_base(headless)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"lora_A": None}, "1 missing (base_model.model.model.layers.0.mlp.down_proj.lora_A.weight)"),
        ({"lora_A": [2, 2]}, "1 of another shape (base_model.model.model.layers.0.mlp.down_proj.lora_A.weight: 2x2, e"),
        ({"base_model.model.nothing.lora_A.weight": [1]}, "1 unexpected (base_model.model.nothing.lora_A.weight)"),
    ],
)
def test_an_adapter_has_to_fit_its_base(base, adapter, tmp_path, change, words):
    folder = shutil.copytree(adapter, tmp_path / "a")
    tensors = load_file(folder / "adapter_model.safetensors")
    for name, shape in change.items():
        name = next((own for own in sorted(tensors) if f".{name}." in own), name)
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = torch.zeros(shape)
    save_file(tensors, folder / "adapter_model.safetensors")
    fault = check_adapter_weights(folder, base, "ForSequenceClassification", num_labels=1)
    if words is None:
        assert fault is None
        return
    assert words in str(fault)
    with pytest.raises(ModelError, match="does not fit"):
        Scorer.load(folder, device="cpu")


def test_a_reward_models_adapter_is_no_policys(base, adapter):
    assert "score.weight" in str(check_adapter_weights(adapter, base, "ForCausalLM"))
