"""ResNet-9 on a GPU in few bits: all devices of a group in each kernel, and a captured graph per number of devices.

Bursts leave a group when they end, so a step has any number of devices up to the width. The first step of a number runs
kernel by kernel, later ones replay its graph. Both read minibatches from tables on the GPU by a step counter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.engine.base import Burst, LocalTraining, Stack, Steering, directed, moved, steering_of, step_range
from wayfare.engine.batched.network import Network, Weights, plan_of
from wayfare.engine.batched.sums import norms
from wayfare.engine.batched.tiles import FORMATS, Format
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks.base import Labelled

# Devices per group, limited for the sake of memory: signals take 0.3 GB per device in TF32 with minibatches of 32.
_WIDTH = 32
# The most steps of a burst that are loaded at once.
_STEPS = 256


class Batched(Stack):
    """Forward, backward and update of n networks at once. `obstacle` says what it cannot do."""

    def __init__(self, training: LocalTraining, kind: Format | None = None, *, fused: bool = True) -> None:
        super().__init__(training)
        where, batch = training.compute.device, training.batches.batch_size
        task = training.task.to(where)
        assert isinstance(task, Labelled)
        assert isinstance(task.model, Resnet9)
        self._task, plan = task, plan_of(task.model)
        width = min(_WIDTH, training.batches.devices)
        self._network = Network(plan, kind or FORMATS[training.compute.precision], width, batch, where)
        self._samples = torch.zeros(_STEPS, width, batch, dtype=torch.int64, device=where)
        self._crops = torch.zeros(_STEPS, width, batch, 3, dtype=torch.int64, device=where)
        self._rates = torch.zeros(_STEPS, width, device=where)
        self._offsets = torch.zeros(width, plan.classes, device=where)
        self._step = torch.zeros(1, dtype=torch.int64, device=where)
        descent = training.descent
        # Whether the kernels for gradients of weights also take the step.
        self._fused = fused and descent.pulls_at_most and not descent.pull
        self._vectors = [
            Weights(plan, width, where) if used else None
            for used in (descent.pull, descent.corrected, descent.momentum)
        ]
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._stream = torch.cuda.Stream(where) if where.type == "cuda" else None
        self._pool = torch.cuda.graph_pool_handle() if where.type == "cuda" else None

    def _width(self, model: Tensor) -> int:
        del model
        return self._samples.shape[1]

    def _run_group(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        block = torch.stack(list(models))
        self._network.load(block)
        vectors = steering_of(self._training, bursts)
        for weights, flat in zip(self._vectors, _lists(vectors), strict=True):
            if weights is not None and flat is not None:
                weights.load(torch.stack(list(flat)))
        if self._training.local_loss.offsets is not None:
            devices = torch.tensor([burst.device for burst in bursts])
            chosen = moved(devices, self._offsets.device)
            self._offsets[: len(bursts)].copy_(self._training.local_loss.offsets.index_select(0, chosen))
        lengths = [step_range(self._training, burst)[1] for burst in bursts]
        for first in range(0, lengths[0], _STEPS):
            steps = min(_STEPS, lengths[0] - first)
            self._fill(bursts, first, steps)
            for step in range(first, first + steps):
                self._advance(sum(length > step for length in lengths))
        self._network.read(block)
        torch._foreach_copy_(list(models), list(block.unbind()))
        velocity = self._vectors[2]
        if velocity is not None and vectors.velocity is not None:
            block = torch.empty_like(torch.stack(list(vectors.velocity)))
            velocity.read(block)
            torch._foreach_copy_(list(vectors.velocity), list(block.unbind()))

    def _fill(self, bursts: Sequence[Burst], first: int, steps: int) -> None:
        """Load minibatches and rates of up to ``steps`` steps of every burst."""
        training, batch = self._training, self._samples.shape[2]
        samples: Ints = np.zeros((steps, len(bursts), batch), dtype=np.int64)
        crops: Ints = np.zeros((steps, len(bursts), batch, 3), dtype=np.int64)
        rates = np.zeros((steps, len(bursts)), dtype=np.float32)
        in_round = training.descent.steps_per_round
        for place, burst in enumerate(bursts):
            start, length = step_range(training, burst)
            mine = min(steps, length - first)
            if mine <= 0:
                break
            samples[:mine, place] = training.batches.of(burst.device, start + first, mine)
            moves = training.batches.crops_of(burst.device, start + first, mine)
            if moves is not None:
                crops[:mine, place] = moves
            shares = np.repeat(training.schedule.shares(burst.first_round, burst.rounds), in_round)
            rates[:mine, place] = training.learning_rate * shares[first : first + mine]
        where = self._samples.device
        self._samples[:steps, : len(bursts)].copy_(moved(torch.from_numpy(samples), where))
        self._rates[:steps, : len(bursts)].copy_(moved(torch.from_numpy(rates), where))
        if training.batches.augment:
            self._crops[:steps, : len(bursts)].copy_(moved(torch.from_numpy(crops), where))
        self._step.zero_()

    def _advance(self, count: int) -> None:
        graph = self._graphs.get(count)
        if graph is not None:
            graph.replay()
            return
        # A real step, which also makes libraries and Triton ready for the capture.
        self._take_step(count)
        if self._stream is not None:
            self._graphs[count] = self._captured(count, self._stream)

    def _captured(self, count: int, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(stream.device)
        with torch.cuda.stream(stream):
            # Graphs never run at the same time and keep nothing, so that they can share memory.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            self._take_step(count)
            graph.capture_end()
        return graph

    @torch.no_grad()
    def _take_step(self, count: int) -> None:
        training, task = self._training, self._task
        samples = self._samples.index_select(0, self._step)[0, :count]
        crops = self._crops.index_select(0, self._step)[0, :count] if training.batches.augment else None
        rates = self._rates.index_select(0, self._step)[0, :count].contiguous()
        offsets = None if training.local_loss.offsets is None else self._offsets[:count]
        flat = samples.reshape(-1)
        # The kernels choose their own types.
        with torch.autocast(flat.device.type, enabled=False):
            images = task.inputs(flat, None if crops is None else crops.reshape(-1, 3)).float()
            images = images.view(count, -1, *images.shape[1:])
            labels = task.train_labels.index_select(0, flat).view(count, -1)
            if self._fused:
                self._network.step(images, labels, offsets, rates)
                self._step.add_(1)
                return
            gradients = self._network.gradients(images, labels, offsets)
            steering = Steering(*(None if each is None else each.of(count) for each in self._vectors))
            directions = directed(gradients, self._network.weights.of(count), steering, training.descent, norms)
            self._network.update(list(directions), rates)
        self._step.add_(1)


def _lists(vectors: Steering) -> tuple[Sequence[Tensor] | None, ...]:
    return vectors.received, vectors.correction, vectors.velocity
