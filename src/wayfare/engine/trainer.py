"""The local models of a fleet between contacts.

Nothing a device does between two contacts can be observed, so its steps may run at any time before the next one. The
trainer decides when; every policy gives the same models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.engine.base import Burst, Engine

Policy: TypeAlias = Literal["stepwise", "lazy", "ahead"]
Training: TypeAlias = Literal["always", "in-contact"]

# A stack is worth its copies from about this many steps on.
_AHEAD_STEPS = 12


class Trainer:
    """Holds w_n of every device, and brings it up to date when the device is met.

    ``stepwise`` takes every round by itself, ``lazy`` runs a device's burst at its contact, ``ahead`` then also runs
    every other burst that is pending: its start was received and its end, the device's next contact, is in the plan.
    """

    def __init__(
        self, engine: Engine, initial: Tensor, contacts: Sequence[Ints], *, training: Training, policy: Policy = "ahead"
    ) -> None:
        self._engine, self._training, self._policy = engine, training, policy
        # The rounds of every device's contacts, in order.
        self._contacts = contacts
        self._models = initial.repeat(len(contacts), 1)
        # The round whose step each local model has already taken.
        self._done = [0] * len(contacts)

    def meet(self, devices: Sequence[int], round_: int) -> None:
        """Bring the devices met in a round up to date; their step of that round is included."""
        if self._training == "in-contact":
            for device in devices:
                self._done[device] = round_ - 1
        if self._policy == "stepwise":
            start = min(self._done[device] for device in devices)
            for stop in range(start + 1, round_ + 1):
                self._run(dict.fromkeys(devices, stop))
        elif self._policy == "lazy" or self._training == "in-contact":
            self._run(dict.fromkeys(devices, round_))
        else:
            needed = max(round_ - self._done[device] for device in devices)
            if needed > 0:
                self._run_ahead(round_, max(needed, _AHEAD_STEPS))

    def model(self, device: int) -> Tensor:
        """w_n: the local model, as far as it was brought."""
        return self._models[device]

    def receive(self, device: int, model: Tensor) -> None:
        """Start anew from a received global model."""
        self._models[device] = model

    def _run_ahead(self, round_: int, steps: int) -> None:
        """Run every pending burst by up to so many steps: equal lengths make a wide stack."""
        self._run(
            {
                # Steps after a device's last contact are never needed by anyone.
                device: min(self._next_contact(device, round_), self._done[device] + steps)
                for device in range(len(self._contacts))
            }
        )

    def _next_contact(self, device: int, round_: int) -> int:
        """The device's first contact in or after a round; 0 if there is none."""
        rounds = self._contacts[device]
        place = int(np.searchsorted(rounds, round_))
        return int(rounds[place]) if place < len(rounds) else 0

    def _run(self, until: Mapping[int, int]) -> None:
        """Run every device up to a round of its own."""
        bursts = [
            Burst(device, self._done[device] + 1, round_ - self._done[device])
            for device, round_ in until.items()
            if self._done[device] < round_
        ]
        if bursts:
            self._engine.run(self._models, bursts)
        for burst in bursts:
            self._done[burst.device] = until[burst.device]
