"""Whether Triton kernels can handle a vector. Imports Triton only for vectors on a GPU."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor


def has_kernels(vector: Tensor) -> bool:
    """Plain operations of PyTorch take several times as long, and norms may differ in their last digits."""
    return vector.is_cuda and vector.dtype == torch.float32 and vector.is_contiguous() and _compiles(vector.device)


@cache
def _compiles(device: torch.device) -> bool:
    try:
        from wayfare.sparsify.gpu_largest import largest
    except ImportError:
        return False
    try:
        largest(torch.zeros(2, device=device), 1)
    except Exception as error:  # a missing compiler, driver or cache folder each has its own error
        loss = "contacts are slower, and norms may differ in their last digits"
        warnings.warn(f"Triton cannot compile for {device}; {loss}: {error}", stacklevel=2)
        return False
    return True
