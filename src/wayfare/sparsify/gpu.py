"""Whether Triton kernels can run. Imports Triton only for a GPU."""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor

_NOT_INSTALLED = "Triton is not installed"


def pieces(length: int, size: int) -> int:
    """The number of pieces of a size that cover a length. `triton.cdiv` takes 2.4 us, a quarter of a launch."""
    return -(-length // size)


def has_kernels(vector: Tensor) -> bool:
    """Plain operations of PyTorch take several times as long, and norms may differ in their last digits."""
    return vector.is_cuda and vector.dtype == torch.float32 and vector.is_contiguous() and compiles(vector.device)


@cache
def compiles(device: torch.device) -> bool:
    """Whether Triton compiles for a GPU. Warns if it is installed and fails. PyTorch for CUDA on Linux includes it."""
    reason = missing_compiler(device)
    if reason not in (None, _NOT_INSTALLED):
        warnings.warn(f"{reason}. Runs are slower, and norms may differ in their last digits", stacklevel=2)
    return reason is None


@cache
def missing_compiler(device: torch.device) -> str | None:
    """Why Triton cannot compile for a GPU, in one line; None if it can."""
    try:
        from wayfare.sparsify.gpu_largest import largest
    except ImportError:
        return _NOT_INSTALLED
    try:
        largest(torch.zeros(2, device=device), 1)
    except Exception as error:  # a missing compiler, driver or cache folder each has its own error
        return f"Triton cannot compile for {device}: {(str(error) or type(error).__name__).splitlines()[0]}"
    return None
