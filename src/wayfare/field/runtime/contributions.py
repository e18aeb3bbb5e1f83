"""What a device has delivered so far, also after a compaction.

A device with class statistics sends differences to what its store says it has sent. If it loses the store, it starts
from nothing and sends all its statistics again. The server then withdraws its former contribution first, by a chunk of
its own with the opposite values, so that a replay repeats it.
"""

from __future__ import annotations

import sqlite3

import numpy as np
import torch

from wayfare.arrays import Floats
from wayfare.codec.steps import WHOLE
from wayfare.codec.wire import Layout
from wayfare.field.runtime.database import Database
from wayfare.field.runtime.messages import Chunk, unpack
from wayfare.sparsify import Sparse


def contribution(database: Database, layout: Layout, device: int) -> Floats:
    """The sum of all entries that a device delivered, before clipping."""
    total = np.zeros(layout.parameters + layout.statistics)
    for (data,) in database.rows("SELECT data FROM contributions WHERE device = ?", device):
        total += np.frombuffer(data, "<f8")
    # Chunks without data are in the row above.
    for (data,) in database.rows("SELECT data FROM chunks WHERE device = ? AND length(data) > 0", device):
        entries = unpack(data, layout).entries
        total[entries.indices.numpy()] += entries.values.double().numpy()
    return total


def keep_contributions(
    connection: sqlite3.Connection, database: Database, layout: Layout, old: str, values: dict[str, int]
) -> None:
    """Add up the chunks that a compaction is about to delete, given as a condition, device by device."""
    sums: dict[int, Floats] = {}
    for device, data in connection.execute(f"SELECT device, data FROM chunks WHERE {old}", values):
        entries = unpack(data, layout).entries
        total = sums.setdefault(device, np.zeros(layout.parameters + layout.statistics))
        total[entries.indices.numpy()] += entries.values.double().numpy()
    for device, total in sums.items():
        for (data,) in database.rows("SELECT data FROM contributions WHERE device = ?", device):
            total += np.frombuffer(data, "<f8")
        row = (device, total.astype("<f8").tobytes())
        connection.execute("INSERT OR REPLACE INTO contributions VALUES (?, ?)", row)


def withdrawal(total: Floats, *, update: int, round_: int, version: int) -> Chunk | None:
    """An update that takes a contribution back; None if there is nothing to take back."""
    indices = np.flatnonzero(total)
    if not len(indices):
        return None
    entries = Sparse(torch.from_numpy(indices), torch.from_numpy(-total[indices].astype(np.float32)))
    return Chunk(update, 0, 1, round_, round_ - 1, version, 0.0, entries, value_bits=WHOLE)
