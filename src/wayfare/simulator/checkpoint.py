"""The complete state of a simulation between two rounds, as plain values to save and resume from."""

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
"""The version of saved states. Other versions are rejected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationState:
    """Everything that a simulation carries from one round to the next. The rest follows from the world.

    Partly trained local models are saved, not retrained: their last bits depend on which bursts run together. Tensors
    that are one object stay one object, so devices that share a model still share it after loading.
    """

    round: int  # the last completed round
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

    def first_nonfinite(self) -> str | None:
        """The name of the first vector with NaN or infinity; None if all are finite."""
        return next((where for where, vector in self._vectors() if not _finite(vector)), None)

    def _vectors(self) -> Iterator[tuple[str, Tensor]]:
        yield "the global model", self.server.model
        yield from ((f"the server's {name}", vector) for name, vector in vectors_of(self.server.rule_state))
        if self.server.averaged is not None:
            yield "the mean of the global model", self.server.averaged
        yield from ((f"the local model of device {device}", model) for device, model in self.trainer.underway.items())
        yield from ((f"the momentum of device {device}", vector) for device, vector in self.trainer.velocities.items())
        for device, state in enumerate(self.devices):
            # Devices without a contact so far share one zero vector.
            if state.memory.stride() != (0,):
                yield f"the memory of device {device}", state.memory
            states = *vectors_of(state.memory_state), *vectors_of(state.local_state)
            yield from ((f"{name} of device {device}", vector) for name, vector in states)
        for parcel in self.relays.parcels:
            yield f"an update of device {parcel.owner} carried by device {parcel.relay}", parcel.update

    def reject_mismatch(self, initial: Tensor, scenario: Scenario, *, relays: bool) -> None:
        """Raise ValueError if this is the state of another run."""
        fleet = scenario.fleet.devices
        vectors = [self.server.model, *self.trainer.underway.values(), *self.trainer.velocities.values()]
        vectors += [] if self.server.averaged is None else [self.server.averaged]
        vectors += [vector for device in self.devices for vector in (device.received, device.memory)]
        vectors += [parcel.update for parcel in self.relays.parcels]
        if len(self.devices) != fleet or len(self.trainer.done) != fleet:
            raise ValueError(f"the state has {len(self.devices)} devices, the scenario {fleet}")
        if len(self.relays.turns) != (fleet if relays else 0):
            raise ValueError(f"the state is from a method {'without' if relays else 'with'} relays")
        if any(vector.shape != initial.shape or vector.dtype != initial.dtype for vector in vectors):
            raise ValueError("the state is from another model")
        if not 0 <= self.round <= scenario.rounds:
            raise ValueError(f"the state is from round {self.round}, the scenario has {scenario.rounds} rounds")

    def copied(self, where: torch.device, *, shelved: bool = False) -> SimulationState:
        """Copy vectors to a device; shared vectors stay shared. The source may then be closed.

        If they are ``shelved``, memories and local models are not copied: a shelf takes them one by one, because all
        of them together may not fit into memory.
        """
        copies: dict[int, Tensor] = {}
        if shelved:
            taken = *(state.memory for state in self.devices), *self.trainer.underway.values()
            copies = {id(vector): vector for vector in taken if vector.stride() != (0,)}

        def copy(value: Any) -> Any:
            if isinstance(value, Tensor):
                if id(value) not in copies:
                    # Keep an expanded number as one number.
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
    """Read a state from a table. An invalid table raises ValueError, KeyError or TypeError."""
    if table["version"] != VERSION:
        raise ValueError(f"the state has version {table['version']}, this Wayfare reads version {VERSION}")
    return SimulationState(
        round=table["round"],
        bits=table["bits"],
        server=ServerState(**table["server"]),
        devices=[DeviceState(**{**row, "experience": Experience.of(row["experience"])}) for row in table["devices"]],
        trainer=TrainerState(**table["trainer"]),
        relays=RelayState(
            parcels=[Parcel(**parcel) for parcel in table["parcels"]], turns=[Turn(**turn) for turn in table["turns"]]
        ),
    )


def _plain(state: DeviceState | ServerState | TrainerState | Experience | Parcel | Turn) -> dict[str, Any]:
    """The fields of a state, with NumPy numbers as Python numbers."""
    values = {each.name: getattr(state, each.name) for each in fields(state)}
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Experience):
        return _plain(value)
    if isinstance(value, Mapping):
        return mapped(value, lambda vector: vector)
    return value.item() if isinstance(value, np.generic) else value


def _finite(vector: Tensor) -> bool:
    """Test the sum first: it is fast. The sum of finite entries can overflow, so then test each entry."""
    return bool(vector.sum().isfinite()) or bool(vector.isfinite().all())
