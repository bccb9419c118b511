"""What this CPU is fast at. Read from the kernel; imports no torch."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")


@cache
def cpu_flags() -> frozenset[str]:
    """The instruction sets that CPU and kernel offer, by Linux's names; none where there is no /proc/cpuinfo."""
    file = Path("/proc/cpuinfo")
    return parse_flags(file.read_text()) if file.is_file() else frozenset()


def parse_flags(cpuinfo: str) -> frozenset[str]:
    return frozenset(" ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)).split())


def bfloat16_pays() -> bool:
    """Whether this CPU multiplies matrices in bfloat16 in hardware (AVX-512 BF16 or AMX).

    There autocast trains about twice as fast as float32; elsewhere bfloat16 is emulated and slower.
    """
    return any(flag in cpu_flags() for flag in BFLOAT16_FLAGS)
