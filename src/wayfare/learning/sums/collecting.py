"""The statistics of a device's samples."""

from __future__ import annotations

import torch
from torch import Tensor

from wayfare.learning.sums.layout import Found, Sums

# Samples whose deviations are in memory at a time.
_AT_ONCE = 4096


def collect(inputs: Tensor, labels: Tensor, layout: Sums) -> Tensor:
    """The vector of a device's statistics: whole numbers of steps, nothing about classes with too few samples."""
    where, features = inputs.device, layout.features
    if layout.basis is not None:
        inputs = inputs @ layout.basis.to(inputs)
    counts = torch.bincount(labels, minlength=layout.classes)
    counts = torch.where(counts < layout.collection.min_count, 0, counts).double()
    sums = torch.zeros(layout.classes, features, dtype=torch.float64, device=where)
    products = torch.zeros(features, features, dtype=torch.float64, device=where)
    for label in counts.nonzero().view(-1).tolist():
        rows = (labels == label).nonzero().view(-1).split(_AT_ONCE)
        for some in rows:
            sums[label] += inputs.index_select(0, some).double().sum(0)
        if not layout.has_variances:
            continue
        mean = (sums[label] / counts[label]).to(inputs.dtype)
        for some in rows:
            away = inputs.index_select(0, some) - mean
            # The full matrix is costly, and its diagonal alone is not.
            products += away.T @ away if layout.has_products else torch.diag(away.double().square().sum(0))
    some_classes = (counts > 0).sum().double()
    vector = layout.packed(
        Found(
            devices=(some_classes > 0).double(),
            freedom=counts.sum() - some_classes,
            counts=counts,
            sums=sums,
            products=products,
        )
    )
    layout.check_range(vector)
    return vector.float()
