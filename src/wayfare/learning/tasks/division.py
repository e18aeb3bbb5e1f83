"""Who holds which training sample, where the data say so: samples of each device, or the vehicle behind each sample."""

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

# Names that a message lists.
_LISTED = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Division:
    """The samples of each device by number, or of each vehicle by name, in the natural order of names."""

    task: str
    samples: int  # of the training set, or of the test set
    held: tuple[Ints, ...]
    vehicles: tuple[str, ...] = ()
    column: str = "vehicles"  # what `own_task` calls the names

    def among(self, devices: int) -> list[Ints]:
        """The samples of so many devices without names: vehicles count in the order of their names."""
        if devices != len(self.held):
            rule = f"the task {self.task} divides its samples among {len(self.held)} devices; must be as many"
            raise ScenarioError("fleet.devices", devices, rule)
        return list(self.held)

    def among_vehicles(self, devices: Sequence[str], nodes: Sequence[str], where: str) -> list[Ints]:
        """The samples of devices with names. All names in the data must be those of known nodes."""
        if not self.vehicles:
            return self.among(len(devices))
        unknown = [name for name in self.vehicles if name not in set(nodes)]
        if unknown:
            raise InputError(
                f"{self.task}: {self.column}: no vehicle of {where} is called {_listed(unknown)}; it has "
                f"{_listed(nodes)}"
            )
        held = dict(zip(self.vehicles, self.held, strict=True))
        without = [name for name in devices if name not in held]
        if without:
            raise InputError(
                f"{self.task}: {self.column}: no sample was recorded by the devices {_listed(without)}; every device "
                "needs one. On a trace, devices are the vehicles that meet the server most often"
            )
        self._warn_of_unused([name for name in self.vehicles if name not in set(devices)])
        return [held[name] for name in devices]

    def _warn_of_unused(self, names: Sequence[str]) -> None:
        if names:
            unused = sum(len(self.held[self.vehicles.index(name)]) for name in names)
            _warn(
                f"{self.task}: {unused:,} of {self.samples:,} samples were recorded by vehicles that are no devices of "
                f"this run: {_listed(names)}"
            )


@runtime_checkable
class Divided(Protocol):
    """A task that may say who holds which sample."""

    @property
    def division(self) -> Division | None:
        """Of the training set; None: a partition of the scenario deals the samples."""
        ...

    @property
    def test_division(self) -> Division | None:
        """Of the test set; None where nobody knows who recorded its samples."""
        ...


def division_by_device(devices: Sequence[Any], samples: int, task: str) -> Division:
    """The division by lists of sample numbers, one for each device."""
    where = f"{task}: devices"
    if not len(devices):
        raise InputError(f"{where}: must list the samples of at least one device")
    held = []
    for device, given in enumerate(devices):
        numbers = np.asarray(given)
        if numbers.ndim != 1 or not len(numbers):
            raise InputError(f"{where}: device {device} holds no sample; must be a list of sample numbers")
        if numbers.dtype.kind not in "iu":
            raise InputError(f"{where}: device {device}: must be whole numbers, these are {numbers.dtype}")
        outside = numbers[(numbers < 0) | (numbers >= samples)]
        if len(outside):
            raise InputError(f"{where}: device {device} holds sample {outside[0]}; must be 0 to {samples - 1}")
        found, times = np.unique(numbers, return_counts=True)
        if len(found) < len(numbers):
            raise InputError(f"{where}: device {device} holds sample {found[times > 1][0]} twice")
        held.append(numbers.astype(np.int64))
    return Division(task=task, samples=samples, held=tuple(held))


def division_by_vehicle(names: Any, samples: int, task: str, column: str = "vehicles") -> Division:
    """The division by a column that names the vehicle of each sample."""
    where, names = f"{task}: {column}", np.asarray(names)
    if names.shape != (samples,):
        raise InputError(f"{where}: has {len(names) if names.ndim else 0} names for {samples} samples")
    if names.dtype.kind not in "OUSTiu":
        raise InputError(f"{where}: hold {names.dtype} where texts or whole numbers are needed")
    texts = [_text(name) for name in names.tolist()]
    if "" in texts:
        raise InputError(f"{where}: sample {texts.index('')} has no name; must be a text or a whole number")
    distinct = sorted(set(texts))
    vehicles = tuple(distinct[place] for place in natural_order(distinct))
    array = np.array(texts)
    return Division(
        task=task,
        samples=samples,
        held=tuple(np.flatnonzero(array == name) for name in vehicles),
        vehicles=vehicles,
        column=column,
    )


def _text(name: object) -> str:
    """The name of a vehicle as a trace would have it; empty where there is none, such as NaN."""
    if isinstance(name, bytes):
        return name.decode()
    return str(name) if isinstance(name, str | int) and not isinstance(name, bool) else ""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


@lru_cache
def _warn(message: str) -> None:
    """Once for all runs of a process."""
    _log.warning("%s", message)
