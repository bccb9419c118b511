"""The words and sentences of generated tasks: `themes.yaml`, `phrases.yaml` and `phrasebook.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def read_data(name: str) -> dict[str, Any]:
    # It is read once; callers must not change it.
    return yaml.load((Path(__file__).parent / f"{name}.yaml").read_text("utf-8"), yaml.CSafeLoader)
