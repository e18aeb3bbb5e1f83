"""Subtract kept entries from a vector, as error feedback does (e in Algorithm 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from wayfare.sparsify import gpu
from wayfare.sparsify.topk import Sparse


def remainder(vector: Tensor, sent: Sparse) -> Tensor:
    """e = x - S(x). Exact: sent entries become 0 and the others do not change."""
    if len(sent) == len(vector):
        # All entries in order: a plain difference is much faster.
        return vector - sent.values
    if vector.device.type == "cpu":
        return vector.index_add(0, sent.indices, sent.values, alpha=-1)
    left = vector.clone()
    _subtract_at(left, sent, 1.0)
    return left


def subtract(vector: Tensor, sent: Sparse, share: float) -> None:
    """vector <- vector - share S(x), in place."""
    if len(sent) == len(vector):
        vector.sub_(sent.values, alpha=share)
    elif vector.device.type == "cpu":
        vector.index_add_(0, sent.indices, sent.values, alpha=-share)
    else:
        _subtract_at(vector, sent, share)


def _subtract_at(vector: Tensor, sent: Sparse, share: float) -> None:
    """Subtract a share of what was sent on a GPU, in place; indices are distinct and sorted."""
    if gpu.has_kernels(vector) and sent.values.dtype == vector.dtype and len(sent):
        from wayfare.sparsify.gpu_kernels import subtract_at

        subtract_at(vector, sent.indices.contiguous(), sent.values.contiguous(), share)
    else:
        vector.sub_(spread(Sparse(sent.indices, share * sent.values), len(vector)))


def spread(kept: Sparse, entries: int) -> Tensor:
    """A dense vector of the kept entries and zeros.

    For reproducible results a GPU sorts all indices when it writes by index (`index_add`, `index_put`, `index_copy`,
    `scatter`), in case some are equal. Kept indices are distinct and sorted, so a mask takes their values in order,
    which is reproducible without a sort.
    """
    zeros = kept.values.new_zeros(entries)
    if len(kept) == 0:
        return zeros
    mask = torch.zeros(entries, dtype=torch.bool, device=zeros.device).index_fill_(0, kept.indices, True)
    return zeros.masked_scatter_(mask, kept.values)
