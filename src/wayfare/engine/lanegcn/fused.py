"""Whether a GPU can run Wayfare's own kernels."""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import torch


@cache
def fused_kernels(device: torch.device) -> ModuleType | None:
    """`gpu_kernels` if Triton is installed and compiles for the device. PyTorch for CUDA on Linux includes it."""
    try:
        from wayfare.engine.lanegcn import gpu_kernels
    except ImportError:
        return None
    row = torch.ones(1, 1, 16, device=device)
    try:
        gpu_kernels.FusedNorm.apply(row, row[0], row[0], None, True, 1e-5)  # type: ignore[no-untyped-call]
    except Exception as error:  # a missing compiler, driver or cache folder each has its own error
        warnings.warn(f"Triton cannot compile for {device}; results are unchanged, but slower: {error}", stacklevel=2)
        return None
    return gpu_kernels
