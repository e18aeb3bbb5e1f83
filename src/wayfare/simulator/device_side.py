"""The devices of a run: states, local models and contacts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from wayfare import device as devices
from wayfare.arrays import Ints
from wayfare.codec import helpers
from wayfare.device import DeviceState, Meeting, Terms, Transmission
from wayfare.engine import Shelf, Trainer, TrainerState
from wayfare.methods import Arrival, State, UploadRule
from wayfare.methods.states import same_kind
from wayfare.methods.uploads import MAX_BPS_PER_HZ
from wayfare.server import senders_of
from wayfare.waiting import Piece, Steps
from wayfare.world import World

# Contacts under way at a time. Each needs memory for a few vectors.
_AT_A_TIME = 8
# Later contacts that are looked at for one that can begin.
_LOOKED_AT = 32
# The host looks again after this time at least if a GPU and all helpers are busy.
_LOOK_AGAIN_S = 2e-5


class DeviceSide:
    def __init__(
        self,
        world: World,
        initial: Tensor,
        nothing: Tensor,
        terms: Terms,
        trainer: Trainer,
        shelf: Shelf,
        *,
        retires: bool,
        ahead: bool,
    ) -> None:
        self._world, self._nothing, self._terms, self._trainer, self._shelf = world, nothing, terms, trainer, shelf
        self._min_upload_joules = self._lower_bound_joules() if retires else 0.0
        self._senders = senders_of(world, terms.method)
        # A CPU would only need more memory for several.
        self._at_a_time = _AT_A_TIME if initial.is_cuda else 1
        self._looks_ahead = ahead and not shelf.on_disk
        if initial.is_cuda and terms.method.upload.uses_profile:
            # They are ready when the engine is.
            helpers.expect(len(world.meets))
        # Contacts of later rounds that have begun, by row.
        self._begun: dict[int, Piece[Transmission]] = {}
        # Devices without a contact so far share the first model and one zero vector.
        self.states = [
            devices.begin_device(initial, nothing, float(budget), terms.method) for budget in world.budgets_joules
        ]

    def groups(self, contacts: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        """Rows and devices of contacts, in groups of different devices."""
        group: list[tuple[int, int]] = []
        for row, device in contacts:
            if any(device == other for _, other in group):
                yield group
                group = []
            group.append((row, device))
            if len(group) == self._at_a_time:
                yield group
                group = []
        if group:
            yield group

    def contacts(self, group: Sequence[tuple[int, int]], states: Sequence[DeviceState]) -> list[Transmission]:
        """Contacts of different devices.

        While all of them wait for a GPU, the host begins later contacts of devices that have trained up to them. What
        a device sends depends on nothing but its own state.
        """
        pieces = [self._piece(row, state) for (row, _), state in zip(group, states, strict=True)]
        while not all(piece.is_done for piece in pieces):
            self._trainer.keep_going()
            if not any(piece.go_on() for piece in pieces) and not self._go_ahead(group):
                # Other runs may be threads of this process.
                time.sleep(_LOOK_AGAIN_S)
        return [piece.result() for piece in pieces]

    def _piece(self, row: int, state: DeviceState) -> Piece[Transmission]:
        begun = self._begun.pop(row, None)
        return Piece(self._contact(row, state)) if begun is None else begun

    def _go_ahead(self, group: Sequence[tuple[int, int]]) -> bool:
        """Advance or begin a contact after those of a group. Return False if none can run now."""
        if any(self._begun[row].go_on() for row in sorted(self._begun)):
            return True
        if not self._looks_ahead or len(group) + len(self._begun) >= self._at_a_time:
            return False
        meets, busy, first = self._world.meets, {device for _, device in group}, group[-1][0] + 1
        for row in range(first, min(first + _LOOKED_AT, len(meets))):
            device = int(meets.device[row])
            if device not in busy and row not in self._begun and self._trainer.has_reached(device, meets.round[row]):
                self._begun[row] = Piece(self._contact(row, self.states[device]))
                return True
            # Contacts of a device follow one another.
            busy.add(device)
        return False

    def _contact(self, row: int, state: DeviceState) -> Steps[Transmission]:
        meeting = meeting_at(self._world, row, self._terms.method.upload)
        device, lasts_s = meeting.device, float(self._world.meets.contact_s[row])
        # Kernels of other contacts would wait behind those of a device that still trains.
        yield lambda: self._trainer.is_settled(device)
        local_model = self._trainer.model(device)
        return (yield from devices.contact_in_steps(state, local_model, meeting, self._terms, lasts_s))

    def arrival(self, device: int, sending: Transmission) -> Arrival | None:
        sent = devices.payload(sending, self._trainer.model(device), self._terms.method)
        if sent is None:
            return None
        encounter = sending.offer.encounter
        return self._senders.arrival(device, sent, round_=encounter.round, staleness_rounds=encounter.staleness_rounds)

    def keep(self, device: int, state: DeviceState, *, new_memory: bool) -> None:
        """Store the state of a device after a contact."""
        if not new_memory:
            self._shelf.rest(device)
        memory = self._shelf.keep(device, state.memory) if new_memory else state.memory
        self.states[device] = state if memory is state.memory else replace(state, memory=memory)

    def receive(self, device: int, model: Tensor, handed: State, round_: int) -> None:
        state = devices.receive(self.states[device], model, round_, self._terms.method, handed)
        self.states[device] = state
        correction = self._terms.method.local.correction(state.local_state)
        # Reading the memory waits for a GPU, and delivered statistics do not come back.
        waits = self._trainer.is_waiting(device) and devices.delivers_first(state, self._terms.link)
        self._trainer.receive(device, model, correction, waits=waits)

    def retire(self, met: Sequence[int]) -> None:
        """Stop training on devices that can never upload again; results are unchanged."""
        for device in met:
            # Without a limit the remaining energy says nothing.
            if self._min_upload_joules > 0 and self.states[device].left_joules < self._min_upload_joules:
                self._trainer.retire(device)

    @property
    def on_disk(self) -> bool:
        """Whether memories and local models are on disk."""
        return self._shelf.on_disk

    def restore(self, states: Sequence[DeviceState], trainer: TrainerState) -> None:
        """Resume from states and local models. Those of another run raise ValueError."""
        self._begun.clear()
        first = self.states[0]
        if any(
            not (same_kind(state.memory_state, first.memory_state) and same_kind(state.local_state, first.local_state))
            for state in states
        ):
            raise ValueError("the state is from another memory rule or local rule")
        for number, state in enumerate(states):
            # A device without a contact so far shares the zero vector again.
            met = state.memory.stride() != (0,)
            memory = self._shelf.keep(number, state.memory) if met else self._nothing
            self.states[number] = replace(state, memory=memory)
        corrections = [self._terms.method.local.correction(state.local_state) for state in self.states]
        waiting = [n for n, state in enumerate(self.states) if devices.delivers_first(state, self._terms.link)]
        self._trainer.restore(trainer, [state.received for state in self.states], corrections, waiting)

    def _lower_bound_joules(self) -> float:
        link, upload = self._terms.link, self._terms.method.upload
        best = float(self._world.gains_per_watt.max(initial=0.0)) * link.max_power_watts
        return upload.min_upload_joules(link) if math.log2(1 + best) < MAX_BPS_PER_HZ else 0.0


def meeting_at(world: World, row: int, upload: UploadRule) -> Meeting:
    """The contact in ``row`` of the plan, as its device sees it when it begins."""
    device = int(world.meets.device[row])
    position_m, speed_mps = world.whereabouts(row) if upload.needs_position else (None, None)
    return Meeting(
        round=int(world.meets.round[row]),
        contact_s=float((world.forecast_s if upload.uses_forecast() else world.meets.contact_s)[row]),
        gain_per_watt=float(world.gains_per_watt[row]),
        device=device,
        samples=len(world.held[device]),
        position_m=position_m,
        speed_mps=speed_mps,
    )


def contact_rounds(world: World) -> list[Ints]:
    """The rounds of every device's contacts with the server, in order."""
    meets = world.meets
    # A stable sort keeps the order of rounds within a device.
    order = np.argsort(meets.device, kind="stable")
    edges = np.searchsorted(meets.device[order], np.arange(1, world.scenario.fleet.devices))
    return np.split(meets.round[order], edges)
