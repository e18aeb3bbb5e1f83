"""Evaluation of a trained part of a backbone by its stacked operations, with one device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wayfare.engine.traced.program import StackedNetwork
from wayfare.engine.traced.stepping import StackedStep
from wayfare.learning.models.base import trainable


class StackedForward(nn.Module):
    """A module with the parameters of another one, whose outputs a stacked network computes.

    Adapters and normalisations are folded, signals have channels last, and the kernels of the stack compute depthwise
    convolutions.
    """

    def __init__(self, module: nn.Module, network: StackedNetwork) -> None:
        super().__init__()
        self.module, self._network = module, network

    def forward(self, inputs: Tensor) -> Tensor:
        weights = [parameter.unsqueeze(0) for parameter in trainable(self.module).values()]
        # Layers of the stack choose their own types.
        with torch.autocast(inputs.device.type, enabled=False):
            logits: Tensor = self._network(inputs, StackedStep(count=1, weights=weights, statistics=()))
        return logits
