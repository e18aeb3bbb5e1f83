"""Wayfare's own kernels for LaneGCN, where they can run."""

from __future__ import annotations

from types import ModuleType

import torch

from wayfare.sparsify.gpu import compiles


def fused_kernels(device: torch.device) -> ModuleType | None:
    """`gpu_kernels` if Triton is installed and compiles for the device."""
    if not compiles(device):
        return None
    from wayfare.engine.lanegcn import gpu_kernels

    return gpu_kernels
