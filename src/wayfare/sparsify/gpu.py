"""Whether Triton kernels can handle a vector. Imports Triton only for vectors on a GPU."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor


def has_kernels(vector: Tensor) -> bool:
    """Without kernels, plain operations of PyTorch give the same results in several times as long."""
    return vector.is_cuda and vector.dtype == torch.float32 and vector.is_contiguous() and _compiles(vector.device)


@cache
def _compiles(device: torch.device) -> bool:
    try:
        from wayfare.sparsify.gpu_kernels import largest
    except ImportError:
        return False
    try:
        largest(torch.zeros(2, device=device), 1)
    except Exception as error:  # a missing compiler, driver or cache folder each has its own error
        warnings.warn(f"Triton cannot compile for {device}; results are unchanged, but slower: {error}", stacklevel=2)
        return False
    return True
