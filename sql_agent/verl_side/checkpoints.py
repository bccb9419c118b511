"""Seals the checkpoints of the main job, and chooses the one that a run resumes from.

A checkpoint is valid once its manifest is written, and is loaded only if its files still match the manifest and this
user wrote them (`agentgrpo.signed_checkpoints`). verl writes `global_step_N` file by file (trainer/ppo/ray_trainer.py,
`_save_checkpoint`) and then a number into `latest_checkpointed_iteration.txt`; neither shows whether every byte arrived
or is still there. The manifest, written last, has the size and SHA-256 of every file. Several nodes need a run
directory that all of them share. Imports nothing heavy.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentgrpo import checkpoints, signed_checkpoints
from agentgrpo.checkpoints import MANIFEST, CheckpointError, Say, step_of
from agentgrpo.json_text import parse_json
from agentgrpo.outputs import sync

PREFIX = "global_step_"
TRACKER = "latest_checkpointed_iteration.txt"
SHARDS = ("model", "optim", "extra_state")
"""Files that every training worker writes (verl utils/checkpoint/fsdp_checkpoint_manager.py)."""
PACKAGES = ("verl", "vllm", "torch", "transformers", "peft", "agentlightning")

REMEDY = (
    "start again with `--resume never`: it moves these checkpoints and what was logged into a folder of their own and "
    "trains from step 0"
)


def describe_checkpoint(checkpoint: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a checkpoint that was just written, after flushing its files to the disk.

    Args:
        facts: id and commit of the run.
    Raises:
        CheckpointError: files of a training worker are missing.
    """
    if missing := missing_shards(checkpoint):
        raise CheckpointError(
            f"{checkpoint} is not whole: {', '.join(missing)} did not arrive; every training worker writes its share "
            "there, so all of them need the run's folder"
        )
    for path in (*checkpoint.rglob("*"), checkpoint):
        sync(path)
    return {
        "train_step": step_of(checkpoint),
        **facts,
        "versions": {name: _version(name) for name in PACKAGES},
        "files": signed_checkpoints.files_in(checkpoint, MANIFEST),
    }


def missing_shards(checkpoint: Path) -> list[str]:
    """What the training workers should have written and is not there, as many workers as the first one names."""
    if not (config := checkpoint / "actor" / "fsdp_config.json").is_file():
        return []
    workers = parse_json(config.read_text())["world_size"]
    names = [f"{kind}_world_size_{workers}_rank_{rank}.pt" for rank in range(workers) for kind in SHARDS]
    return [name for name in names if not (config.parent / name).is_file()]


def write_manifest(checkpoint: Path, manifest: dict[str, Any]) -> None:
    # After that the checkpoint is valid.
    _write(checkpoint / MANIFEST, json.dumps(signed_checkpoints.signed(manifest), indent=1) + "\n")


def newest_verl_checkpoint(folder: Path, say: Say) -> Path | None:
    """The newest whole checkpoint of a run; None if the run never finished one.

    Args:
        say: called for each newer checkpoint that is skipped, with its fault.
    Raises:
        CheckpointError: the run has finished checkpoints, and none is whole.
        NotOursError: another user wrote the checkpoint.
    """
    newest = checkpoints.newest_whole(folder, say, run_dir=folder.parent, remedy=REMEDY)
    if newest is None and checkpoints.checkpoints(folder):
        say("no checkpoint was finished yet: the run starts again")
    return newest


def point_verl_at(checkpoint: Path) -> None:
    # A full disk may have left the file empty.
    _write(checkpoint.parent / TRACKER, str(step_of(checkpoint)))


def name_dtype(model: Path) -> None:
    """Write the real dtype of the tensors into a Hugging Face folder's config.

    verl saves every model through an empty bfloat16 one (utils/checkpoint/fsdp_checkpoint_manager.py,
    `save_checkpoint`), so its config says bfloat16 even for float32 weights.
    """
    from safetensors import safe_open

    kinds: set[str] = set()
    for file in model.glob("*.safetensors"):
        with safe_open(file, framework="numpy") as tensors:
            kinds |= {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118 - no mapping
    config = parse_json((model / "config.json").read_text())
    name = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}.get(*kinds) if len(kinds) == 1 else None
    if name is not None and config.get("dtype") != name:
        _write(model / "config.json", json.dumps(config | {"dtype": name}, indent=2) + "\n")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # vLLM for CPUs is a package with another name
        return None


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    sync(part)
    os.replace(part, path)
    sync(path.parent)
