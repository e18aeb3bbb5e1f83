"""A stream of a GPU on which groups of devices train, one group after another, by replaying captured graphs.

Bursts leave a group when they end, so a step has any number of devices up to the width. The first use of a number runs
kernel by kernel, later ones replay its graph. Both read minibatches from tables on the GPU by a step counter.

Models that nothing reads between two bursts stay in their rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from wayfare.engine.base import LocalTraining, Ready, Steering, Tensors, directed
from wayfare.engine.batched.network import Network, Weights, plan_of
from wayfare.engine.batched.progress import Progress, StepTimes
from wayfare.engine.batched.sums import norms
from wayfare.engine.batched.table import STEPS, Rows, StepTable
from wayfare.engine.batched.tiles import Format
from wayfare.engine.captured import without_collection
from wayfare.engine.compute import gpu_lock
from wayfare.learning.models.resnet9 import Resnet9
from wayfare.learning.tasks.base import Labelled

# Rows per device of a step. A row takes 50 MB in TF32; copying a model in and out takes a quarter of a device's step.
_ROWS = 2

_Work: TypeAlias = Literal["load", "step", "read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Bursts that step together, the longest first."""

    models: Sequence[Tensor]
    starts: Sequence[Tensor]  # the models before the first step
    rows: Sequence[Rows]
    offsets: Tensor | None  # (devices, classes): added to the logits
    steering: Steering
    after: Sequence[Ready | None]
    stays: Sequence[bool]  # whether nothing reads the model before the next burst of its device


class Resident:
    """The end of a burst whose model stays in a lane. It is written only for someone who waits for it."""

    def __init__(self, lane: Lane, row: int, model: Tensor) -> None:
        self.row, self.model, self._lane = row, model, lane
        self.written: torch.cuda.Event | None = None

    def wait(self) -> None:
        self._leaving().wait()

    def query(self) -> bool:
        return bool(self._leaving().query())

    def _leaving(self) -> torch.cuda.Event:
        with gpu_lock:
            return self.written or self._lane.release(self)


class Lane:
    """Networks of up to ``width`` devices per step, their buffers and graphs. Several runs may use it in turn."""

    def __init__(self, training: LocalTraining, task: Labelled, width: int, kind: Format, *, fused: bool) -> None:
        where, batch, descent = training.compute.device, training.batches.batch_size, training.descent
        assert isinstance(task.model, Resnet9)
        self._compute, self._task, self._descent, plan = training.compute, task, descent, plan_of(task.model)
        self._adjusted = training.local_loss.offsets is not None
        self.width = width
        # Whether the kernels for gradients of weights also take the step.
        self._fused = fused and descent.pulls_at_most and not descent.pull
        self._network = Network(plan, kind, width, batch, where, _ROWS * width)
        self._model = torch.zeros(1, task.model.parameters + task.model.statistics, device=where)
        self._table = StepTable(width, batch, where, augment=training.batches.augment)
        self._offsets = torch.zeros(width, plan.classes, device=where)
        self._residents: dict[int, Resident] = {}
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
        self._launched: deque[tuple[Group, Progress]] = deque()
        self._times = StepTimes()

    def run(self, group: Group) -> list[Ready]:
        """Launch a group. Return the ends of its bursts."""
        while self._launched and self._launched[0][1].end.query():
            self._times.note(self._launched.popleft()[1])
        lengths, active = [len(rows.rates) for rows in group.rows], len(group.rows)
        ends: list[Ready] = []
        with torch.cuda.stream(self.stream):
            rows = self._copy_in(group)
            steps = [sum(length > step for length in lengths) for step in range(lengths[0])]
            progress = Progress(steps, is_first=any(("step", devices) not in self._graphs for devices in steps))
            progress.begin.record(self.stream)
            for first in range(0, lengths[0], STEPS):
                self._table.fill(rows, group.rows, first)
                for step in range(first, min(first + STEPS, lengths[0])):
                    self._do("step", active)
                    while active and lengths[active - 1] == step + 1:
                        active -= 1
                        ends.append(self._end(group, active, rows[active]))
            progress.end.record(self.stream)
            self._launched.append((group, progress))
        # The longest burst ended last.
        return ends[::-1]

    def has_little_left(self) -> bool:
        """Whether all groups have ended, or the last one is about to."""
        return not self._launched or self._times.is_ending(self._launched[-1][1])

    def release(self, resident: Resident) -> torch.cuda.Event:
        """Write the model of a resident, whose row is free afterwards."""
        del self._residents[resident.row]
        with torch.cuda.stream(self.stream):
            resident.written = end = self._written(resident.row, resident.model)
        return end

    def _copy_in(self, group: Group) -> list[int]:
        """Make every model a row, unless it has one."""
        rows = [
            before.row if isinstance(before, Resident) and self._residents.get(before.row) is before else -1
            for before in group.after
        ]
        taken = set(rows)
        for place, (start, before) in enumerate(zip(group.starts, group.after, strict=True)):
            if rows[place] >= 0:
                del self._residents[rows[place]]
                continue
            if before is not None:
                before.wait()
            # Without fused kernels, devices have the first rows in order.
            rows[place] = self._free_row(taken) if self._fused else place
            taken.add(rows[place])
            self._model[0].copy_(start)
            self._do("load", rows[place])
        for weights, flat in zip(self._vectors, _lists(group.steering), strict=True):
            if weights is not None and flat is not None:
                weights.load(torch.stack(list(flat)))
        if group.offsets is not None:
            self._offsets[: len(rows)].copy_(group.offsets)
        return rows

    def _free_row(self, taken: set[int]) -> int:
        """A row that neither this group nor a resident has; the resident that trained longest ago leaves if need be."""
        for row in range(_ROWS * self.width):
            if row not in taken and row not in self._residents:
                return row
        oldest = next(resident for row, resident in self._residents.items() if row not in taken)
        self.release(oldest)
        return oldest.row

    def _end(self, group: Group, place: int, row: int) -> Ready:
        """A burst has ended: write its model, and its velocity if any, unless it stays here."""
        if self._fused and group.stays[place]:
            resident = Resident(self, row, group.models[place])
            self._residents[row] = resident
            return resident
        velocity, vectors = self._vectors[2], group.steering.velocity
        if velocity is not None and vectors is not None:
            block = torch.empty_like(vectors[place]).unsqueeze(0)
            velocity.read(block, place)
            vectors[place].copy_(block[0])
        return self._written(row, group.models[place])

    def _written(self, row: int, model: Tensor) -> torch.cuda.Event:
        self._do("read", row)
        model.copy_(self._model[0])
        end = torch.cuda.Event()
        end.record(self.stream)
        return end

    def _do(self, work: _Work, number: int) -> None:
        """Step the first ``number`` devices of the group, or load or read the row with this number."""
        graph = self._graphs.get((work, number))
        if graph is not None:
            graph.replay()
            return
        # Real work, which also makes libraries and Triton ready for the capture.
        with self._compute.numerics():
            self._work(work, number)
            self._graphs[work, number] = graph = torch.cuda.CUDAGraph()
            with without_collection():
                # Other threads may allocate memory meanwhile.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    self._work(work, number)
                finally:
                    # Otherwise everything later in this process would fail too.
                    graph.capture_end()

    def _work(self, work: _Work, number: int) -> None:
        if work == "load":
            self._network.load(self._model, number)
        elif work == "step":
            self._take_step(number)
        else:
            self._network.read(self._model, number)

    @torch.no_grad()
    def _take_step(self, count: int) -> None:
        task, table = self._task, self._table
        samples = table.samples.index_select(0, table.step)[0, :count]
        crops = None if table.crops is None else table.crops.index_select(0, table.step)[0, :count]
        rates = table.rates.index_select(0, table.step)[0, :count].contiguous()
        offsets = self._offsets[:count] if self._adjusted else None
        flat = samples.reshape(-1)
        # The kernels choose their own types.
        with torch.autocast(flat.device.type, enabled=False):
            images = task.inputs(flat, None if crops is None else crops.reshape(-1, 3)).float()
            images = images.view(count, -1, *images.shape[1:])
            labels = task.train_labels.index_select(0, flat).view(count, -1)
            if self._fused:
                self._network.step(images, labels, offsets, rates, table.row_of[:count])
            else:
                gradients = self._network.gradients(images, labels, offsets)
                steering = Steering(*(None if each is None else each.of(count) for each in self._vectors))
                directions = directed(gradients, self._network.weights.of(count), steering, self._descent, norms)
                self._network.update(list(directions), rates)
        table.step.add_(1)


def _lists(vectors: Steering) -> tuple[Tensors | None, ...]:
    return vectors.received, vectors.correction, vectors.velocity
