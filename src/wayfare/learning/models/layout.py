"""The order of axes in memory that is fastest for convolutions without gradients."""

from __future__ import annotations

import torch

from wayfare.learning.models.base import Model
from wayfare.learning.models.wrapped import Wrapped


def fastest_layout(model: Model, device: torch.device) -> torch.memory_format:
    """Channels last, except in single precision on a GPU (benchmarks/NOTES.md).

    A user's own network keeps PyTorch's order: it may look at a signal as rows (`x.view(x.size(0), -1)`), which another
    order does not allow.
    """
    single = device.type == "cuda" and not torch.backends.cudnn.allow_tf32
    return torch.contiguous_format if single or isinstance(model, Wrapped) else torch.channels_last
