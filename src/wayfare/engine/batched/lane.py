"""A stream of a GPU on which groups of devices train, one group after another, by replaying captured graphs.

Bursts leave a group when they end, so a step has any number of devices up to the width. The first use of a number runs
kernel by kernel, later ones replay its graph. Both read minibatches from tables on the GPU by a step counter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.engine.base import LocalTraining, Ready, Steering, Tensors, directed, moved
from wayfare.engine.batched.network import Network, Weights, plan_of
from wayfare.engine.batched.sums import norms
from wayfare.engine.batched.tiles import Format
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks.base import Labelled

# The most steps of a burst that are loaded at once.
_STEPS = 256

_Work: TypeAlias = Literal["load", "step", "read", "read one"]


@dataclass(frozen=True, slots=True)
class Rows:
    """What the steps of one burst read."""

    samples: Ints  # (steps, batch)
    crops: Ints | None  # (steps, batch, 3)
    rates: npt.NDArray[np.float32]  # (steps,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Bursts that step together, the longest first."""

    models: Sequence[Tensor]
    rows: Sequence[Rows]
    offsets: Tensor | None  # (devices, classes): added to the logits
    steering: Steering
    after: Sequence[Ready | None]
    ends: Sequence[torch.cuda.Event]


class Lane:
    """Networks of up to ``width`` devices, their buffers and graphs. Several runs may use it in turn."""

    def __init__(self, training: LocalTraining, task: Labelled, width: int, kind: Format, *, fused: bool) -> None:
        where, batch, descent = training.compute.device, training.batches.batch_size, training.descent
        assert isinstance(task.model, Resnet9)
        self._compute, self._task, self._descent, plan = training.compute, task, descent, plan_of(task.model)
        self._augment, self._adjusted = training.batches.augment, training.local_loss.offsets is not None
        self.width = width
        self._network = Network(plan, kind, width, batch, where)
        self._models = torch.zeros(width, task.model.parameters + task.model.statistics, device=where)
        self._samples = torch.zeros(_STEPS, width, batch, dtype=torch.int64, device=where)
        self._crops = torch.zeros(_STEPS, width, batch, 3, dtype=torch.int64, device=where)
        self._rates = torch.zeros(_STEPS, width, device=where)
        self._offsets = torch.zeros(width, plan.classes, device=where)
        self._step = torch.zeros(1, dtype=torch.int64, device=where)
        # Whether the kernels for gradients of weights also take the step.
        self._fused = fused and descent.pulls_at_most and not descent.pull
        self._vectors = [
            Weights(plan, width, where) if used else None
            for used in (descent.pull, descent.corrected, descent.momentum)
        ]
        self.stream = torch.cuda.Stream(where)
        self.stream.wait_stream(torch.cuda.current_stream(where))
        # Graphs of one lane never run at the same time and keep nothing, so that they can share memory.
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[tuple[_Work, int], torch.cuda.CUDAGraph] = {}
        # Launched groups, whose vectors must stay until they end.
        self._launched: deque[Group] = deque()

    def run(self, group: Group) -> None:
        """Launch a group. Each of its ends is recorded as soon as its burst has ended."""
        # The longest burst ends last.
        while self._launched and self._launched[0].ends[0].query():
            self._launched.popleft()
        lengths, active = [len(rows.rates) for rows in group.rows], len(group.rows)
        with torch.cuda.stream(self.stream):
            for before in dict.fromkeys(group.after):
                if before is not None:
                    before.wait()
            self._copy_in(group)
            for first in range(0, lengths[0], _STEPS):
                self._fill(group.rows, first)
                for step in range(first, min(first + _STEPS, lengths[0])):
                    self._do("step", active)
                    longer = sum(length > step + 1 for length in lengths[:active])
                    if longer < active:
                        self._copy_out(group, longer, active)
                        active = longer
        self._launched.append(group)

    def _copy_in(self, group: Group) -> None:
        count = len(group.models)
        torch._foreach_copy_(list(self._models[:count].unbind()), list(group.models))
        self._do("load", count)
        for weights, flat in zip(self._vectors, _lists(group.steering), strict=True):
            if weights is not None and flat is not None:
                weights.load(torch.stack(list(flat)))
        if group.offsets is not None:
            self._offsets[:count].copy_(group.offsets)

    def _copy_out(self, group: Group, first: int, stop: int) -> None:
        """Bursts have ended: write their models, and their velocities if any."""
        # Most bursts of a group end with its last step. One graph for every range would be too many.
        if first == 0:
            self._do("read", stop)
        else:
            for place in range(first, stop):
                self._do("read one", place)
        torch._foreach_copy_(list(group.models[first:stop]), list(self._models[first:stop].unbind()))
        velocity, vectors = self._vectors[2], group.steering.velocity
        if velocity is not None and vectors is not None:
            block = vectors[first].new_empty(stop - first, len(vectors[first]))
            velocity.read(block, first)
            torch._foreach_copy_(list(vectors[first:stop]), list(block.unbind()))
        # Bursts that end together may share their end.
        for end in dict.fromkeys(group.ends[first:stop]):
            end.record()

    def _fill(self, rows: Sequence[Rows], first: int) -> None:
        """Load minibatches and rates of the next steps of every burst."""
        steps, batch = min(_STEPS, len(rows[0].rates) - first), self._samples.shape[2]
        samples: Ints = np.zeros((steps, len(rows), batch), dtype=np.int64)
        crops: Ints = np.zeros((steps, len(rows), batch, 3 if self._augment else 0), dtype=np.int64)
        rates = np.zeros((steps, len(rows)), dtype=np.float32)
        for place, each in enumerate(rows):
            mine = max(min(steps, len(each.rates) - first), 0)
            samples[:mine, place] = each.samples[first : first + mine]
            rates[:mine, place] = each.rates[first : first + mine]
            if each.crops is not None:
                crops[:mine, place] = each.crops[first : first + mine]
        where = self._samples.device
        self._samples[:steps, : len(rows)].copy_(moved(torch.from_numpy(samples), where))
        self._rates[:steps, : len(rows)].copy_(moved(torch.from_numpy(rates), where))
        if self._augment:
            self._crops[:steps, : len(rows)].copy_(moved(torch.from_numpy(crops), where))
        self._step.zero_()

    def _do(self, work: _Work, number: int) -> None:
        """Load, step or read the first ``number`` devices, or read the one with this number."""
        graph = self._graphs.get((work, number))
        if graph is not None:
            graph.replay()
            return
        # Real work, which also makes libraries and Triton ready for the capture.
        with self._compute.numerics():
            self._work(work, number)
            self._graphs[work, number] = graph = torch.cuda.CUDAGraph()
            # Other threads may allocate memory meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            self._work(work, number)
            graph.capture_end()

    def _work(self, work: _Work, number: int) -> None:
        if work == "load":
            self._network.load(self._models[:number])
        elif work == "step":
            self._take_step(number)
        elif work == "read":
            self._network.read(self._models[:number])
        else:
            self._network.read(self._models[number : number + 1], number)

    @torch.no_grad()
    def _take_step(self, count: int) -> None:
        task = self._task
        samples = self._samples.index_select(0, self._step)[0, :count]
        crops = self._crops.index_select(0, self._step)[0, :count] if self._augment else None
        rates = self._rates.index_select(0, self._step)[0, :count].contiguous()
        offsets = self._offsets[:count] if self._adjusted else None
        flat = samples.reshape(-1)
        # The kernels choose their own types.
        with torch.autocast(flat.device.type, enabled=False):
            images = task.inputs(flat, None if crops is None else crops.reshape(-1, 3)).float()
            images = images.view(count, -1, *images.shape[1:])
            labels = task.train_labels.index_select(0, flat).view(count, -1)
            if self._fused:
                self._network.step(images, labels, offsets, rates)
            else:
                gradients = self._network.gradients(images, labels, offsets)
                steering = Steering(*(None if each is None else each.of(count) for each in self._vectors))
                directions = directed(gradients, self._network.weights.of(count), steering, self._descent, norms)
                self._network.update(list(directions), rates)
        self._step.add_(1)


def _lists(vectors: Steering) -> tuple[Tensors | None, ...]:
    return vectors.received, vectors.correction, vectors.velocity
