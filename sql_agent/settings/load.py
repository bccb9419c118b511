"""Reads the main job's settings: defaults, then a YAML file, then `--set a.b=c`; later ones have precedence.

Where a small model is trained, `configs/small.yaml` replaces some defaults.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from agentgrpo.machine import LARGE
from agentgrpo.passwords import masked
from agentgrpo.settings import (
    Settings,
    by_present_names,
    earlier_settings,
    merged,
    parse_yaml,
    read_settings,
    set_path,
)
from sql_agent.learning_rates import BILLION
from sql_agent.settings.train import TrainConfig

SMALL, PRETRAINED = (Path(__file__).parents[1] / "configs" / f"{name}.yaml" for name in ("small", "pretrained"))


def load_config(file: Path | None, overrides: list[str] | None = None) -> TrainConfig:
    """Read a YAML file (or the defaults) and apply `a.b=c` overrides, whose values are YAML.

    For a small model the defaults of `configs/small.yaml` apply.

    Raises:
        ValueError: the file is missing or not a mapping, an override has no `=`, or a key or value does not fit.
    """
    tree = by_present_names(read_settings(file), TrainConfig) if file is not None else {}
    for override in overrides or []:
        path, separator, text = override.partition("=")
        if not separator:
            raise ValueError(
                f"--set {masked(override, whole=True)!r} has no `=`; write it as --set rollout.group_size=8"
            )
        setting = earlier_settings(TrainConfig).get(path.strip(), path.strip())
        set_path(tree, setting, parse_yaml(text, f"--set {path}"))
        tree = by_present_names(tree, TrainConfig)
    return TrainConfig.model_validate(merged(read_settings(SMALL), tree) if _is_small(tree.get("model")) else tree)


def settings_file(weights: int | None) -> Path | None:
    """The shipped settings for a model of a size: `SMALL` is read without being asked for, `PRETRAINED` is to be
    given as --config; None: the defaults, or the size is not known."""
    if not weights or weights >= BILLION:
        return None
    return SMALL if weights < LARGE else PRETRAINED


def config_flag(weights: int | None) -> list[str]:
    """The flag that a training command takes for a model of a size, [] for none."""
    return ["--config", str(PRETRAINED)] if settings_file(weights) == PRETRAINED else []


def _is_small(model: Any) -> bool:
    """Whether a model takes `SMALL`; without a model the small policy is made.

    The size of the files decides, as that of float32 weights, so that nothing is imported.
    """
    if model is None:
        return True
    folder = Path(str(model))
    whole = (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file()
    size_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return whole and settings_file(size_bytes // 4) == SMALL


def dump_config(cfg: Settings) -> str:
    """The resolved config as YAML, which `load_config` reads back to an equal object."""
    return yaml.safe_dump(json.loads(cfg.model_dump_json()), sort_keys=False)
