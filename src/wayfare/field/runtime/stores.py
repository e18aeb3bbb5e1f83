"""What ties a store to a fleet: the fleet, the model, the method. Other settings may change between two starts.

And what a device's progress and state are in a store: vectors, trees of the method's parts, and plain numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from wayfare.control.auto_weight import Experience
from wayfare.device import DeviceState
from wayfare.errors import RunFolderError

# The states of the method's parts, each a tree in one row.
TREES = ("memory_state", "local_state")


@dataclass(frozen=True, slots=True)
class OpenUpdate:
    """An update with chunks that are neither confirmed nor returned."""

    number: int
    round: int
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    trained_round: int = 0  # the last trained round of the local model
    cut_round: int = 0  # of the last decided contact
    cut_s: float = 0.0  # its time by the machine's clock
    takes_model: bool = True  # whether that contact ends with a download
    cut_short: bool = False  # whether it gets the previous model, because it ended too early for the new one
    finished_round: int = 0  # of the last complete exchange
    version: int | None = 0  # of the global model; None: not a version of the server
    last_update: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of `Settings`, received with the model


def check_identity(file: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise RunFolderError, with the differences, if a store belongs to another fleet, model or method."""
    found = [*_differences(before, now, "")]
    if found:
        raise RunFolderError(f"{file}: belongs to other work: {'; '.join(found)}; use a new folder for this one")


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str) -> Iterator[str]:
    """The values that differ. A name on one side only is a setting of another version, which has its default here."""
    for name in filter(now.__contains__, before):
        one, other = before[name], now[name]
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, f"{path}{name}.")
        elif one != other:
            yield f"{path}{name}: {one!r} -> {other!r}"


def plain_state(state: DeviceState) -> dict[str, Any]:
    """The scalar fields of a device's state, without vectors and trees."""
    others = ("received", "memory", *TREES)
    numbers = {each.name: getattr(state, each.name) for each in fields(state) if each.name not in others}
    numbers["experience"] = asdict(state.experience)
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in numbers.items()}


def device_state(others: dict[str, Any], vectors: Mapping[str, Tensor]) -> DeviceState:
    experience = Experience.of(others.pop("experience"))
    return DeviceState(received=vectors["base"], memory=vectors["memory"], experience=experience, **others)
