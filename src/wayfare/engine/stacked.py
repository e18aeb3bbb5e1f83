"""Devices stacked in one batch of models, by hand where the network is known and by `vmap` elsewhere."""

from __future__ import annotations

from wayfare.engine.base import Engine, LocalTraining
from wayfare.engine.lanegcn.engine import StackedLaneGcn
from wayfare.engine.stacked_cnn import StackedCnn
from wayfare.engine.stacked_mlp import StackedMlp
from wayfare.engine.vmapped import Vmapped


def stacked(training: LocalTraining) -> Engine:
    """The stack that suits a task: products, grouped convolutions, graphs in one batch, or what `vmap` makes of it."""
    if StackedMlp.fits(training.task):
        return StackedMlp(training)
    if StackedCnn.fits(training.task):
        return StackedCnn(training)
    if StackedLaneGcn.fits(training.task):
        return StackedLaneGcn(training)
    return Vmapped(training)
