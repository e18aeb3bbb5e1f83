"""The whole state of a simulation between two rounds, as plain values that can be saved and taken up again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
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
            "trainer": {
                "done": list(self.trainer.done),
                "underway": dict(self.trainer.underway),
                "retired": list(self.trainer.retired),
                "velocities": dict(self.trainer.velocities),
            },
            "parcels": [_plain(parcel) for parcel in self.relays.parcels],
            "turns": [_plain(turn) for turn in self.relays.turns],
        }

    def unsound(self) -> str | None:
        """Where a number is that is none, or infinite; None when all are sound."""
        if not _finite(self.server.model):
            return "the global model"
        for name, vector in vectors_of(self.server.rule_state):
            if not _finite(vector):
                return f"what the server remembers: {name}"
        if self.server.averaged is not None and not _finite(self.server.averaged):
            return "the mean of the global model"
        for device, vector in self.trainer.underway.items():
            if not _finite(vector):
                return f"the local model of device {device}"
        for device, vector in self.trainer.velocities.items():
            if not _finite(vector):
                return f"the velocity of device {device}"
        for device, state in enumerate(self.devices):
            # Devices that never met the server share one zero.
            if state.memory.stride() != (0,) and not _finite(state.memory):
                return f"the memory of device {device}"
            for name, vector in (*vectors_of(state.memory_state), *vectors_of(state.local_state)):
                if not _finite(vector):
                    return f"what device {device} remembers: {name}"
        for parcel in self.relays.parcels:
            if not _finite(parcel.update):
                return f"an update of device {parcel.owner} on its way with device {parcel.relay}"
        return None


class Vectors:
    """Copies the vectors of a saved state for the run that resumes from it."""

    def __init__(self, initial: Tensor) -> None:
        self._initial = initial
        self._owned: dict[int, Tensor] = {}

    def own(self, vector: Tensor) -> Tensor:
        """A copy where the vectors of this run lie, one for all who share it: what was read may go away."""
        if id(vector) not in self._owned:
            self._owned[id(vector)] = vector.to(self._initial.device, copy=True)
        return self._owned[id(vector)]

    def check(self, state: SimulationState, scenario: Scenario, *, relays: bool) -> None:
        fleet, initial = scenario.fleet.devices, self._initial
        vectors = [state.server.model, *state.trainer.underway.values(), *state.trainer.velocities.values()]
        vectors += [] if state.server.averaged is None else [state.server.averaged]
        vectors += [vector for device in state.devices for vector in (device.received, device.memory)]
        vectors += [parcel.update for parcel in state.relays.parcels]
        if len(state.devices) != fleet or len(state.trainer.done) != fleet:
            raise ValueError(f"a state of {len(state.devices)} devices, here are {fleet}")
        if len(state.relays.turns) != (fleet if relays else 0):
            raise ValueError("the state of a method that relays, or of one that does not")
        if any(vector.shape != initial.shape or vector.dtype != initial.dtype for vector in vectors):
            raise ValueError("the state of another model")
        if not 0 <= state.round <= scenario.rounds:
            raise ValueError(f"the state after round {state.round} of {scenario.rounds}")


def state_from_plain(table: Mapping[str, Any]) -> SimulationState:
    """The state of a table; ValueError, KeyError or TypeError when it is none."""
    if table["version"] != VERSION:
        raise ValueError(f"a state of version {table['version']}, this Wayfare reads {VERSION}")
    trainer = table["trainer"]
    return SimulationState(
        round=table["round"],
        bits=table["bits"],
        server=ServerState(**table["server"]),
        devices=[_device(device) for device in table["devices"]],
        trainer=TrainerState(
            done=list(trainer["done"]),
            underway=dict(trainer["underway"]),
            retired=list(trainer["retired"]),
            velocities=dict(trainer["velocities"]),
        ),
        relays=RelayState(
            parcels=[Parcel(**parcel) for parcel in table["parcels"]], turns=[Turn(**turn) for turn in table["turns"]]
        ),
    )


def _plain(state: DeviceState | ServerState | Experience | Parcel | Turn) -> dict[str, Any]:
    """The fields of a part; numbers that a scheme computed with NumPy become Python's."""
    values = {each.name: getattr(state, each.name) for each in fields(state)}
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Experience):
        return _plain(value)
    if isinstance(value, Mapping):
        return mapped(value, lambda vector: vector)
    return value.item() if isinstance(value, np.generic) else value


def _device(table: Mapping[str, Any]) -> DeviceState:
    return DeviceState(**{**table, "experience": Experience.of(table["experience"])})


def _finite(vector: Tensor) -> bool:
    """A sum is finite only if every entry is; it may overflow when they are, so then each is looked at."""
    return bool(vector.sum().isfinite()) or bool(vector.isfinite().all())
