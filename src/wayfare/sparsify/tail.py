"""Normalisation statistics at the end of a vector: every upload carries all of them or none."""

from __future__ import annotations

import torch
from torch import Tensor

from wayfare.sparsify import gpu
from wayfare.sparsify.topk import Sparse, all_indices


def with_tail(kept: Sparse, vector: Tensor, parameters: int) -> Sparse:
    """Add all statistics to the kept parameters; add nothing if no parameter is kept."""
    if len(kept) == 0 or len(vector) == parameters:
        return kept
    statistics = len(vector) - parameters
    if kept.room >= statistics and gpu.has_kernels(vector):
        from wayfare.sparsify.gpu_kernels import extended

        return Sparse(*extended(kept.indices, kept.values, vector, parameters))
    indices = all_indices(len(vector), vector.device)
    if len(kept) < parameters:
        indices = torch.cat([kept.indices, indices[parameters:]])
    return Sparse(indices, torch.cat([kept.values, vector[parameters:]]))
