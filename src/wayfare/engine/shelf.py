"""Where the vectors of a fleet lie between contacts: in memory, or on disk for fleets that memory cannot hold."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from wayfare.engine.compute import Compute
from wayfare.errors import RunFolderError, ScenarioError

Place: TypeAlias = Literal["memory", "disk"]
PLACES: tuple[Place, ...] = ("memory", "disk")


def checked_place(name: str) -> Place:
    for place in PLACES:
        if name == place:
            return place
    raise ScenarioError("device_state", name, f"must be one of {', '.join(PLACES)}")


class Shelf(Protocol):
    """Keeps one vector for each device."""

    def keep(self, device: int, vector: Tensor) -> Tensor:
        """Lay a vector away; what comes back equals it, and may be read until the device's next one is kept."""


class InMemory:
    def keep(self, device: int, vector: Tensor) -> Tensor:
        return vector


class OnDisk:
    """Vectors in one memory-mapped file, a row for each device; pages leave memory as soon as they are written.

    The file is sparse: a device that never met the server takes no space. It is scratch, of no use after the run.
    """

    def __init__(self, file: Path, devices: int, entries: int) -> None:
        # Rows begin on a page, so that one can be dropped from memory without its neighbours.
        page = mmap.PAGESIZE // np.dtype(np.float32).itemsize
        self._entries, self._stride = entries, -(-entries // page) * page
        self._rows = np.memmap(file, dtype=np.float32, mode="w+", shape=(devices, self._stride))
        mapping: mmap.mmap = self._rows._mmap  # type: ignore[attr-defined]
        # Not every system can be told that pages are not needed.
        advise: Callable[[int, int, int], None] | None = getattr(mapping, "madvise", None)
        self._advise = advise

    def keep(self, device: int, vector: Tensor) -> Tensor:
        """A view of the device's row, with the values of the vector in it."""
        row = torch.from_numpy(self._rows[device, : self._entries])
        row.copy_(vector)
        if self._advise is not None:
            length = 4 * self._stride
            self._advise(mmap.MADV_DONTNEED, device * length, length)
        return row


@contextmanager
def open_shelf(place: Place, compute: Compute, folder: Path, devices: int, entries: int) -> Iterator[Shelf]:
    """A shelf for one run; what it keeps on disk lies in a scratch file in a folder, and goes when the run ends."""
    if checked_place(place) == "memory":
        yield InMemory()
        return
    if compute.device.type != "cpu":
        rule = f"needs `device=cpu`; vectors of {compute.device} stay in its memory"
        raise ScenarioError("device_state", place, rule)
    # Beside the records, not where temporary files go: that is memory on many systems.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=".device-state-", dir=folder, ignore_cleanup_errors=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot write here: {error.strerror}") from None
    with scratch as name:
        file = Path(name) / "vectors"
        shelf = OnDisk(file, devices, entries)
        if os.name == "posix":
            # A mapped file outlives its name, so even a run that is killed leaves no vectors behind.
            file.unlink()
        yield shelf
