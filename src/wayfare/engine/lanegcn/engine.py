"""Devices stacked in one batch of scenes: LaneGCN with batched products and sums along precomputed lists.

A step of one device is thousands of calls on graphs of a few hundred nodes, which cannot keep a GPU busy. All devices
take the same step on their own models and scenes: scenes form one batch, layers form one stack.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.engine.base import (
    Burst,
    LocalTraining,
    Stack,
    Steering,
    Step,
    descend,
    moved,
    split,
    stacked_steps,
    steered,
)
from wayfare.engine.lanegcn.forecast import stacked_forecast
from wayfare.engine.lanegcn.products import turned
from wayfare.engine.lanegcn.scenes import Packing, StackedScenes, stacked_scenes
from wayfare.engine.lanegcn.tables import SceneTables, scene_tables
from wayfare.errors import ScenarioError
from wayfare.learning.tasks import Task
from wayfare.learning.tasks.argoverse import Forecasting, forecast_losses

_ALONE_FROM_PARAMETERS = 1_000_000


def best_packing(training: LocalTraining) -> Packing:
    """On a CPU small networks spend their time in calls, large ones in products.

    Measured on a CPU: a third of the plain loop's time at a width of 16, nine tenths at 128.
    """
    if training.compute.device.type == "cuda":
        return Packing(width=32, tile=64, pair_rows=512, steps=8)
    return Packing(width=1 if training.task.model.parameters >= _ALONE_FROM_PARAMETERS else 8, tile=8)


class StackedLaneGcn(Stack):
    """Forward, backward and update of n networks at once."""

    def __init__(self, training: LocalTraining, packing: Packing | None = None) -> None:
        task = training.task.to(training.compute.device)
        if not isinstance(task, Forecasting):
            raise ScenarioError("engine", "stacked", f"needs LaneGCN; {task.name} has another network")
        super().__init__(training)
        self._task = task
        with torch.device("meta"):
            self._shapes = {name: entry.shape for name, entry in task.model.module().named_parameters()}
        self._tables: dict[torch.dtype, SceneTables] = {}
        self._packing = packing or best_packing(training)
        if training.compute.device.type == "cuda":
            # A step costs hundreds of calls for any number of devices. With the contacts of the paper's preset, one
            # step ahead makes a round one step of 19.9 devices; bursts of 12 steps would make it 2.2 of 8.9 devices.
            self.ahead_steps = 1

    @staticmethod
    def fits(task: Task) -> bool:
        return isinstance(task, Forecasting)

    def _width(self, model: Tensor) -> int:
        return self._packing.width

    def _run_group(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        block = torch.stack(list(models))
        stacks = [piece.contiguous() for piece in self._views(block)]
        steps = stacked_steps(self._training, bursts, torch.device("cpu"))
        tables = self._tables_for(block.dtype)
        underway = _first(stacks, len(block))
        looked_up = stacked_scenes(tables, [_scenes(step, tables) for step in steps], self._packing)
        with steered(self._training, bursts, stacks, self._views) as steering:
            for step, scenes in zip(steps, looked_up, strict=True):
                active = len(step.samples)
                if active < len(underway[0]):
                    underway = _first(stacks, active)
                shares = None if step.shares is None else moved(step.shares, block.device)
                self._step(underway, scenes, shares, steering)
        block = torch.cat([turned(stack).flatten(1) for stack in stacks], dim=1)
        torch._foreach_copy_(list(models), list(block.unbind()))

    def _views(self, block: Tensor) -> list[Tensor]:
        """The tensors of flat vectors (n, entries), as transposed views (n, ...)."""
        return [turned(piece) for piece in split(block, self._shapes.values())]

    def _tables_for(self, dtype: torch.dtype) -> SceneTables:
        if dtype not in self._tables:
            mirrored = self._training.batches.augment
            self._tables[dtype] = scene_tables(self._task.train, self._task.model, dtype, mirrored=mirrored)
        return self._tables[dtype]

    def _step(self, weights: list[Tensor], scenes: StackedScenes, shares: Tensor | None, steering: Steering) -> None:
        """One SGD step of every stacked model, on its own minibatch: the sum of losses has all their gradients."""
        forecast = stacked_forecast(dict(zip(self._shapes, weights, strict=True)), self._task.model, scenes)
        losses = forecast_losses(forecast, scenes.future, scenes.future_seen, scenes.weight)
        if shares is not None and self._training.descent.is_plain:
            # Scaling the loss scales all gradients in one product.
            losses, shares = losses * shares.to(losses), None
        gradients = torch.autograd.grad(losses.sum(), weights)
        # Tensors of equal layout are updated in few calls; one of another layout would undo that.
        descend(weights, [gradient.contiguous() for gradient in gradients], steering, self._training, shares)


def _first(stacks: Sequence[Tensor], active: int) -> list[Tensor]:
    """The weights of the first devices, requiring gradients, in the memory of the stacks."""
    return [stack[:active].detach().requires_grad_() for stack in stacks]


def _scenes(step: Step, tables: SceneTables) -> Ints:
    """(active, batch): rows of the tables, whose second half holds mirrored scenes."""
    samples: Ints = step.samples.numpy()
    if step.crops is None:
        return samples
    return np.asarray(samples + tables.scenes * step.crops[..., 2].numpy())
