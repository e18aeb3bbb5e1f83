"""The local models of a fleet between contacts.

Nothing a device does between two contacts can be observed, so its steps may run at any time before the next one. The
trainer decides when; every policy gives the same models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.engine.base import Burst, Engine
from wayfare.learning.descent import Descent

Policy: TypeAlias = Literal["stepwise", "lazy", "ahead"]
Training: TypeAlias = Literal["always", "in-contact"]

# A stack is worth its copies from about this many steps on, unless an engine knows better, and wide enough with this
# many devices.
AHEAD_STEPS = 12
_AHEAD_DEVICES = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """How far the local models are: the round whose steps each has taken, and the vectors of bursts under way."""

    done: list[int]
    underway: dict[int, Tensor]
    retired: list[int] = field(default_factory=list)
    velocities: dict[int, Tensor] = field(default_factory=dict)  # of every burst under way, if there is momentum


class Trainer:
    """Holds w_n of every device, and brings it up to date when the device is met.

    ``stepwise`` takes every round by itself, ``lazy`` runs a device's burst at its contact, ``ahead`` then also runs
    other bursts that are pending: their start was received and their end, the device's next contact, is in the plan.

    A device whose burst has not begun shares the model it received with everyone who received it; only a burst under
    way has a vector of its own. So memory grows with what is under way, not with the fleet.
    """

    def __init__(
        self,
        engine: Engine,
        initial: Tensor,
        contacts: Sequence[Ints],
        *,
        training: Training,
        policy: Policy = "ahead",
        ahead_steps: int = AHEAD_STEPS,
        descent: Descent | None = None,
    ) -> None:
        self._engine, self._training, self._policy, self._ahead_steps = engine, training, policy, ahead_steps
        # The rounds in which every device's local model is looked at or replaced, in order.
        self._contacts = contacts
        self._received = [initial] * len(contacts)
        self._corrections: list[Tensor | None] = [None] * len(contacts)
        self._has_momentum = descent is not None and descent.momentum > 0
        self._underway: dict[int, Tensor] = {}
        self._velocities: dict[int, Tensor] = {}
        self._free: list[Tensor] = []
        # The round whose steps each local model has already taken.
        self._done = [0] * len(contacts)
        self._retired: set[int] = set()

    def meet(self, devices: Sequence[int], round_: int) -> None:
        """Bring the devices met in a round up to date; their steps of that round are included."""
        devices = [device for device in devices if device not in self._retired]
        if not devices:
            return
        if self._training == "in-contact":
            for device in devices:
                self._done[device] = round_ - 1
        if self._policy == "stepwise":
            start = min(self._done[device] for device in devices)
            for stop in range(start + 1, round_ + 1):
                self._run(dict.fromkeys(devices, stop))
        elif self._policy == "lazy" or self._training == "in-contact" or len(devices) >= _AHEAD_DEVICES:
            self._run(dict.fromkeys(devices, round_))
        else:
            needed = max(round_ - self._done[device] for device in devices)
            if needed > 0:
                self._run_ahead(devices, round_, max(needed, self._ahead_steps))

    def model(self, device: int) -> Tensor:
        """w_n: the local model, as far as it was brought; to be read before anything is received or met."""
        return self._underway.get(device, self._received[device])

    def receive(self, device: int, model: Tensor, correction: Tensor | None = None) -> None:
        """Start anew from a received global model; the correction is added to gradients until the next one.

        The trainer changes neither vector.
        """
        self._received[device], self._corrections[device] = model, correction
        for held in (self._underway, self._velocities):
            if device in held:
                self._free.append(held.pop(device))

    def restart(self, device: int, received: Tensor, local: Tensor) -> None:
        """Go on from a local model that is not the received one; both are copied or never changed.

        The correction stays, and the velocity begins at zero.
        """
        self.receive(device, received, self._corrections[device])
        self._own(device).copy_(local)

    def retire(self, device: int) -> None:
        self._retired.add(device)

    def state(self) -> TrainerState:
        """How far the local models are; the vectors are those at work, to be read before anything is met."""
        return TrainerState(
            done=list(self._done),
            underway=dict(self._underway),
            retired=sorted(self._retired),
            velocities=dict(self._velocities),
        )

    def restore(
        self, state: TrainerState, received: Sequence[Tensor], corrections: Sequence[Tensor | None] | None = None
    ) -> None:
        """Resume from a state, whose vectors this trainer takes over, with what each device received.

        ValueError when either the state or this trainer has momentum and the other has none.
        """
        if set(state.velocities) != (set(state.underway) if self._has_momentum else set()):
            raise ValueError("the state of a descent with momentum, or of one without")
        self._done, self._underway, self._received = list(state.done), dict(state.underway), list(received)
        self._corrections = [None] * len(self._received) if corrections is None else list(corrections)
        self._velocities = dict(state.velocities)
        self._retired = set(state.retired)
        self._free.clear()

    @property
    def vectors(self) -> int:
        return len(self._underway) + len(self._velocities) + len(self._free)

    def _run_ahead(self, met: Sequence[int], round_: int, steps: int) -> None:
        """Run pending bursts by up to so many steps: equal lengths make a wide stack."""
        until = {
            device: self._next_contact(device, round_)
            for device in range(len(self._contacts))
            if device not in self._retired
            # Steps after a device's last contact are never needed by anyone.
            if self._done[device] < self._next_contact(device, round_)
        }
        # Those who are met now, then those who are met soonest: what is computed is soon delivered.
        chosen = sorted(until, key=lambda device: (until[device], device))[: max(_AHEAD_DEVICES, len(met))]
        self._run({device: min(until[device], self._done[device] + steps) for device in sorted(chosen)})

    def _next_contact(self, device: int, round_: int) -> int:
        """The device's first contact in or after a round; 0 if there is none."""
        rounds = self._contacts[device]
        place = int(np.searchsorted(rounds, round_))
        return int(rounds[place]) if place < len(rounds) else 0

    def _run(self, until: Mapping[int, int]) -> None:
        bursts = []
        for device, round_ in until.items():
            first = self._done[device] + 1
            if first <= round_:
                self._own(device)
                vectors = self._received[device], self._corrections[device], self._velocities.get(device)
                bursts.append(Burst(device, first, round_ + 1 - first, *vectors))
        if bursts:
            self._engine.run([self._underway[burst.device] for burst in bursts], bursts)
        for burst in bursts:
            self._done[burst.device] = until[burst.device]

    def _own(self, device: int) -> Tensor:
        """The vector of a device's burst, which begins as the model it received; any velocity begins at zero."""
        vector = self._underway.get(device)
        if vector is None:
            received = self._received[device]
            vector = self._underway[device] = self._vector(received).copy_(received)
            if self._has_momentum:
                self._velocities[device] = self._vector(received).zero_()
        return vector

    def _vector(self, like: Tensor) -> Tensor:
        return self._free.pop() if self._free else torch.empty_like(like)
