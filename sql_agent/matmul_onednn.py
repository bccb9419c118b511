"""Multiplies float32 matrices by oneDNN on a CPU.

torch gives them to MKL, which has no AVX-512 for other makers' CPUs: on an AMD EPYC it computes 80 to 100 GFLOP a
core-second, where oneDNN, which torch has for bfloat16, computes 180 to 240. Leaves out gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


def matmul_onednn(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` of two matrices, without a gradient."""
    if _LINEAR is None or a.dtype != torch.float32 or a.device.type != "cpu" or not (a.numel() and b.numel()):
        return a @ b
    if not (b.is_contiguous() or b.t().is_contiguous()):
        b = b.contiguous()  # oneDNN has no fast code for other strides: 900 ms instead of 1
    return _LINEAR(a, b.t(), None, "none", [], "")


@contextmanager
def rounded_factors() -> Iterator[None]:
    """Have oneDNN round the factors of float32 products to bfloat16, where the CPU has it, and add them up in float32.

    It holds in the whole process: no other thread may multiply meanwhile.
    """
    products: Any = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]
    before, products.fp32_precision = products.fp32_precision, "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before
