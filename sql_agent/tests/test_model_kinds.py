"""A folder that holds no whole model says what it is, to every command in the same words."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from agentgrpo.checks import UsageError, examine, require
from agentgrpo.hub import ModelNotFoundError, model_folder
from agentgrpo.model_kinds import other_kind

ORIGINAL = "take the folder of the model that it was made from, with config.json and *.safetensors"


def quantised(**settings):
    return {"config.json": json.dumps({"architectures": ["Qwen3ForCausalLM"], **settings}), "model.safetensors": ""}


FOLDERS = {
    "gguf": ({"model-Q4_K_M.gguf": "GGUF"}, r"holds weights of llama\.cpp \(GGUF\).*\(model-Q4_K_M\.gguf\)"),
    "gguf_with_config": ({"config.json": "{}", "a.gguf": "GGUF"}, r"holds weights of llama\.cpp"),
    "awq": (
        quantised(quantization_config={"quant_method": "awq", "bits": 4}),
        "are quantised by AWQ, 4 bits a weight, and cannot be trained",
    ),
    "gptq": (quantised(quantization_config={"quant_method": "gptq", "bits": 8}), "quantised by GPTQ, 8 bits a weight"),
    "bitsandbytes": (
        quantised(quantization_config={"load_in_4bit": True, "quant_method": "bitsandbytes"}),
        "quantised by bitsandbytes, 4 bits a weight",
    ),
    "fp8": (quantised(quantization_config={"quant_method": "fp8"}), "quantised by FP8, and"),
    "one_of_tomorrow": (quantised(quantization_config={"quant_method": "new"}), "quantised by new, and cannot"),
    "mlx": (quantised(quantization={"group_size": 64, "bits": 4}), "quantised by MLX, 4 bits a weight"),
    "onnx": ({"config.json": "{}", "model.onnx": ""}, "holds weights of ONNX"),
    "tensorflow": ({"config.json": "{}", "tf_model.h5": ""}, r"holds weights of TensorFlow \(tf_model\.h5\)"),
    "of_the_authors": ({"params.json": "{}", "consolidated.00.pth": ""}, "in the form of their authors"),
    "deepspeed": (
        {"mp_rank_00_model_states.pt": ""},
        r"shards of DeepSpeed .*-m deepspeed\.utils\.zero_to_fp32 \S+ FOLDER --tag m --safe_serialization`, then",
    ),
    "zero_3_of_transformers": (
        {
            "config.json": "{}",
            "latest": "global_step8",
            "zero_to_fp32.py": "",
            "global_step8/zero_pp_rank_0_mp_rank_00_model_states.pt": "",
            "global_step8/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt": "",
        },
        r"DeepSpeed .*by `python \S+/m/zero_to_fp32\.py \S+/m FOLDER --tag global_step8 --safe_serialization`",
    ),
    "zero_of_accelerate": (
        {"pytorch_model/mp_rank_00_model_states.pt": ""},
        "DeepSpeed .*/m FOLDER --tag pytorch_model",
    ),
    "fsdp": (
        {
            "config.json": "{}",
            "optimizer_0/__0_0.distcp": "",
            "pytorch_model_fsdp_0/.metadata": "",
            "pytorch_model_fsdp_0/__0_0.distcp": "",
        },
        r"shards of FSDP \(__0_0\.distcp\).*accelerate merge-weights \S+/pytorch_model_fsdp_0 FOLDER`, then put config",
    ),
    "fsdp_folder_itself": ({".metadata": "", "__0_0.distcp": ""}, r"accelerate merge-weights \S+/m FOLDER"),
    "fsdp_in_one_file": (
        {"config.json": "{}", "pytorch_model_fsdp.bin": ""},
        r"weights of FSDP \(pytorch_model_fsdp\.bin\); rename that file to pytorch_model\.bin",
    ),
    "fsdp_of_each_process": (
        {"config.json": "{}", "pytorch_model_fsdp_rank0.bin": "", "pytorch_model_fsdp_rank1.bin": ""},
        "one file for each process; .* save them there with FULL_STATE_DICT",
    ),
    "megatron": ({"latest_checkpointed_iteration.txt": "8", "iter_0000008/mp_rank_00/a.pt": ""}, "shards of Megatron"),
    "verl": ({"model_world_size_2_rank_0.pt": ""}, "shards of verl's training; .*agentgrpo merge --checkpoint"),
    "verl_step": (
        {"actor/model_world_size_2_rank_0.pt": ""},
        "shards of verl's training; .*agentgrpo merge --checkpoint",
    ),
    "run": ({"checkpoints/global_step_8/data.pt": ""}, "the checkpoints of a run .*agentgrpo merge --checkpoint"),
    "one_folder_too_high": ({"qwen/config.json": "{}"}, "holds no model, its subfolder has: qwen; give one of them"),
}


CACHED = "models--Qwen--Qwen3-0.6B"
HUB_FOLDERS = {
    "whole": (
        {f"{CACHED}/refs/main": "c1", f"{CACHED}/snapshots/b0/a": "", f"{CACHED}/snapshots/c1/a": ""},
        CACHED,
        "is the folder of Qwen/Qwen3-0.6B in a cache of the hub; give its files, {}/snapshots/c1",
    ),
    "of_another_revision": (
        {f"{CACHED}/snapshots/b0/config.json": "{}"}, CACHED, "in a cache of the hub; give its files, {}/snapshots/b0"
    ),
    "whose_revision_is_gone": (
        {f"{CACHED}/refs/main": "c1", f"{CACHED}/snapshots/b0/config.json": "{}"}, CACHED, "its files, {}/snapshots/b0"
    ),
    "begun": ({f"{CACHED}/blobs/a.incomplete": ""}, CACHED, "holds no files yet; fetch it by `"),
    "the_cache": (
        {f"hub/{CACHED}/refs/main": "c1", "hub/models--gpt2/refs/main": "c1"},
        "hub",
        "is a cache of the hub, with Qwen/Qwen3-0.6B, gpt2; give one by its id, Qwen/Qwen3-0.6B",
    ),
}  # fmt: skip


def made(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def test_a_command_can_be_pasted_wherever_the_script_is(tmp_path):
    files = {"zero_to_fp32.py": "", "global_step8/mp_rank_00_model_states.pt": ""}
    folder = made(tmp_path / "my model", files)
    kind = other_kind(folder)
    assert kind is not None
    assert f"`python '{folder}/zero_to_fp32.py' '{folder}' FOLDER --tag global_step8 --safe_ser" in str(kind)


def refused_by_doctor(path: Path) -> str:
    [(_, finding)] = examine(model=path, protocol="fc")
    return "; ".join(map(str, finding.problems))


def refused_by_training(path: Path) -> str:
    with pytest.raises((UsageError, ModelNotFoundError)) as refused:
        require(model=path, protocol="fc")
    return str(refused.value)


def refused_by_local_training(path: Path) -> str:
    """SFT, DPO, the local trainers and the terminal ask the same."""
    with pytest.raises(UsageError) as refused:
        require(policy=str(path))
    return str(refused.value)


COMMANDS = [refused_by_doctor, refused_by_training, refused_by_local_training]


@pytest.mark.parametrize("refused", COMMANDS)
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_of_another_kind_says_what_it_is(tmp_path, kind, refused):
    files, words = FOLDERS[kind]
    said = str(other_kind(made(tmp_path / "m", files)))
    assert said in refused(tmp_path / "m")
    with pytest.raises(ValueError, match=words):
        raise ValueError(said)


@pytest.mark.parametrize("kind", HUB_FOLDERS)
def test_a_folder_of_the_hubs_cache_names_the_snapshot(tmp_path, kind):
    files, name, words = HUB_FOLDERS[kind]
    path = made(tmp_path, files) / name
    for refused in COMMANDS:
        assert words.format(path) in refused(path)


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors"])
def test_a_file_is_no_folder_and_says_what_it_is(tmp_path, name):
    (tmp_path / name).write_text("")
    what = {
        "model.gguf": f"a file with weights of llama.cpp (GGUF), which can be served and not trained; {ORIGINAL}",
        "model.safetensors": f"a file, expected the folder of a model; give {tmp_path}, if it lies there",
    }[name]
    for refused in COMMANDS:
        assert f"{tmp_path / name} is {what}" in refused(tmp_path / name)
    with pytest.raises(ModelNotFoundError) as refused:
        model_folder(tmp_path / name)
    assert str(refused.value) == f"{tmp_path / name} is {what}"


def test_a_whole_model_is_of_no_other_kind(random_policy_folder, tmp_path):
    assert other_kind(random_policy_folder) is None
    shutil.copytree(random_policy_folder, tmp_path / "m")
    (tmp_path / "m" / "extra.gguf").touch()
    (tmp_path / "m" / "adapter_config.json").write_text("{}")
    assert other_kind(tmp_path / "m") is None


# Adapters -------------------------------------------------------------------------------------------------------------


def adapter(folder: Path, base: Path, *, weights: str = "adapter_model.safetensors", **settings) -> Path:
    folder.mkdir()
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(base)} | settings
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    if weights.endswith(".bin"):
        torch.save({"a": torch.zeros(2)}, folder / weights)
    else:
        save_file({"a": torch.zeros(2)}, folder / weights)
    return folder


def test_an_adapter_is_no_whole_model_and_says_how_it_becomes_one(random_policy_folder, tmp_path):
    path = adapter(tmp_path / "a", random_policy_folder)
    (path / "config.json").write_text("{}")  # some trainers save the config of the base too
    for refused in COMMANDS[:2]:
        assert f"{path} holds an adapter, expected a whole model; merge it by `" in refused(path)
    require(policy=str(path))  # the local trainers go on from one


@pytest.mark.parametrize("kind", ["PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING"])
def test_an_adapter_that_changes_no_weights_says_so(random_policy_folder, tmp_path, kind):
    path = adapter(tmp_path / "a", random_policy_folder, peft_type=kind)
    for refused in COMMANDS:
        assert f"in front of the prompt ({kind}); it trains no weights that could be merged" in refused(path)


def test_an_adapter_of_pickled_weights_says_how_it_is_written_again(random_policy_folder, tmp_path):
    path = adapter(tmp_path / "a", random_policy_folder, weights="adapter_model.bin")
    for refused in COMMANDS:
        assert "are a pickle (adapter_model.bin), which may run a program; if you trust it, load it" in refused(path)


def holding(path: Path, *names: str) -> Path:
    save_file({name: torch.zeros(7, 2) for name in names}, path / "adapter_model.safetensors")
    return path


def test_an_adapter_of_the_embeddings_says_so(random_policy_folder, tmp_path):
    path = adapter(tmp_path / "a", random_policy_folder)
    holding(path, "base_model.model.model.embed_tokens.base_layer.weight")
    for refused in COMMANDS:
        assert "changes the embeddings by LoRA, and holds them whole (base_model.model.model.embed" in refused(path)
        assert "embeddings are not merged here: train it again without them" in refused(path)


def test_an_adapter_with_resized_embeddings_says_how_many_tokens_it_has(random_policy_folder, tmp_path):
    path = adapter(tmp_path / "a", random_policy_folder)
    whole = "base_model.model.model.embed_tokens"
    holding(path, f"{whole}.original_module.weight", f"{whole}.modules_to_save.weight", f"{whole}.weight")
    for refused in COMMANDS:
        assert "holds its own embeddings, of 7 tokens, beside the base's; embeddings are not merged" in refused(path)
