"""Which models are trained where is one table: doctor, dry run and start say the same before anything loads.

Tried as small random models: doctor had said "a run can start" of five that ended after the first rollouts, 23 to 80 s
later, or in a traceback.
"""

import json
import shutil

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from sql_agent.architectures import can_pack, check_architecture
from sql_agent.commands import doctor
from sql_agent.train_sql_agent import main

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
STATES = "has layers that hand a state from token to token"
HEADS = "has no num_key_value_heads, which verl asks for"
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
# model type, its settings; why the main job refuses it where rows are computed together, with verl's own engine, and
# training in this process; whether `agentgrpo local` computes its rows together
KINDS = {
    "qwen3": ("qwen3", {}, None, None, None, True),
    "qwen2": ("qwen2", {}, None, None, None, True),
    "llama": ("llama", {}, None, None, None, True),
    "phi3": ("phi3", {}, None, None, None, True),
    "phi3_of_long_rows": (
        "phi3",
        {"rope_parameters": LONG, "original_max_position_embeddings": 512},
        "changes its positions once a row is longer than 512 tokens (original_max_position_embeddings), and rows may ",
        None,
        None,
        False,
    ),
    "mistral_without_a_window": ("mistral", {"sliding_window": None}, None, None, None, True),
    "mistral_with_a_window": ("mistral", {"sliding_window": 512}, None, None, None, True),
    "gemma3": ("gemma3_text", {"sliding_window": 512}, None, None, None, True),
    "phimoe_with_a_wide_window": ("phimoe", {"sliding_window": 4096}, None, None, None, False),
    "qwen2_moe_without_its_window": ("qwen2_moe", {"use_sliding_window": False}, None, None, None, True),
    "gemma2": ("gemma2", {}, "caps its attention scores", None, None, False),
    "granite": ("granite", {"logits_scaling": 1.0}, None, None, None, True),
    "granite_with_scaling": (
        "granite",
        {"logits_scaling": 4.0},
        "changes its logits by logits_scaling",
        None,
        None,
        True,
    ),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"]}, STATES, None, None, False),
    "qwen3_next": ("qwen3_next", {}, STATES, None, None, False),
    "recurrent_gemma": ("recurrent_gemma", {}, STATES, None, STATES, False),
    "gpt2": ("gpt2", {}, HEADS, HEADS, None, True),
    "stablelm": ("stablelm", {}, "was never compared, rows together with rows apart", None, None, False),
    "phi": ("phi", {}, "has a bias in its output layer", None, None, True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_of_models_is_refused_where_it_cannot_be_trained(tmp_path, kind):
    model_type, own, *expected, together = KINDS[kind]
    AutoConfig.for_model(model_type, **SIZES | own).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for trainer, why in zip(("packed", "verl", "local"), expected, strict=True):
        problem = check_architecture(config, trainer, 2064)  # 2,048 of the response and a prompt
        assert (problem is None) == (why is None), problem
        assert why is None or f"model type {model_type} {why}" in problem.what
    assert can_pack(config) is together


def test_a_window_that_is_turned_off_counts_nowhere():
    """config.json of Qwen2-MoE names a window beside the field that turns it off."""
    config = {"model_type": "qwen2_moe", "sliding_window": 512, "use_sliding_window": False}
    assert check_architecture(config, "packed", 2064) is None and can_pack(config)
    assert not can_pack(config | {"use_sliding_window": True})


@pytest.fixture(scope="module")
def folder_of(random_policy_folder, tmp_path_factory):
    """Makes a whole model of a kind, with the small policy's tokenizer."""

    def made(kind):
        model_type, own, *_ = KINDS[kind]
        folder = tmp_path_factory.mktemp(kind)
        shutil.copytree(random_policy_folder, folder, dirs_exist_ok=True)
        vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
        config = AutoConfig.for_model(model_type, **SIZES | own | {"vocab_size": vocab})
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return folder

    return made


@pytest.mark.parametrize("kind", ["phi3", "phi3_of_long_rows", "gpt2"])
def test_doctor_and_dry_run_say_it_alike(folder_of, tmp_path, capsys, kind):
    folder, (model_type, _, why, *_) = folder_of(kind), KINDS[kind]
    run = ["--model", str(folder), "--device", "cpu", "--run-dir", str(tmp_path / "run")]
    assert doctor.main(["--model", str(folder)]) == (why is not None)
    said = capsys.readouterr().out
    assert f"not estimated for model type {model_type}, only for llama, " in said
    assert main([*run, "--dry-run", "--set", "data.generate=16", "data.train_batch_size=4"]) == (2 if why else 0)
    refused = capsys.readouterr()
    assert why is None or (f"{model_type} {why}" in said and f"{model_type} {why}" in refused.err)


@pytest.mark.parametrize(("tokens", "status"), [(64, 0), (448, 2)])
def test_prompts_count_once_they_are_known(folder_of, tmp_path, capsys, tokens, status):
    """The longest prompt of generated tasks has more than 64 tokens, and fewer than 448."""
    folder = folder_of("phi3_of_long_rows")
    run = ["--model", str(folder), "--device", "cpu", "--run-dir", str(tmp_path), "--dry-run"]
    settings = [
        "data.generate=16",
        "data.train_batch_size=4",
        f"data.max_response_tokens={tokens}",
        "agent.max_tokens=64",
    ]
    assert main([*run, "--set", *settings]) == status, capsys.readouterr().err
    assert ("lower data.max_prompt_tokens and data.max_response_tokens, or" in capsys.readouterr().err) == bool(status)
