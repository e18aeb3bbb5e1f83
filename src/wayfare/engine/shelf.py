"""Where the vectors of a fleet lie between contacts: in memory, or on disk for fleets that memory cannot hold."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Shelf(Protocol):
    """Keeps one vector for each device."""

    def keep(self, device: int, vector: Tensor) -> Tensor:
        """Lay a vector away; what comes back equals it, and may be read until the device's next one is kept."""
        ...


class InMemory:
    """Vectors stay where they are."""

    def keep(self, device: int, vector: Tensor) -> Tensor:
        """The vector itself."""
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
