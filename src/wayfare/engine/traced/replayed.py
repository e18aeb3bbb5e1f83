"""A traced network on a GPU: its stacked step is captured once per number of devices and then replayed.

A stacked step is hundreds of small kernels, 28 times a dozen for a GRU on 28 words. Launching them one by one takes
longer than running them. Steps have a stream of their own, so that those that no contact needs yet run while the host
handles contacts.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wayfare.engine.base import (
    Burst,
    LocalTraining,
    Overlapping,
    Ready,
    Steering,
    Step,
    Tensors,
    split,
    stacked_steps,
    steering_of,
)
from wayfare.engine.captured import without_collection
from wayfare.engine.compute import gpu_lock
from wayfare.engine.traced.engine import StackedTraced
from wayfare.engine.traced.stepping import StackedStep
from wayfare.learning.tasks.tuned import TunedClassification

_log = logging.getLogger("wayfare")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    """What captured steps read and write, for groups of up to so many devices."""

    block: Tensor  # (devices, entries): whole models, on their way to and from the stacks
    stacks: list[Tensor]
    steering: Steering
    samples: Tensor
    shares: Tensor | None
    offsets: Tensor | None
    graphs: dict[int, torch.cuda.CUDAGraph]

    def step(self, count: int) -> Step:
        """The minibatches of the first devices."""
        return Step(
            samples=self.samples[:count],
            crops=None,
            shares=None if self.shares is None else self.shares[:count],
            offsets=None if self.offsets is None else self.offsets[:count],
        )


class Replayed(StackedTraced, Overlapping):
    """`StackedTraced` with captured steps, or as it is if a step cannot be captured, because it waits for the GPU."""

    def __init__(self, training: LocalTraining) -> None:
        super().__init__(training)
        self._memories: dict[torch.dtype, _Memory] = {}
        if isinstance(self._task, TunedClassification):
            # A step of a backbone takes long enough for a copy to pay at once, and the fewer steps ahead, the more
            # devices take part in each.
            self.ahead_steps = 1
        self._stream = torch.cuda.Stream(self._where)
        # Graphs never run at the same time and keep nothing, so that they can share memory.
        self._pool = torch.cuda.graph_pool_handle()
        # Launched bursts, whose vectors must stay until they end.
        self._launched: deque[tuple[torch.cuda.Event, object]] = deque()
        self.captures = True

    def run(self, models: Sequence[Tensor], bursts: Sequence[Burst]) -> None:
        Overlapping.run(self, models, bursts)

    def launch(
        self,
        models: Sequence[Tensor],
        bursts: Sequence[Burst],
        after: Sequence[Ready | None],
        stays: Sequence[bool] = (),
    ) -> Sequence[Ready]:
        """Start bursts, the longest first in groups. Earlier bursts are on the same stream, and no model stays here."""
        while self._launched and self._launched[0][0].query():
            self._launched.popleft()
        ends = [torch.cuda.Event() for _ in bursts]
        self._stream.wait_stream(torch.cuda.current_stream(self._where))
        with torch.cuda.stream(self._stream), self._training.compute.numerics():
            for group in self._groups(models, bursts):
                mine = [models[index] for index in group], [bursts[index] for index in group]
                self._launch_group(*mine, [ends[index] for index in group])
            self._launched.append((torch.cuda.Event(), (models, bursts)))
            self._launched[-1][0].record()
        return ends

    def _launch_group(
        self, models: Sequence[Tensor], bursts: Sequence[Burst], ends: Sequence[torch.cuda.Event]
    ) -> None:
        if not self.captures:
            self._run_group(models, bursts)
            for end in ends:
                end.record()
            return
        memory, active = self._memory(models[0], len(models)), len(models)
        # Through one block: the host has as many copies to launch as there are entries, not times devices.
        block, stacks = memory.block[:active], [stack[:active] for stack in memory.stacks]
        torch._foreach_copy_(list(block.unbind()), list(models))
        torch._foreach_copy_(stacks, split(block, self._shapes))
        vectors = steering_of(self._training, bursts)
        for held, flat in memory.steering.pairs_with(vectors):
            torch._foreach_copy_([stack[:active] for stack in held], self._views(torch.stack(list(flat))))
        steps = stacked_steps(self._training, bursts)
        for step, later in zip(steps, [*steps[1:], None], strict=True):
            here = memory.step(active)
            for mine, given in ((here.samples, step.samples), (here.shares, step.shares), (here.offsets, step.offsets)):
                if mine is not None and given is not None:
                    mine.copy_(given)
            self._advance(memory, active, models[0].dtype)
            left = 0 if later is None else len(later.samples)
            if left < active:
                self._copy_out(memory, slice(left, active), models, vectors)
                for end in ends[left:active]:
                    end.record()
            active = left

    def _copy_out(self, memory: _Memory, ended: slice, models: Sequence[Tensor], vectors: Steering) -> None:
        """Write the models, and velocities if any, of bursts that have ended."""
        block = memory.block[ended]
        torch._foreach_copy_(split(block, self._shapes), [stack[ended] for stack in memory.stacks])
        torch._foreach_copy_(list(models[ended]), list(block.unbind()))
        if vectors.velocity is not None and memory.steering.velocity is not None:
            moved = [stack[ended] for stack in memory.steering.velocity]
            rows = torch.cat([each.reshape(len(each), -1) for each in moved], dim=1)
            torch._foreach_copy_(list(vectors.velocity[ended]), list(rows.unbind()))

    def _memory(self, like: Tensor, count: int) -> _Memory:
        """Memory for a group of this size. Larger memory needs new graphs, which hold its addresses."""
        found = self._memories.get(like.dtype)
        if found is not None and len(found.samples) >= count:
            return found
        training, offsets = self._training, self._training.local_loss.offsets
        width = max(count, min(training.batches.devices, self._width(like)))
        stacks = [like.new_zeros(width, *shape) for shape in self._shapes]

        def used(by_descent: object) -> Tensors | None:
            return [torch.zeros_like(stack) for stack in stacks[: self._weights]] if by_descent else None

        descent = training.descent
        self._memories[like.dtype] = _Memory(
            block=like.new_zeros(width, len(like)),
            stacks=stacks,
            steering=Steering(used(descent.pull), used(descent.corrected), used(descent.momentum)),
            samples=torch.zeros(width, training.batches.batch_size, dtype=torch.int64, device=like.device),
            shares=None
            if training.schedule.is_constant
            else torch.zeros(width, dtype=torch.float64, device=like.device),
            offsets=None if offsets is None else torch.zeros_like(offsets[:1]).repeat(width, 1),
            graphs={},
        )
        return self._memories[like.dtype]

    def _advance(self, memory: _Memory, count: int, real: torch.dtype) -> None:
        """One step of the first devices: replayed, or computed and then captured for the next time."""
        graph = memory.graphs.get(count)
        if graph is not None:
            graph.replay()
            return
        with gpu_lock:
            self._take_step(memory, count, real)
            if self.captures:
                self._capture(memory, count, real)

    def _capture(self, memory: _Memory, count: int, real: torch.dtype) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may allocate memory meanwhile.
            with (
                without_collection(),
                torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                self._take_step(memory, count, real)
        except RuntimeError as error:
            # A capture only records, so the models are as before.
            _log.debug("steps of %s are not captured: %s", self._task.name, str(error).splitlines()[0])
            self.captures = False
        else:
            memory.graphs[count] = graph

    def _take_step(self, memory: _Memory, count: int, real: torch.dtype) -> None:
        step = memory.step(count)
        shared = StackedStep(
            count=count,
            weights=[stack[:count] for stack in memory.stacks[: self._weights]],
            statistics=[stack[:count] for stack in memory.stacks[self._weights :]],
            rate=self._training.learning_rate,
            shares=step.shares,
        )
        self._step(self._network(real), shared, step, memory.steering)
