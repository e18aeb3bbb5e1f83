"""Kept entries taken off a vector; error feedback: what was not sent is remembered (e in Algorithm 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from wayfare.sparsify.topk import Sparse


def remainder(vector: Tensor, sent: Sparse) -> Tensor:
    """e = x - S(x): exact, because sent entries become 0 and the others stay as they are."""
    if len(sent) == len(vector):
        # Everything, in order: a plain difference takes a fraction of the time.
        return vector - sent.values
    if vector.device.type == "cpu":
        return vector.index_add(0, sent.indices, sent.values, alpha=-1)
    return vector - spread(sent, len(vector))


def subtract(vector: Tensor, sent: Sparse, share: float) -> None:
    """vector <- vector - share S(x), in place; entries that were not sent stay as they are."""
    if len(sent) == len(vector):
        vector.sub_(sent.values, alpha=share)
    elif vector.device.type == "cpu":
        vector.index_add_(0, sent.indices, sent.values, alpha=-share)
    else:
        vector.sub_(spread(Sparse(sent.indices, share * sent.values), len(vector)))


def spread(kept: Sparse, entries: int) -> Tensor:
    """Kept entries among zeros.

    A GPU whose results are to repeat sorts all indices when it adds or puts values by index (`index_add`, `index_put`,
    `index_copy`, `scatter`), in case some are equal. Kept ones differ and rise, so the places that they mark take one
    value after the other; that repeats without a sort.
    """
    zeros = kept.values.new_zeros(entries)
    if len(kept) == 0:
        return zeros
    places = torch.zeros(entries, dtype=torch.bool, device=zeros.device).index_fill_(0, kept.indices, True)
    return zeros.masked_scatter_(places, kept.values)
