"""Normalisation statistics at the end of a vector: they go whole with every upload, or not at all."""

from __future__ import annotations

import torch
from torch import Tensor

from wayfare.sparsify.topk import Sparse


def with_tail(kept: Sparse, vector: Tensor, parameters: int) -> Sparse:
    """Kept parameters, and every entry of the vector behind them; without any parameter nothing is sent."""
    if len(kept) == 0 or len(vector) == parameters:
        return kept
    tail = torch.arange(parameters, len(vector), device=vector.device)
    return Sparse(torch.cat([kept.indices, tail]), torch.cat([kept.values, vector[parameters:]]))
