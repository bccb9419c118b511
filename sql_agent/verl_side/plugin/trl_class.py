"""Hides TRL from verl, which patches a class of TRL for critics if TRL is installed.

TRL 1.16 no longer has that class, so no model would load. Source: verl models/transformers/monkey_patch.py,
`apply_monkey_patch`.
"""

from __future__ import annotations

from types import ModuleType


def _hide_trl(module: ModuleType) -> None:
    module.is_trl_available = lambda: False  # type: ignore[attr-defined]
