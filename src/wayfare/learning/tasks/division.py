"""Divisions that come with the data: the samples of each device, or the vehicle that recorded each sample."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np

from wayfare.arrays import Ints
from wayfare.errors import InputError, ScenarioError
from wayfare.mobility.traces.recording import natural_order

_log = logging.getLogger("wayfare")

# Maximum number of names in a message.
_LISTED = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Division:
    """The sample numbers of each device, or of each vehicle in the natural order of names."""

    task: str
    samples: int  # size of the training or test set
    held: tuple[Ints, ...]
    vehicles: tuple[str, ...] = ()
    column: str = "vehicles"  # the argument of `own_task` with the names

    def among(self, devices: int) -> list[Ints]:
        """The samples of each of `devices` devices without names; vehicles are in the order of their names."""
        if devices != len(self.held):
            rule = f"must be {len(self.held)}, because the task {self.task} divides its samples among that many devices"
            raise ScenarioError("fleet.devices", devices, rule)
        return list(self.held)

    def among_vehicles(self, devices: Sequence[str], nodes: Sequence[str], where: str) -> list[Ints]:
        """The samples of named devices. Every vehicle in the data must be a known node."""
        if not self.vehicles:
            return self.among(len(devices))
        unknown = [name for name in self.vehicles if name not in set(nodes)]
        if unknown:
            raise InputError(
                f"{self.task}: {self.column}: {where} has no vehicle named {listed(unknown)}; it has {listed(nodes)}"
            )
        held = dict(zip(self.vehicles, self.held, strict=True))
        without = [name for name in devices if name not in held]
        if without:
            raise InputError(
                f"{self.task}: {self.column}: the devices {listed(without)} recorded no sample, and every device "
                "needs one. On a trace, devices are the vehicles with most contacts with the server"
            )
        self._warn_of_unused([name for name in self.vehicles if name not in set(devices)])
        return [held[name] for name in devices]

    def _warn_of_unused(self, names: Sequence[str]) -> None:
        if names:
            unused = sum(len(self.held[self.vehicles.index(name)]) for name in names)
            _warn(
                f"{self.task}: {unused:,} of {self.samples:,} samples are unused, because their vehicles are not "
                f"devices of this run: {listed(names)}"
            )


@runtime_checkable
class Divided(Protocol):
    """A task that may divide its own samples among devices."""

    @property
    def division(self) -> Division | None:
        """The division of the training set; None: the scenario's partition divides it."""
        ...

    @property
    def test_division(self) -> Division | None:
        """The division of the test set; None if the vehicles of its samples are unknown."""
        ...


def division_by_device(devices: Sequence[Any], samples: int, task: str) -> Division:
    """The division by lists of sample numbers, one per device."""
    where = f"{task}: devices"
    if not len(devices):
        raise InputError(f"{where}: must list the samples of at least one device")
    held = []
    for device, given in enumerate(devices):
        numbers = np.asarray(given)
        if numbers.ndim != 1 or not len(numbers):
            raise InputError(f"{where}: device {device} has no samples; must be a list of sample numbers")
        if numbers.dtype.kind not in "iu":
            raise InputError(f"{where}: device {device}: must be integers, not {numbers.dtype}")
        outside = numbers[(numbers < 0) | (numbers >= samples)]
        if len(outside):
            raise InputError(f"{where}: device {device} has sample {outside[0]}; must be 0 to {samples - 1}")
        found, times = np.unique(numbers, return_counts=True)
        if len(found) < len(numbers):
            raise InputError(f"{where}: device {device} has sample {found[times > 1][0]} twice")
        held.append(numbers.astype(np.int64))
    return Division(task=task, samples=samples, held=tuple(held))


def division_by_vehicle(names: Any, samples: int, task: str, column: str = "vehicles") -> Division:
    """The division by a column that names the vehicle of each sample."""
    where, names = f"{task}: {column}", np.asarray(names)
    if names.shape != (samples,):
        raise InputError(f"{where}: has {len(names) if names.ndim else 0} names for {samples} samples")
    if names.dtype.kind not in "OUSTiu":
        raise InputError(f"{where}: must be strings or integers, not {names.dtype}")
    texts = [_text(name) for name in names.tolist()]
    if "" in texts:
        raise InputError(f"{where}: sample {texts.index('')} has no name; must be a string or an integer")
    distinct = sorted(set(texts))
    vehicles = tuple(distinct[index] for index in natural_order(distinct))
    array = np.array(texts)
    return Division(
        task=task,
        samples=samples,
        held=tuple(np.flatnonzero(array == name) for name in vehicles),
        vehicles=vehicles,
        column=column,
    )


def _text(name: object) -> str:
    """The name of a vehicle as in a trace; empty if it is missing, such as NaN."""
    if isinstance(name, bytes):
        return name.decode()
    return str(name) if isinstance(name, str | int) and not isinstance(name, bool) else ""


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


@lru_cache
def _warn(message: str) -> None:
    """Warn once per process."""
    _log.warning("%s", message)
