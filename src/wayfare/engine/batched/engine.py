"""ResNet-9 on a GPU in few bits: all devices of a group in each kernel.

Bursts that no contact needs yet keep the GPU busy while the host handles a contact. Runs in threads of one process
share two lanes, so that one run fills the units that the last blocks of a kernel of another leave idle.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from wayfare.engine.base import Burst, Idling, LocalTraining, Ready, longest_first, moved, steering_of, step_range
from wayfare.engine.batched.lane import Group, Lane
from wayfare.engine.batched.table import Rows
from wayfare.engine.batched.tiles import FORMATS, Format
from wayfare.engine.captured import captured
from wayfare.engine.compute import gpu_lock
from wayfare.learning.tasks.base import Labelled
from wayfare.sharing import shared
from wayfare.waiting import current_stream

# Devices per group, limited for the sake of memory: signals take 0.3 GB per device in TF32 with minibatches of 32.
_WIDTH = 32
# Two take 0.93 of the time of one after the other (benchmarks/NOTES.md); more were not tried.
_LANES = 2


class _Lanes:
    """Lanes that runs of one process share, each made when it is first needed."""

    def __init__(self, make: Callable[[], Lane]) -> None:
        self._make, self._lanes, self._users = make, list[Lane](), Counter[int]()

    def take(self, user: object) -> Lane:
        """The lane with the fewest users, for as long as the user lives."""
        number = min(range(_LANES), key=lambda each: self._users[each])
        self._users[number] += 1
        weakref.finalize(user, self._users.subtract, [number])
        if number == len(self._lanes):
            self._lanes.append(self._make())
        return self._lanes[number]

    def have_little_left(self) -> bool:
        """Whether no run has many steps left: narrow steps of one would take time from those of the others."""
        return all(lane.has_little_left() for lane in self._lanes)


class Batched(Idling):
    """Forward, backward and update of n networks at once. `obstacle` says what it cannot do."""

    # Few, so that most devices take part in most steps; but enough to keep the GPU busy during contacts.
    ahead_steps = 1

    def __init__(self, training: LocalTraining, kind: Format | None = None, *, fused: bool = True) -> None:
        task = training.task.to(training.compute.device)
        assert isinstance(task, Labelled)
        width, form = min(_WIDTH, training.batches.devices), kind or FORMATS[training.compute.precision]
        self._training = training
        self._lanes = shared(
            "lanes",
            captured(training, task, form, fused, width),
            lambda: _Lanes(lambda: Lane(training, task, width, form, fused=fused)),
        )
        with gpu_lock:
            self._lane = self._lanes.take(self)

    def launch(
        self,
        models: Sequence[Tensor],
        bursts: Sequence[Burst],
        after: Sequence[Ready | None],
        stays: Sequence[bool] = (),
    ) -> Sequence[Ready]:
        """Start bursts, the longest first in groups of similar length."""
        ends: dict[int, Ready] = {}
        rows = [self._rows(burst) for burst in bursts]
        indices, lane = longest_first(bursts), self._lane
        with gpu_lock:
            for first in range(0, len(indices), lane.width):
                chosen = indices[first : first + lane.width]
                group = self._group(chosen, models, bursts, rows, after, stays)
                lane.stream.wait_stream(current_stream(self._training.compute.device))
                ends.update(zip(chosen, lane.run(group), strict=True))
        # Nothing runs for an empty burst.
        return [ends.get(index) or torch.cuda.Event() for index in range(len(bursts))]

    def has_little_left(self) -> bool:
        # Whoever holds the lock is about to launch something.
        if not gpu_lock.acquire(blocking=False):
            return False
        try:
            return self._lanes.have_little_left()
        finally:
            gpu_lock.release()

    def _rows(self, burst: Burst) -> Rows:
        training, (start, length) = self._training, step_range(self._training, burst)
        if training.schedule.is_constant:
            rates = np.full(length, training.learning_rate, np.float32)
        else:
            shares = training.schedule.shares(burst.first_round, burst.rounds)
            rates = (training.learning_rate * np.repeat(shares, training.descent.steps_per_round)).astype(np.float32)
        return Rows(
            training.batches.of(burst.device, start, length),
            training.batches.crops_of(burst.device, start, length),
            rates,
        )

    def _group(
        self,
        chosen: Sequence[int],
        models: Sequence[Tensor],
        bursts: Sequence[Burst],
        rows: Sequence[Rows],
        after: Sequence[Ready | None],
        stays: Sequence[bool],
    ) -> Group:
        starts = [_start(models[index], bursts[index]) for index in chosen]
        offsets, mine = self._training.local_loss.offsets, [bursts[index] for index in chosen]
        if offsets is not None:
            devices = torch.tensor([burst.device for burst in mine])
            offsets = offsets.index_select(0, moved(devices, offsets.device))
        return Group(
            models=[models[index] for index in chosen],
            starts=starts,
            rows=[rows[index] for index in chosen],
            offsets=offsets,
            steering=steering_of(self._training, mine),
            after=[after[index] for index in chosen],
            stays=[bool(stays) and stays[index] for index in chosen],
        )


def _start(model: Tensor, burst: Burst) -> Tensor:
    """The model at the start of a burst."""
    if not burst.is_empty:
        return model
    assert burst.received is not None
    return burst.received
