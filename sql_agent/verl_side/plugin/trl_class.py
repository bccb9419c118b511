"""verl patches a class of TRL, for critics, wherever it finds TRL installed; TRL 1.16 has that class no longer, so no
model would load. Source: verl models/transformers/monkey_patch.py, `apply_monkey_patch`."""

from __future__ import annotations

from types import ModuleType


def _hide_trl(module: ModuleType) -> None:
    module.is_trl_available = lambda: False  # type: ignore[attr-defined]
