"""The whole state of a simulation between two rounds, as plain values that can be saved and taken up again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wayfare.control.auto_weight import Experience
from wayfare.device import DeviceState
from wayfare.engine import TrainerState
from wayfare.methods.states import mapped, vectors_of
from wayfare.scenario import Scenario
from wayfare.server import ServerState
from wayfare.simulator.relays import Parcel, RelayState, Turn

VERSION = 5
"""Of what a saved state means. A state of another version is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationState:
    """Everything a simulation carries from one round to the next; what is not here follows from the world.

    Local models are saved as far as they were trained, not trained again: which bursts run together decides their last
    bits. Tensors that are one object are one again when they are read back, so devices that share a model still do.
    """

    round: int  # the last one that is over
    bits: float
    server: ServerState
    devices: list[DeviceState]
    trainer: TrainerState
    relays: RelayState = field(default_factory=RelayState)

    def plain(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "round": self.round,
            "bits": float(self.bits),
            "server": _plain(self.server),
            "devices": [_plain(state) for state in self.devices],
            "trainer": _plain(self.trainer),
            "parcels": [_plain(parcel) for parcel in self.relays.parcels],
            "turns": [_plain(turn) for turn in self.relays.turns],
        }

    def unsound(self) -> str | None:
        """Where a number is that is none, or infinite; None when all are sound."""
        return next((where for where, vector in self._vectors() if not _finite(vector)), None)

    def _vectors(self) -> Iterator[tuple[str, Tensor]]:
        yield "the global model", self.server.model
        yield from ((f"what the server remembers: {name}", it) for name, it in vectors_of(self.server.rule_state))
        if self.server.averaged is not None:
            yield "the mean of the global model", self.server.averaged
        yield from ((f"the local model of device {device}", it) for device, it in self.trainer.underway.items())
        yield from ((f"the velocity of device {device}", it) for device, it in self.trainer.velocities.items())
        for device, state in enumerate(self.devices):
            # Devices that never met the server share one zero.
            if state.memory.stride() != (0,):
                yield f"the memory of device {device}", state.memory
            remembered = *vectors_of(state.memory_state), *vectors_of(state.local_state)
            yield from ((f"what device {device} remembers: {name}", it) for name, it in remembered)
        for parcel in self.relays.parcels:
            yield f"an update of device {parcel.owner} on its way with device {parcel.relay}", parcel.update

    def refuse_another(self, initial: Tensor, scenario: Scenario, *, relays: bool) -> None:
        """ValueError when this is the state of another run."""
        fleet = scenario.fleet.devices
        vectors = [self.server.model, *self.trainer.underway.values(), *self.trainer.velocities.values()]
        vectors += [] if self.server.averaged is None else [self.server.averaged]
        vectors += [vector for device in self.devices for vector in (device.received, device.memory)]
        vectors += [parcel.update for parcel in self.relays.parcels]
        if len(self.devices) != fleet or len(self.trainer.done) != fleet:
            raise ValueError(f"a state of {len(self.devices)} devices, here are {fleet}")
        if len(self.relays.turns) != (fleet if relays else 0):
            raise ValueError("the state of a method that relays, or of one that does not")
        if any(vector.shape != initial.shape or vector.dtype != initial.dtype for vector in vectors):
            raise ValueError("the state of another model")
        if not 0 <= self.round <= scenario.rounds:
            raise ValueError(f"the state after round {self.round} of {scenario.rounds}")

    def copied(self, where: torch.device) -> SimulationState:
        """The same with copies of its vectors on a device, one for all who share it: what was read may go away."""
        copies: dict[int, Tensor] = {}

        def copy(value: Any) -> Any:
            if isinstance(value, Tensor):
                if id(value) not in copies:
                    # A vector of one number for all entries stays one.
                    small = value[0].to(where, copy=True).expand_as(value) if value.stride() == (0,) else None
                    copies[id(value)] = value.to(where, copy=True) if small is None else small
                return copies[id(value)]
            if isinstance(value, Mapping):
                return {name: copy(entry) for name, entry in value.items()}
            if isinstance(value, list):
                return [copy(entry) for entry in value]
            if is_dataclass(value) and not isinstance(value, type):
                return replace(value, **{each.name: copy(getattr(value, each.name)) for each in fields(value)})
            return value

        copied: SimulationState = copy(self)
        return copied


def state_from_plain(table: Mapping[str, Any]) -> SimulationState:
    """The state of a table; ValueError, KeyError or TypeError when it is none."""
    if table["version"] != VERSION:
        raise ValueError(f"a state of version {table['version']}, this Wayfare reads {VERSION}")
    return SimulationState(
        round=table["round"],
        bits=table["bits"],
        server=ServerState(**table["server"]),
        devices=[DeviceState(**{**it, "experience": Experience.of(it["experience"])}) for it in table["devices"]],
        trainer=TrainerState(**table["trainer"]),
        relays=RelayState(
            parcels=[Parcel(**parcel) for parcel in table["parcels"]], turns=[Turn(**turn) for turn in table["turns"]]
        ),
    )


def _plain(state: DeviceState | ServerState | TrainerState | Experience | Parcel | Turn) -> dict[str, Any]:
    """The fields of a part; numbers that a scheme computed with NumPy become Python's."""
    values = {each.name: getattr(state, each.name) for each in fields(state)}
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Experience):
        return _plain(value)
    if isinstance(value, Mapping):
        return mapped(value, lambda vector: vector)
    return value.item() if isinstance(value, np.generic) else value


def _finite(vector: Tensor) -> bool:
    """A sum is finite only if every entry is; it may overflow when they are, so then each is looked at."""
    return bool(vector.sum().isfinite()) or bool(vector.isfinite().all())
