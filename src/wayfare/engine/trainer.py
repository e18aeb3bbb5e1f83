"""The local models of a fleet between contacts.

Nothing observes a device between two contacts, so its steps may run at any time before the next one. The trainer
decides when. All policies give the same models.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.engine.base import Burst, Engine, Idling, Overlapping, Ready
from wayfare.engine.shelf import InMemory, Shelf
from wayfare.learning.descent import Descent

Policy: TypeAlias = Literal["stepwise", "lazy", "ahead"]
Training: TypeAlias = Literal["always", "in-contact"]

# A stack is wide enough with this many devices.
_AHEAD_DEVICES = 48
# Local steps for a GPU during and right after an evaluation, which it prefers. More would make later steps narrower.
_BUSY_STEPS = 2
# Rounds by which devices may be ahead of those in contact because the GPU had nothing else to do.
_FURTHEST_AHEAD = 8
# If at most this share of the devices can train, they take two steps at once. Such steps are short, and launching each
# of them on its own would take much of the host's time, which contacts need.
_FEW_SHARE, _STEPS_OF_FEW = 0.4, 2
# A crowd trains in parts whose local models take about this much memory, and that are wide enough for a stack. A shelf
# on disk leaves as many local models in memory.
_PART_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """The progress of the local models: the last trained round of each, and the vectors of unfinished bursts."""

    done: list[int]
    underway: dict[int, Tensor]
    retired: list[int] = field(default_factory=list)
    velocities: dict[int, Tensor] = field(default_factory=dict)  # of every unfinished burst, if there is momentum


class Trainer:
    """Holds w_n of every device and trains it up to its contact.

    ``stepwise`` runs every round separately. ``lazy`` runs a device's burst at its contact. ``ahead`` then also runs
    other pending bursts, whose end, the device's next contact, is in the plan.

    A device whose burst has not started shares its received model with all devices that received it. Only unfinished
    bursts have their own vectors, so memory grows with their number, not with the fleet.
    """

    def __init__(
        self,
        engine: Engine,
        initial: Tensor,
        contacts: Sequence[Ints],
        *,
        training: Training,
        policy: Policy = "ahead",
        descent: Descent | None = None,
        shelf: Shelf | None = None,
        waits: bool = False,
    ) -> None:
        """With ``waits`` no device trains before it has delivered its statistics."""
        self._engine, self._training, self._policy = engine, training, policy
        self._overlapping = engine if isinstance(engine, Overlapping) else None
        self._idling = engine if isinstance(engine, Idling) and policy == "ahead" and training == "always" else None
        # The devices in contact, and the round.
        self._met: tuple[Collection[int], int] = (), 0
        # The rounds in which each device's local model is read or replaced, in order. Lists are faster to search.
        self._contacts: list[list[int]] = [rounds.tolist() for rounds in contacts]
        self._received = [initial] * len(contacts)
        self._corrections: list[Tensor | None] = [None] * len(contacts)
        self._has_momentum = descent is not None and descent.momentum > 0
        # Vectors of unfinished bursts in memory, those that trained last at the end, and on a shelf.
        self._underway: dict[int, Tensor] = {}
        self._stored: dict[int, Tensor] = {}
        self._velocities: dict[int, Tensor] = {}
        # The ends of bursts that a GPU may still be running. Nothing may read their vectors before.
        self._running: dict[int, Ready] = {}
        self._free: list[Tensor] = []
        self._shelf = shelf or InMemory()
        self._part_devices = max(_AHEAD_DEVICES, _PART_BYTES // (initial.numel() * initial.element_size()))
        if self._overlapping is not None:
            # A GPU trains the last devices of a crowd beside the contacts of the first.
            self._part_devices = max(self._part_devices, len(contacts))
        # The last trained round of each local model.
        self._done = [0] * len(contacts)
        self._retired: set[int] = set()
        # Devices that may have statistics to deliver first.
        self._waiting: set[int] = set(range(len(contacts))) if waits else set()

    def meet(self, devices: Sequence[int], round_: int) -> None:
        """Train the devices in contact up to and including a round."""
        for _ in self.met(devices, round_):
            pass

    def met(self, devices: Sequence[int], round_: int) -> Iterator[int]:
        """Train the devices in contact up to and including a round. Yield each one while its model is in memory."""
        is_crowd, self._met = len(devices) >= _AHEAD_DEVICES, (set(devices), round_)
        for first in range(0, len(devices), self._part_devices):
            part = devices[first : first + self._part_devices]
            self._train([device for device in part if device not in self._retired], round_, ahead=not is_crowd)
            yield from part

    def _train(self, devices: Sequence[int], round_: int, *, ahead: bool) -> None:
        if not devices:
            return
        if self._training == "in-contact":
            for device in devices:
                self._done[device] = round_ - 1
        if self._policy == "stepwise":
            start = min(self._done[device] for device in devices)
            for stop in range(start + 1, round_ + 1):
                self._run(dict.fromkeys(devices, stop))
        elif self._policy == "lazy" or self._training == "in-contact" or not ahead:
            self._run(dict.fromkeys(devices, round_))
        else:
            self._run_ahead(devices, round_, self._steps_to(round_, devices))

    def _steps_to(self, round_: int, devices: Sequence[int]) -> int:
        """The number of steps that bring the devices in contact to a round, and perhaps others further."""
        needed = max(max(round_ - self._done[device] for device in devices), 0)
        if self._idling is not None:
            # More follow in `keep_going`, when the GPU has little left.
            return needed
        if self._overlapping is None:
            return max(needed, self._engine.ahead_steps) if needed else 0
        # Bursts that overlap go on while the host handles the contacts of those that have ended.
        is_next = needed > 0 or (self._engine.ahead_steps == 1 and self._is_any_behind(round_))
        return needed + self._engine.ahead_steps if is_next else 0

    def keep_busy(self, round_: int) -> None:
        """Start bursts after a round that no contact needs yet, if they can run while the host waits for a GPU."""
        if self._overlapping is not None and self._policy == "ahead" and self._training == "always":
            self._run_ahead([], round_ + 1, _BUSY_STEPS)

    def keep_going(self) -> None:
        """During the contacts of a round: start steps of devices out of contact if the GPU has little left to do."""
        if self._idling is None or not self._idling.has_little_left():
            return
        met, round_ = self._met
        until = self._pending(round_ + 1)
        last = round_ + _FURTHEST_AHEAD
        waiting = [each for each in until if each not in met and self._done[each] < last]
        chosen = sorted(waiting, key=lambda device: (until[device], device))[:_AHEAD_DEVICES]
        steps = _STEPS_OF_FEW if len(chosen) <= _FEW_SHARE * len(self._done) else 1
        ends = {device: min(self._done[device] + steps, until[device], last) for device in chosen}
        self._run(ends, staying={device for device, end in ends.items() if end < until[device]})

    def has_reached(self, device: int, round_: int) -> bool:
        """Whether a device has trained up to and including a round, so that nothing would wait for its model."""
        return self._done[device] >= round_ and self.is_settled(device)

    def is_settled(self, device: int) -> bool:
        """Whether nothing would wait for the model of a device."""
        running = self._running.get(device)
        return running is None or running.query()

    def model(self, device: int) -> Tensor:
        """w_n: the local model as trained so far, valid until the next `receive` or `meet`."""
        self._settle(device)
        return self._underway.get(device, self._stored.get(device, self._received[device]))

    def delivered(self, device: int) -> None:
        """The device sent its update and receives a model before it trains again."""
        if self._shelf.on_disk:
            # The server may still read the vector, so it is not used again.
            self._underway.pop(device, None)

    def is_waiting(self, device: int) -> bool:
        """Whether a device may have statistics to deliver before it trains."""
        return device in self._waiting

    def receive(self, device: int, model: Tensor, correction: Tensor | None = None, *, waits: bool = False) -> None:
        """Start from a received global model. The correction is added to gradients until the next one.

        The trainer changes neither vector. A device ``waits`` if it still has statistics to deliver.
        """
        self._settle(device)
        (self._waiting.add if waits else self._waiting.discard)(device)
        self._received[device], self._corrections[device] = model, correction
        self._stored.pop(device, None)
        vectors = self._underway.pop(device, None), self._velocities.pop(device, None)
        self._free += [each for each in vectors if each is not None]

    def restart(self, device: int, received: Tensor, local: Tensor) -> None:
        """Continue from a local model that differs from the received one. The trainer changes neither.

        The correction stays, and the velocity restarts at zero.
        """
        self.receive(device, received, self._corrections[device])
        self._own(device).copy_(local)

    def retire(self, device: int) -> None:
        self._retired.add(device)

    def state(self) -> TrainerState:
        """The current state. Its vectors are in use and valid until the next `meet`."""
        for device in list(self._running):
            self._settle(device)
        return TrainerState(
            done=list(self._done),
            underway={**self._stored, **self._underway},
            retired=sorted(self._retired),
            velocities=dict(self._velocities),
        )

    def restore(
        self,
        state: TrainerState,
        received: Sequence[Tensor],
        corrections: Sequence[Tensor | None] | None = None,
        waiting: Collection[int] = (),
    ) -> None:
        """Resume from a state and the received models. The trainer takes over the state's vectors.

        With a shelf on disk it copies them.
        ValueError if only one of state and trainer has momentum.
        """
        if set(state.velocities) != (set(state.underway) if self._has_momentum else set()):
            raise ValueError(f"the state is from a descent {'without' if self._has_momentum else 'with'} momentum")
        self._running.clear()
        self._done, self._received = list(state.done), list(received)
        self._underway, self._stored = dict(state.underway), {}
        self._corrections = [None] * len(self._received) if corrections is None else list(corrections)
        self._velocities = dict(state.velocities)
        self._retired, self._waiting = set(state.retired), set(waiting)
        self._make_room()
        self._free.clear()
        if self._shelf.on_disk:
            self._underway = {device: model.clone() for device, model in self._underway.items()}

    @property
    def vectors(self) -> int:
        return len(self._underway) + len(self._stored) + len(self._velocities) + len(self._free)

    def _is_any_behind(self, round_: int) -> bool:
        """Whether a device could go beyond this round, and has not."""
        return any(self._done[device] <= round_ < until for device, until in self._pending(round_).items())

    def _pending(self, round_: int) -> dict[int, int]:
        """The devices that may go on, and the rounds of their next contacts. Steps after the last are never needed."""
        return {
            device: until
            for device, done in enumerate(self._done)
            if device not in self._retired and done < (until := self._next_contact(device, round_))
        }

    def _run_ahead(self, met: Sequence[int], round_: int, steps: int) -> None:
        """Run pending bursts by up to ``steps`` steps: equal lengths make a wide stack."""
        if steps == 0:
            return
        until = self._pending(round_)
        # Devices in contact now come first, then those with the next contacts.
        chosen = sorted(until, key=lambda device: (until[device], device))[: max(_AHEAD_DEVICES, len(met))]
        ends = {device: min(until[device], self._done[device] + steps) for device in chosen}
        self._run(ends, staying={device for device, end in ends.items() if end < until[device]})

    def _next_contact(self, device: int, round_: int) -> int:
        """The device's first contact in or after a round; 0 if there is none."""
        rounds = self._contacts[device]
        index = bisect_left(rounds, round_)
        return rounds[index] if index < len(rounds) else 0

    def _run(self, until: Mapping[int, int], staying: Collection[int] = ()) -> None:
        """Train devices up to a round each. The models of those ``staying`` are most likely not read there."""
        bursts = []
        for device, round_ in until.items():
            first = self._done[device] + 1
            if first <= round_:
                vectors = self._received[device], self._corrections[device], self._velocity(device)
                is_empty = self._idling is not None and not (device in self._underway or device in self._stored)
                bursts.append(Burst(device, first, round_ + 1 - first, *vectors, is_empty, device in self._waiting))
        devices = [burst.device for burst in bursts]
        # Vectors are copied before anything is launched.
        models = [self._own(burst.device, is_copied=not burst.is_empty) for burst in bursts]
        if bursts and self._overlapping is not None:
            after = [self._running.get(device) for device in devices]
            ends = self._overlapping.launch(models, bursts, after, [device in staying for device in devices])
            self._running.update(zip(devices, ends, strict=True))
        elif bursts:
            self._engine.run(models, bursts)
        for burst in bursts:
            self._done[burst.device] = until[burst.device]

    def _settle(self, device: int) -> None:
        """Let later work wait for the burst of a device, if it may still be running."""
        running = self._running.pop(device, None)
        if running is not None:
            running.wait()

    def _own(self, device: int, *, is_copied: bool = True) -> Tensor:
        """The vector of a device's burst, in memory; a new one is the received model, unless that is not copied."""
        vector = self._underway.pop(device, None)
        if vector is None:
            self._make_room()
            received = self._received[device]
            vector = self._vector(received)
            if is_copied:
                vector.copy_(self._stored.pop(device, received))
            self._shelf.rest(device)
            self._velocity(device)
        self._underway[device] = vector
        return vector

    def _make_room(self) -> None:
        """Store the local models that trained longest ago. Those of the current bursts fit into memory."""
        while self._shelf.on_disk and len(self._underway) >= self._part_devices:
            device, model = next(iter(self._underway.items()))
            self._stored[device] = self._shelf.keep_local(device, model)
            self._free.append(self._underway.pop(device))

    def _velocity(self, device: int) -> Tensor | None:
        """The velocity of a device's burst, initially zero; None without momentum."""
        if self._has_momentum and device not in self._velocities:
            self._velocities[device] = self._vector(self._received[device]).zero_()
        return self._velocities.get(device)

    def _vector(self, like: Tensor) -> Tensor:
        return self._free.pop() if self._free else torch.empty_like(like)
