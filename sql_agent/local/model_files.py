"""Checks the files of a model and the device it is to run on, before anything heavy is loaded.

Leaves out loading it (`sql_agent.local.policy`) and checking its chat template (`agentgrpo.chat.replies`).
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from agentgrpo.checks import Finding, UsageError
from agentgrpo.hub import ModelNotFoundError, go_offline, model_folder
from agentgrpo.model_kinds import ADAPTER_FILE, adapter_fault, other_kind, vocabulary_fault
from agentgrpo.printed_commands import install_command
from sql_agent.model_check import (
    OF_ONE_MODEL,
    ModelFileError,
    check_config,
    check_tokenizer,
    check_weights,
    read_json,
    safetensors_bytes,
)


def is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_FILE).is_file()


def base_name(adapter: Path) -> str:
    """The base model that an adapter names: a folder or an id on the hub."""
    return read_json(adapter / ADAPTER_FILE)["base_model_name_or_path"]


def base_folder(model: Path) -> Path:
    """The folder of a model; for an adapter, that of the model at the end of its chain of bases."""
    while is_adapter(model):
        model = model_folder(base_name(model), fetch=False)
    return model


def check_model_weights(path: str) -> None:
    """Check that the weights are a language model's, with the names and shapes that its config requires.

    Args:
        path: a model, or an adapter, whose base is checked too; `whole_model` has found their files whole.
    Raises:
        UsageError: weights do not fit; the message names them.
    """
    from agentgrpo.weights import check_adapter_weights, check_weights_fit, wrong_head

    folder = model_folder(path, fetch=False)
    base = base_folder(folder)
    if fault := wrong_head(base) or check_weights_fit(base, "ForCausalLM"):
        raise UsageError(f"{fault}; {OF_ONE_MODEL}")
    if folder != base and (fault := check_adapter_weights(folder, base, "ForCausalLM")):
        raise UsageError(f"{fault}; take an adapter of a language model with the base that it was trained on")


def check_device(device: str, load_in_4bit: bool, has_gpu: bool) -> None:
    """Check that the device exists and can hold the weights as requested.

    Raises:
        UsageError: there is no such device, or it cannot hold 4-bit weights.
    """
    if device == "cuda" and not has_gpu:
        raise UsageError("--device cuda: torch sees no GPU here; leave the flag out or give cpu")
    if load_in_4bit and device != "cuda":
        raise UsageError("--load-in-4bit needs a GPU; leave the flag out, a CPU holds the model in float32")
    if load_in_4bit and importlib.util.find_spec("bitsandbytes") is None:
        raise UsageError(
            f"--load-in-4bit needs bitsandbytes, which is not installed; {install_command('bitsandbytes')}"
        )


def check_policy(path: str) -> Finding:
    """Check that a model or an adapter that is trained in this process is there and whole; see `whole_model`."""
    whole_model(path)
    return Finding(f"{path}: {'folder' if Path(path).is_dir() else 'in the Hugging Face cache'}")


def whole_model(path: str, _adapters: tuple[str, ...] = ()) -> str:
    """Check that a model or an adapter exists and is whole; fetch one that is named by its id on the hub.

    Returns:
        The path to load: `path` itself, because adapters name their base by it; for an adapter's id its folder.
    Raises:
        UsageError: the files are missing or damaged and cannot be fetched.
    """
    go_offline()
    # torch reads this at import; without it, waiting threads keep their cores busy
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    folder = Path(path)
    if is_adapter(folder):
        try:
            base = read_json(folder / ADAPTER_FILE).get("base_model_name_or_path")
        except ModelFileError as error:
            raise UsageError(f"{error}; copy the adapter again") from error
        if fault := adapter_fault(folder):
            raise UsageError(str(fault))
        weights = folder / "adapter_model.safetensors"
        if not weights.is_file() or safetensors_bytes(weights) != weights.stat().st_size or not base:
            raise UsageError(
                f"{folder} is no whole adapter: expected {weights.name}, undamaged, and its base's name; copy it again"
            )
        if str(folder.resolve()) in _adapters:
            raise UsageError(
                f"the adapter in {folder} names itself as its base; write the model's folder into {ADAPTER_FILE}"
            )
        try:
            whole_model(base, (*_adapters, str(folder.resolve())))
        except UsageError as error:
            raise UsageError(f"the adapter in {folder} needs its base: {error}") from error
        if too_large := vocabulary_fault(folder, base_folder(folder)):
            raise UsageError(str(too_large))
        return path
    if folder.exists():
        if other := other_kind(folder):
            raise UsageError(str(other))
        problems = [p for check in (check_config, check_tokenizer, check_weights) for p in check(folder) if p.blocks]
        if problems:
            raise UsageError(str(problems[0]))
        return path
    try:
        found = model_folder(path, fetch=not _adapters)  # an adapter's base is not fetched
    except ModelNotFoundError as error:
        raise UsageError(str(error)) from None
    whole_model(str(found), _adapters)
    return str(found) if is_adapter(found) else path
