"""Where a mask is set, found without asking a GPU how often it is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

# Before PyTorch 2.7 a GPU did not have it.
_STATIC_ON_GPU = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 7)


def first_places(mask: Tensor, size: int) -> Tensor:
    """The first ``size`` places of a flat mask that are set, and 0 behind the last of them if there are fewer."""
    if _STATIC_ON_GPU or mask.device.type == "cpu":
        return torch.nonzero_static(mask, size=size, fill_value=0).view(-1)
    return counted_places(mask, size)


def counted_places(mask: Tensor, size: int) -> Tensor:
    places = mask.nonzero().view(-1)[:size]
    return pad(places, (0, size - len(places)))
