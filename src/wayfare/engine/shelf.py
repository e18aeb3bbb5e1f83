"""Storage for the vectors of a fleet between contacts: memory, or disk for large fleets."""

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
    """Stores two vectors per device: one that is kept, and the local model of an unfinished burst."""

    def keep(self, device: int, vector: Tensor) -> Tensor:
        """Store a vector and return an equal one, which is valid until the device's next `keep`."""

    def local_model(self, device: int) -> Tensor | None:
        """Where to hold the local model of a device; None means in memory."""

    def rest(self, device: int) -> None:
        """A local model is not needed for now."""


class InMemory:
    def keep(self, device: int, vector: Tensor) -> Tensor:
        return vector

    def local_model(self, device: int) -> Tensor | None:
        return None

    def rest(self, device: int) -> None:
        pass


class OnDisk:
    """Vectors in two memory-mapped files, one row per device. Pages leave memory once they are written.

    The files are sparse: a device without a contact takes no space. They are temporary and useless after the run.
    """

    def __init__(self, file: Path, devices: int, entries: int) -> None:
        self.files = file, file.with_name(f"{file.name}-local")
        self._kept, self._local = (_Rows(each, devices, entries) for each in self.files)

    def keep(self, device: int, vector: Tensor) -> Tensor:
        """Write the vector to the device's row and return a view of it."""
        row = self._kept.row(device)
        row.copy_(vector)
        self._kept.drop(device)
        return row

    def local_model(self, device: int) -> Tensor | None:
        return self._local.row(device)

    def rest(self, device: int) -> None:
        self._local.drop(device)


class _Rows:
    def __init__(self, file: Path, devices: int, entries: int) -> None:
        # Rows start on a page, so that each can be dropped from memory alone.
        page = mmap.PAGESIZE // np.dtype(np.float32).itemsize
        self._entries, self._stride = entries, -(-entries // page) * page
        self._rows = np.memmap(file, dtype=np.float32, mode="w+", shape=(devices, self._stride))
        mapping: mmap.mmap = self._rows._mmap  # type: ignore[attr-defined]
        # Not every system has madvise.
        advise: Callable[[int, int, int], None] | None = getattr(mapping, "madvise", None)
        self._advise = advise

    def row(self, device: int) -> Tensor:
        return torch.from_numpy(self._rows[device, : self._entries])

    def drop(self, device: int) -> None:
        if self._advise is not None:
            length = 4 * self._stride
            self._advise(mmap.MADV_DONTNEED, device * length, length)


@contextmanager
def open_shelf(place: Place, compute: Compute, folder: Path, devices: int, entries: int) -> Iterator[Shelf]:
    """A shelf for one run. A shelf on disk uses temporary files in ``folder``, deleted when the run ends."""
    if checked_place(place) == "memory":
        yield InMemory()
        return
    if compute.device.type != "cpu":
        rule = f"needs `device=cpu`; vectors of {compute.device} stay in its memory"
        raise ScenarioError("device_state", place, rule)
    # In the run's folder, because the folder for temporary files is in memory on many systems.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=".device-state-", dir=folder, ignore_cleanup_errors=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot write here: {error.strerror}") from None
    with scratch as name:
        file = Path(name) / "vectors"
        shelf = OnDisk(file, devices, entries)
        if os.name == "posix":
            # A mapped file outlives its name, so even a killed run leaves no file behind.
            for each in shelf.files:
                each.unlink()
        yield shelf
