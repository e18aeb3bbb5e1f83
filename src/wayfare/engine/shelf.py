"""Storage for the vectors of a fleet between contacts: memory, or disk for large fleets."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
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

    on_disk: bool

    def keep(self, device: int, vector: Tensor) -> Tensor:
        """Store a vector and return an equal one, to be read until the device's next `keep`."""

    def keep_local(self, device: int, model: Tensor) -> Tensor:
        """Store a local model and return an equal one, to be read until the device's next `keep_local`."""

    def rest(self, device: int) -> None:
        """What was returned is not needed for now."""


class InMemory:
    on_disk = False

    def keep(self, device: int, vector: Tensor) -> Tensor:
        return vector

    def keep_local(self, device: int, model: Tensor) -> Tensor:
        return model

    def rest(self, device: int) -> None:
        pass


class OnDisk:
    """Vectors in two files, one row per device.

    The files are sparse: a device without a contact takes no space. They are temporary and useless after the run.
    """

    on_disk = True

    def __init__(self, file: Path, devices: int, entries: int) -> None:
        files = file, file.with_name(f"{file.name}-local")
        self._kept, self._local = (_Rows(each, devices, entries) for each in files)

    def keep(self, device: int, vector: Tensor) -> Tensor:
        # One number for all entries, as of a device without memory, takes no space.
        return vector if vector.stride() == (0,) else self._kept.write(device, vector)

    def keep_local(self, device: int, model: Tensor) -> Tensor:
        return self._local.write(device, model)

    def rest(self, device: int) -> None:
        self._kept.drop(device)
        self._local.drop(device)


class _Rows:
    """Rows are read where the file is mapped, and written by system calls.

    Writing to a mapping takes a page fault per page. The first one also reads a hole of the file, its neighbourhood
    included. Measured in benchmarks/fleet.py, that took as long as everything else in a contact.
    """

    def __init__(self, file: Path, devices: int, entries: int) -> None:
        # Rows start on a page, so that each can be dropped from memory alone.
        page = mmap.PAGESIZE // np.dtype(np.float32).itemsize
        self._entries, self._stride = entries, -(-entries // page) * page
        self._rows = np.memmap(file, dtype=np.float32, mode="w+", shape=(devices, self._stride))
        # Made at once: small objects made between large vectors break up the memory in which those are allocated. Each
        # has its own storage, because a checkpoint saves whole storages.
        self._views = [torch.from_numpy(row) for row in np.asarray(self._rows)[:, :entries]]
        self._file = file.open("r+b", buffering=0)
        weakref.finalize(self, self._file.close)
        mapping: mmap.mmap = self._rows._mmap  # type: ignore[attr-defined]
        # Not every system has madvise.
        advise: Callable[[int, int, int], None] | None = getattr(mapping, "madvise", None)
        self._advise = advise

    def write(self, device: int, vector: Tensor) -> Tensor:
        """Write a row and return a view of it."""
        left = vector.float().contiguous().numpy().data.cast("B")
        try:
            self._file.seek(4 * self._stride * device)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise RunFolderError(f"{self._file.name}: cannot store the devices' state: {error.strerror}") from None
        self.drop(device)
        return self._views[device]

    def drop(self, device: int) -> None:
        """Let a row leave memory; it is read again where it is needed."""
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
            # Open files outlive their names, so even a killed run leaves nothing behind.
            scratch.cleanup()
        yield shelf
