"""What a folder is that holds no whole model in the Hugging Face form, and what to do with it; and a model's size.

Every command that loads a model asks this before anything else. It reads names of files, two small JSON files and the
headers of safetensors; whether the weights are whole and fit is checked in `agentgrpo.weights`. Importing this module
is instant.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgrpo.checks import Finding, Problem
from agentgrpo.json_text import parse_json
from agentgrpo.printed_commands import agentgrpo_command, program_command

# The file that makes a folder that of a PEFT adapter.
ADAPTER_FILE = "adapter_config.json"
_NO_WEIGHTS = "it trains no weights that could be merged into a model; train a LoRA adapter, or take another model"
# Seen with PEFT 0.21.2 on a model with tied weights: logits before and after were 22 apart.
_EMBEDDINGS = (
    "embeddings are not merged here: train it again without them (target_modules, modules_to_save), or merge it with "
    "the program that trained it, and compare; PEFT's own merge computes something else where the output layer shares "
    "their weights"
)
# `quant_method` of config.json, and the name that people know it by.
_QUANTISED = {
    "awq": "AWQ",
    "gptq": "GPTQ",
    "bitsandbytes": "bitsandbytes",
    "fp8": "FP8",
    "hqq": "HQQ",
    "aqlm": "AQLM",
    "quanto": "Quanto",
    "compressed-tensors": "compressed-tensors",
    "mxfp4": "MXFP4",
    "torchao": "torchao",
}
# Files of weights that transformers does not load, and what they are.
_OTHER_WEIGHTS = {
    "*.gguf": "weights of llama.cpp (GGUF), which can be served and not trained",
    "*.onnx": "weights of ONNX, which can be served and not trained",
    "*.ggml": "weights of an old llama.cpp (GGML), which can be served and not trained",
    "tf_model.h5": "weights of TensorFlow",
    "flax_model.msgpack": "weights of Flax",
    "consolidated*.pth": "weights in the form of their authors and not of transformers",
    "consolidated*.safetensors": "weights in the form of their authors and not of transformers",
    "*.ckpt": "a checkpoint of a training program",
    "*.nemo": "a NeMo model",
    "*mp_rank_*_states.pt": "shards of DeepSpeed",
    "*.distcp": "shards of FSDP",
    "model_world_size_*_rank_*.pt": "shards of verl's training",
}
# Folders in which training programs put their shards, inside the one that they write.
_OF_TRAINING = ("global_step*", "pytorch_model*", "checkpoint", "actor", "iter_*")
_ZERO_SCRIPT = "zero_to_fp32.py"
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "*.safetensors")
_ORIGINAL = "take the folder of the model that it was made from, with config.json and *.safetensors"


def other_kind(path: Path) -> Problem | None:
    """None if it may be a whole model. An adapter beside the weights of its base is one with a file too much."""
    if path.is_file():
        return _of_file(path)
    kinds = (_adapter, _hub_cache, _of_fsdp, _other_weights, _quantised, _in_a_subfolder)
    return next((found for kind in kinds if (found := kind(path)) is not None), None)


def check_model_kind(path: Path) -> Finding:
    other = other_kind(path)
    return Finding(f"{path}", (other,) if other else ())


def _of_file(path: Path) -> Problem:
    found = next((what for pattern, what in _OTHER_WEIGHTS.items() if path.match(pattern)), None)
    if found:
        return Problem(f"{path} is a file with {found}", _ORIGINAL)
    return Problem(f"{path} is a file, expected the folder of a model", f"give {path.parent}, if it lies there")


def _adapter(path: Path) -> Problem | None:
    whole = [file for pattern in _WEIGHTS for file in path.glob(pattern) if not file.name.startswith("adapter_model")]
    if not (path / ADAPTER_FILE).is_file() or (whole and (path / "config.json").is_file()):
        return None
    merged = f"{path}-merged"
    command = agentgrpo_command("merge", "--adapter", path, "--output", merged)
    what = f"{path} holds an adapter, expected a whole model"
    if fault := adapter_fault(path):
        return Problem(f"{what}; {fault.what}", fault.remedy)
    return Problem(what, f"merge it by `{command}`, and give {merged}")


def adapter_fault(path: Path) -> Problem | None:
    """Why an adapter can be neither merged nor trained on, by its files; None if it may be."""
    kind = _object(path / ADAPTER_FILE).get("peft_type")
    if isinstance(kind, str) and kind.upper() in _PROMPTS:
        return Problem(f"{path} is an adapter of {_PROMPTS[kind.upper()]} ({kind})", _NO_WEIGHTS)
    if (path / "adapter_model.bin").is_file() and not (path / "adapter_model.safetensors").is_file():
        return Problem(
            f"the weights of the adapter in {path} are a pickle (adapter_model.bin), which may run a program",
            "if you trust it, load it with `peft.PeftModel.from_pretrained(base, FOLDER)` and write it again with "
            "`save_pretrained`, which writes adapter_model.safetensors",
        )
    shapes = safetensors_header(path / "adapter_model.safetensors") or {}
    if name := next((name for name in shapes if ".base_layer." in name), None):
        what = f"the adapter in {path} changes the embeddings by LoRA, and holds them whole ({name})"
        return Problem(what, _EMBEDDINGS)
    if name := next((name for name in shapes if name.endswith(".original_module.weight")), None):
        tokens = f"{shapes[name]['shape'][0]:,} tokens"
        return Problem(f"the adapter in {path} holds its own embeddings, of {tokens}, beside the base's", _EMBEDDINGS)
    return None


def safetensors_header(file: Path) -> dict[str, Any] | None:
    # 8 bytes with the little-endian length of the header, the header as JSON, then the tensors.
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = parse_json(stream.read(min(length, file.stat().st_size)))
        return {name: dict(tensor) for name, tensor in header.items() if name != "__metadata__"}
    except (OSError, ValueError, TypeError, AttributeError):
        return None


# PEFT's methods that change no weights.
_PROMPTS = {
    "PROMPT_TUNING": "tokens in front of the prompt",
    "P_TUNING": "tokens in front of the prompt",
    "PREFIX_TUNING": "keys and values in front of the prompt",
    "MULTITASK_PROMPT_TUNING": "tokens in front of the prompt",
    "ADAPTION_PROMPT": "tokens inside the layers",
    "CPT": "tokens in front of the prompt",
}


def _hub_cache(path: Path) -> Problem | None:
    # A folder of the hub's cache, `models--ORG--NAME`, has its files in a folder for each revision.
    if models := sorted(folder.name for folder in path.glob("models--*") if folder.is_dir()):
        names = ", ".join(map(_hub_id, models[:3])) + (", ..." if len(models) > 3 else "")
        return Problem(f"{path} is a cache of the hub, with {names}", f"give one by its id, {_hub_id(models[0])}")
    if not path.name.startswith("models--") or (path / "config.json").exists():
        return None
    what = f"{path} is the folder of {_hub_id(path.name)} in a cache of the hub"
    snapshots = sorted((path / "snapshots").glob("*/"), key=lambda folder: folder.stat().st_mtime)
    if not snapshots:
        return Problem(
            f"{what}, and holds no files yet", f"fetch it by `{program_command('hf', 'download', _hub_id(path.name))}`"
        )
    main = path / "refs" / "main"
    named = path / "snapshots" / main.read_text(errors="replace").strip() if main.is_file() else snapshots[-1]
    return Problem(what, f"give its files, {named if named in snapshots else snapshots[-1]}")


def _hub_id(folder: str) -> str:
    return folder.removeprefix("models--").replace("--", "/", 1)


_BESIDE = "then put config.json and the tokenizer's files beside the weights"


def _of_fsdp(path: Path) -> Problem | None:
    # FSDP saves weights under names that begin like those of a whole model.
    saved = sorted(path.glob("pytorch_model_fsdp*.bin"))
    if not saved or len(saved) < len([*path.glob("pytorch_model*.bin"), *path.glob("model*.safetensors")]):
        return None
    what = f"{path} holds weights of FSDP ({saved[0].name})"
    if "_rank" not in saved[0].name:
        return Problem(what, "rename that file to pytorch_model.bin, if config.json is beside it")
    remedy = "which only the processes of that training can load; save them there with FULL_STATE_DICT"
    return Problem(f"{what}, one file for each process", remedy)


def _shards(path: Path) -> Problem | None:
    for folder in (path, *(folder for name in _OF_TRAINING for folder in sorted(path.glob(f"{name}/")))):
        if file := next(iter(sorted(folder.glob("*mp_rank_*_states.pt"))), None):
            return Problem(f"{path} holds shards of DeepSpeed ({file.name})", _merged_by_deepspeed(folder))
        if file := next(iter(sorted(folder.glob("*.distcp"))), None):
            command = program_command("accelerate", "merge-weights", folder, "FOLDER")
            return Problem(f"{path} holds shards of FSDP ({file.name})", f"merge them by `{command}`, {_BESIDE}")
        if any(folder.glob("model_world_size_*_rank_*.pt")):
            command = agentgrpo_command("merge", "--checkpoint", path, "--output", "FOLDER")
            return Problem(f"{path} holds shards of verl's training", f"merge them by `{command}`")
        if any(folder.glob("mp_rank_*/")) or (folder / "latest_checkpointed_iteration.txt").is_file():
            return Problem(f"{path} holds shards of Megatron", "convert them by the program that trained them")
    return None


def _merged_by_deepspeed(folder: Path) -> str:
    scripts = (root / _ZERO_SCRIPT for root in (folder.parent, folder) if (root / _ZERO_SCRIPT).is_file())
    program = next(([str(script)] for script in scripts), ["-m", "deepspeed.utils.zero_to_fp32"])
    command = ["python", *program, str(folder.parent), "FOLDER", "--tag", folder.name, "--safe_serialization"]
    return f"merge them, where DeepSpeed is installed, by `{shlex.join(command)}`, {_BESIDE}"


def _other_weights(path: Path) -> Problem | None:
    if any(file for pattern in _WEIGHTS[:2] for file in path.glob(pattern)):
        return None
    if shards := _shards(path):
        return shards
    for pattern, what in _OTHER_WEIGHTS.items():
        if file := next(iter(sorted(path.glob(pattern))), None):
            return Problem(f"{path} holds {what} ({file.name})", _ORIGINAL)
    if (path / "model_index.json").is_file():
        return Problem(f"{path} is a pipeline of diffusers and no language model", "take a language model")
    return None


def _quantised(path: Path) -> Problem | None:
    config = _object(path / "config.json")
    given = config.get("quantization_config")
    found: dict[str, Any] = given if isinstance(given, dict) else {}
    method = found.get("quant_method")
    if not method and found.get("load_in_4bit", found.get("load_in_8bit")):
        method = "bitsandbytes"
    if method:
        name = _QUANTISED.get(str(method), str(method))
        bits = found.get("bits") or found.get("w_bit") or (4 if found.get("load_in_4bit") else None)
    elif isinstance(config.get("quantization"), dict):
        name, bits = "MLX", config["quantization"].get("bits")
    else:
        return None
    exact = f", {bits} bits a weight" if isinstance(bits, int) else ""
    return Problem(f"the weights of {path} are quantised by {name}{exact}, and cannot be trained", _ORIGINAL)


def _in_a_subfolder(path: Path) -> Problem | None:
    if (path / "config.json").exists() or not path.is_dir():
        return None
    if steps := sorted(path.glob("checkpoints/global_step_*")):
        command = agentgrpo_command("merge", "--checkpoint", path, "--output", "FOLDER")
        return Problem(f"{path} holds the checkpoints of a run ({steps[-1].name})", f"merge one by `{command}`")
    found = sorted(file.parent for name in ("config.json", ADAPTER_FILE) for file in path.glob(f"*/{name}"))
    if not found:
        return None
    names = ", ".join(folder.name for folder in found[:3]) + (", ..." if len(found) > 3 else "")
    return Problem(f"{path} holds no model, its subfolder has: {names}", f"give one of them, e.g. {found[-1]}")


def _object(file: Path) -> dict[str, Any]:
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


# Vocabularies ---------------------------------------------------------------------------------------------------------


def vocabulary_fault(folder: Path, base: Path) -> Problem | None:
    """Why the tokenizer in a folder is not that of the model in `base`: it has ids without a row of the embeddings.

    Such an id ends a training in `IndexError: index out of range in self`, perhaps after hours.
    """
    config, tokenizer = _object(base / "config.json"), _object(folder / "tokenizer.json")
    rows = (config.get("text_config") or config).get("vocab_size")
    try:
        vocabulary = tokenizer["model"]["vocab"]
        named = [*vocabulary.values()] if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
        added = [each["id"] for each in tokenizer.get("added_tokens") or ()]
        more = map(int, _object(folder / "tokenizer_config.json").get("added_tokens_decoder") or ())
        highest = max((*named, *added, *more), default=0)
    except (KeyError, TypeError, ValueError):  # which the tokenizer's own loader says
        return None
    if not isinstance(rows, int) or highest < rows:
        return None
    what = f"the tokenizer of {folder} has token {highest}, the model {rows} embeddings (0 to {rows - 1})"
    return Problem(what, "take the tokenizer that belongs to the model, or resize the embeddings")


# Sizes ----------------------------------------------------------------------------------------------------------------


# Parts of the names of matrices that an adapter on all linear layers leaves out: embeddings and the output layer.
NOT_ADAPTED = ("embed", "lm_head", "wte", "wpe")


def count_weights(folder: Path) -> int | None:
    return sum(math.prod(shape) for _, shape in _shapes(folder)) or None


def count_adapter_weights(folder: Path, rank: int) -> int | None:
    """About how many weights a new LoRA adapter on all linear layers has: rank x (rows + columns) of each.

    Args:
        folder: the base model's; None is returned if it has no safetensors.
    """
    layers = [shape for name, shape in _shapes(folder) if len(shape) == 2 and not any(n in name for n in NOT_ADAPTED)]
    return rank * sum(map(sum, layers)) or None


def _shapes(folder: Path) -> Iterator[tuple[str, list[int]]]:
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as tensors:  # refuses a torn file
            for name in tensors.keys():  # noqa: SIM118  no mapping
                yield name, tensors.get_slice(name).get_shape()
