"""Evaluation of a trained part of a backbone by its stacked operations, with one device."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

from wayfare.engine.compute import Compute, Precision
from wayfare.engine.traced.program import StackedNetwork
from wayfare.engine.traced.stepping import StackedStep
from wayfare.learning.models.base import trainable

_log = logging.getLogger("wayfare")
# How far logits may be from those of the network itself, relative to their length.
_TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "tf32": 3e-2, "bf16": 0.15}


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


@torch.no_grad()
def evaluation_module(module: nn.Module, network: StackedNetwork, inputs: Tensor, compute: Compute) -> nn.Module:
    """A module by its stack if that gives the same logits for some inputs, otherwise the module itself."""
    module = module.to(compute.device).eval()
    stacked = StackedForward(module, network).eval()
    with compute.numerics():
        expected, found = module(inputs).double(), stacked(inputs).double()
    off = float((found - expected).norm() / expected.norm())
    # Also if it is not a number.
    if not off <= _TOLERANCES[compute.precision]:
        _log.warning("evaluations do not use the stack, whose logits differ from those of the network by %.0e", off)
        return module
    return stacked
