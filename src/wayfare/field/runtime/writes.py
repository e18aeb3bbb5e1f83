"""Bounded writes: vectors of a store as files, and a budget that spares flash memory.

SQLite writes a large blob twice, first to its log. So large vectors are files beside the store. A file is on disk
before the transaction that names it commits, and never changes. Equal vectors share a file.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from wayfare.errors import RunFolderError
from wayfare.field.runtime.database import Database, vector_bytes, vector_of
from wayfare.files import sync_folder

_SUFFIX = ".vector"
INLINE_BYTES = 256 << 10
_DAY_S = 86_400.0
# The shares of a day's bytes that may be written at once, and evenly over the day. The rest covers an overdraft.
_AT_ONCE, _SPREAD = 0.08, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLimits:
    """How often a device saves what it trains, and how much it writes in a day."""

    every_s: float = 30.0  # the most training that a power cut costs, as far as the bytes suffice
    daily_bytes: float = 20e9


EVERYTHING = WriteLimits(every_s=0.0, daily_bytes=float("inf"))


class WriteBudget:
    """A bucket of bytes that fills evenly over the day. It may be overdrawn: an exchange that has begun must end."""

    def __init__(self, limits: WriteLimits, clock: Callable[[], float] = time.time) -> None:
        self._limits, self._clock = limits, clock
        self._burst = _AT_ONCE * limits.daily_bytes
        self.left_bytes, self._at_s = self._burst, clock()
        self._saved_s = clock()
        self.written_bytes = 0

    def resume(self, left_bytes: float, at_s: float) -> None:
        """Continue the budget of an earlier process."""
        self.left_bytes, self._at_s = left_bytes, min(at_s, self._clock())
        self._fill()

    def as_fact(self) -> tuple[float, float]:
        return self.left_bytes, self._at_s

    def may_save(self, size_bytes: int) -> bool:
        """Whether training is saved now. It leaves half of the bytes to exchanges."""
        self._fill()
        now_s = self._clock()
        is_due = now_s - self._saved_s >= self._limits.every_s or now_s < self._saved_s
        return is_due and self.left_bytes - size_bytes >= self._burst / 2

    def may_exchange(self) -> bool:
        self._fill()
        return self.left_bytes > 0

    def saved(self) -> None:
        self._saved_s = self._clock()

    def wrote(self, size_bytes: int) -> None:
        self.written_bytes += size_bytes
        self.left_bytes -= size_bytes

    def _fill(self) -> None:
        now_s = self._clock()
        if self._burst < float("inf"):
            gained = max(now_s - self._at_s, 0.0) * _SPREAD * self._limits.daily_bytes / _DAY_S
            self.left_bytes = min(self.left_bytes + gained, self._burst)
        self._at_s = now_s


class VectorStore:
    """The vectors of a store. Small ones are rows; large ones are files, written once and deleted when unused."""

    def __init__(self, database: Database, store: Path, budget: WriteBudget) -> None:
        self._database, self._store, self._budget = database, store, budget
        self.stored: Mapping[str, tuple[Tensor | None, str]] = {}  # the names that are files, and their vectors
        with database.transaction() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, file TEXT NOT NULL)")

    def vectors(self, names: Sequence[str], entries: int) -> dict[str, Tensor]:
        """Read the vectors that exist. Those that share a file are one tensor."""
        files = dict(self._database.rows("SELECT name, file FROM files"))
        found: dict[str, Tensor] = {}
        of_file: dict[str, Tensor] = {}
        for name, data in self.rows(*names).items():
            file, vector = files.get(name), vector_of(data) if data else torch.zeros(entries)
            if file is not None:
                vector = of_file.setdefault(file, vector)
                self.stored = {**self.stored, name: (vector, file)}
            found[name] = vector
        return found

    def rows(self, *names: str) -> dict[str, bytes]:
        """Read some rows as bytes, in the order given."""
        rows = dict(self._database.rows("SELECT name, data FROM vectors"))
        for name, file in self._database.rows("SELECT name, file FROM files"):
            self.stored = {**self.stored, name: self.stored.get(name, (None, file))}
            if name in names:
                try:
                    rows[name] = self._store.with_name(file).read_bytes()
                except OSError as error:
                    raise RunFolderError(f"{self._store}: its file {file} cannot be read: {error.strerror}") from None
        return {name: rows[name] for name in names if name in rows}

    def write(self, name: str, vector: Tensor) -> None:
        """Write a vector, or refer to the file that holds it already. Zeros take no bytes."""
        if self.stored.get(name, (None,))[0] is vector:
            return
        known = next((file for found, file in self.stored.values() if found is vector), None)
        if known is not None:
            self._refer(name, vector, known)
        else:
            self.write_bytes(name, vector_bytes(vector) if bool(vector.any()) else b"", vector)

    def write_bytes(self, name: str, data: bytes, vector: Tensor | None = None) -> None:
        if len(data) > INLINE_BYTES:
            self._refer(name, vector, self._new_file(data))
            return
        connection = self._database.connection
        connection.execute("INSERT OR REPLACE INTO vectors VALUES (?, ?)", (name, data))
        connection.execute("DELETE FROM files WHERE name = ?", (name,))
        self.stored = {known: value for known, value in self.stored.items() if known != name}
        # First to the log of SQLite, then to its file.
        self._budget.wrote(2 * len(data))

    def delete_unused(self) -> None:
        used = {file for _, file in self.stored.values()}
        for file in self._store.parent.glob(f"{self._store.name}-*{_SUFFIX}"):
            if file.name not in used:
                file.unlink(missing_ok=True)

    def _refer(self, name: str, vector: Tensor | None, file: str) -> None:
        connection = self._database.connection
        connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (name, file))
        connection.execute("DELETE FROM vectors WHERE name = ?", (name,))
        self.stored = {**self.stored, name: (vector, file)}

    def _new_file(self, data: bytes) -> str:
        """Write a durable file and return its name."""
        name = f"{self._store.name}-{secrets.token_hex(8)}{_SUFFIX}"
        with self._store.with_name(name).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._store.parent)
        self._budget.wrote(len(data))
        return name
