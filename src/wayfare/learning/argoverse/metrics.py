"""Errors of forecasts: ADE, FDE and miss rate, for the best of K guesses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MISS_M = 2.0
"""A forecast whose final error exceeds this is a miss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Displacement:
    """Mean average error (ADE), mean final error (FDE) and share of misses over tracks."""

    ade_m: float
    fde_m: float
    miss_rate: float


def displacement(places: Tensor, scores: Tensor, truth: Tensor, guesses: int) -> Displacement:
    """Errors of futures (n, K, 30, 2) against the truth (n, 30, 2) with the ``guesses`` futures of the highest scores.

    Of several guesses, the one that ends nearest to the truth counts, for ADE as well. The benchmark of the data set
    defines minADE and minFDE in this way.
    """
    errors = torch.linalg.vector_norm(places - truth[:, None], dim=3)
    chosen = scores.topk(min(guesses, scores.shape[1]), dim=1).indices
    errors = errors.gather(1, chosen[:, :, None].expand(-1, -1, errors.shape[2]))
    best = errors[:, :, -1].argmin(dim=1)
    errors = errors[torch.arange(len(errors), device=errors.device), best]
    return Displacement(
        ade_m=float(errors.mean()),
        fde_m=float(errors[:, -1].mean()),
        miss_rate=float((errors[:, -1] > MISS_M).to(errors.dtype).mean()),
    )


def one_guess(places: Tensor, truth: Tensor) -> Displacement:
    """Errors of a single future (n, 30, 2), such as constant velocity."""
    return displacement(places[:, None], places.new_zeros(len(places), 1), truth, 1)
