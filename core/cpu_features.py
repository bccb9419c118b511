"""Which number formats this CPU is fast at, read from the kernel. Imports no torch."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Literal

BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
LARGE = 20_000_000
"""From this many parameters on bfloat16 is faster; in a smaller model casts cost more than matrix products save."""


@cache
def cpu_flags() -> frozenset[str]:
    """The instruction sets of this CPU by Linux's names; empty if there is no /proc/cpuinfo."""
    file = Path("/proc/cpuinfo")
    return parse_flags(file.read_text()) if file.is_file() else frozenset()


def parse_flags(cpuinfo: str) -> frozenset[str]:
    return frozenset(" ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)).split())


def bfloat16_pays() -> bool:
    """Whether this CPU multiplies matrices in bfloat16 in hardware (AVX-512 BF16 or AMX).

    There autocast trains about twice as fast as float32. Other CPUs emulate bfloat16, which is slower.
    """
    return any(flag in cpu_flags() for flag in BFLOAT16_FLAGS)


def uses_bfloat16(precision: Literal["auto", "float32", "bfloat16"], parameters: int) -> bool:
    """Whether a model is trained under bfloat16 autocast on this CPU; its trained weights are float32 either way.

    Args:
        precision: auto means bfloat16 if it pays and the model has `LARGE` parameters or more.
    """
    return precision == "bfloat16" or (precision == "auto" and parameters >= LARGE and bfloat16_pays())
