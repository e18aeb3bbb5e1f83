"""Indices of set entries of a mask, without waiting for a GPU to count them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

# PyTorch has `nonzero_static` on GPUs since 2.7.
_STATIC_ON_GPU = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 7)


def first_indices(mask: Tensor, size: int) -> Tensor:
    """The indices of the first ``size`` set entries of a flat mask, padded with 0."""
    if _STATIC_ON_GPU or mask.device.type == "cpu":
        return torch.nonzero_static(mask, size=size, fill_value=0).view(-1)
    return counted_indices(mask, size)


def counted_indices(mask: Tensor, size: int) -> Tensor:
    indices = mask.nonzero().view(-1)[:size]
    return pad(indices, (0, size - len(indices)))
