"""Reads from the kernel how many cores this CPU has and which number formats it computes fast. Imports no torch."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Literal

BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
# bfloat16 is faster from this many parameters on; in a smaller model casts cost more than matrix products save.
LARGE = 20_000_000


@cache
def cpu_flags() -> frozenset[str]:
    file = Path("/proc/cpuinfo")
    return parse_flags(file.read_text()) if file.is_file() else frozenset()


def parse_flags(cpuinfo: str) -> frozenset[str]:
    return frozenset(" ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)).split())


def bfloat16_pays() -> bool:
    # With AVX-512 BF16 or AMX autocast trains about twice as fast as float32; other CPUs emulate bfloat16, which is
    # slower.
    return any(flag in cpu_flags() for flag in BFLOAT16_FLAGS)


def share_of_cores(workers: int) -> int:
    """The cores of this machine for each of its training workers."""
    return max(1, (os.cpu_count() or 1) // workers)


def uses_bfloat16(precision: Literal["auto", "float32", "bfloat16"], parameters: int) -> bool:
    """Weights stay float32; only autocast uses bfloat16.

    Args:
        precision: auto means bfloat16 if it pays and the model has `LARGE` parameters or more.
    """
    return precision == "bfloat16" or (precision == "auto" and parameters >= LARGE and bfloat16_pays())
