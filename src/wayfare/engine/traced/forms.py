"""Tables of the operations that have a stacked form."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from wayfare.engine.traced import attention, layers, recurrent

# Operations on samples with weights of a device, at these positions.
WEIGHTED: Mapping[Any, tuple[Callable[..., Tensor], int]] = {
    functional.linear: (layers.linear, 1),
    functional.layer_norm: (layers.layer_norm, 2),
    functional.group_norm: (layers.group_norm, 2),
    functional.embedding: (layers.embedding, 1),
}
POINTWISE: Mapping[Any, Callable[..., Tensor]] = {
    operator.add: torch.add,
    operator.sub: torch.sub,
    operator.mul: torch.mul,
    operator.truediv: torch.div,
    torch.add: torch.add,
    torch.sub: torch.sub,
    torch.mul: torch.mul,
    torch.div: torch.div,
}
CELLS: Mapping[Any, Callable[..., Any]] = {torch.gru_cell: recurrent.gru_cell, torch.lstm_cell: recurrent.lstm_cell}
PRODUCTS = torch.matmul, operator.matmul
# Operations that may draw; they run with the draws of each device.
RANDOM: Mapping[Any, Callable[..., Tensor]] = {
    functional.dropout: layers.dropout,
    functional.scaled_dot_product_attention: attention.scaled_dot_product,
}
# Dropout that has a form on joined channels, with the rank of its inputs if it drops whole channels.
DROPOUTS: Mapping[Any, int | None] = {
    functional.dropout: None,
    functional.dropout1d: 3,
    functional.dropout2d: 4,
    functional.dropout3d: 5,
}
# Operations on joined channels, (B, n C, ...).
CONVOLUTIONS: Mapping[Any, Callable[..., Tensor]] = {
    each: layers.convolution(each) for each in (functional.conv1d, functional.conv2d, functional.conv3d)
}
