"""Whether a GPU can run kernels of our own."""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import torch


@cache
def fused_kernels(device: torch.device) -> ModuleType | None:
    """`gpu_kernels`, where Triton is there and compiles for a device; it comes with PyTorch for CUDA on Linux."""
    try:
        from wayfare.engine.lanegcn import gpu_kernels
    except ImportError:
        return None
    row = torch.ones(1, 1, 16, device=device)
    try:
        gpu_kernels.FusedNorm.apply(row, row[0], row[0], None, True, 1e-5)  # type: ignore[no-untyped-call]
    except Exception as error:  # a compiler, a driver or a place for the cache may be missing: each has its own error
        warnings.warn(f"Triton cannot compile for {device}, which costs speed alone: {error}", stacklevel=2)
        return None
    return gpu_kernels
