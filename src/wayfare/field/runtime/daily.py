"""Limits of a UTC day: the bytes that a device sends and receives, and the uploads that the server accepts."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from wayfare.codec.errors import WireError
from wayfare.errors import FieldError
from wayfare.field.runtime.database import Database
from wayfare.files import write_atomically

_SAVE_EVERY_BYTES = 1 << 20
_DAY_S = 86_400.0


class DailyBytes:
    """Counts the bytes of a UTC day, in a file beside the store. A kill may forget a megabyte."""

    def __init__(self, file: Path, limit_bytes: float = math.inf, clock: Callable[[], float] = time.time) -> None:
        self._file, self._limit_bytes, self._clock = file, limit_bytes, clock
        self._day, self._used, self._saved = self._today(), 0, 0
        try:
            day, used = json.loads(file.read_text(encoding="ascii"))
        except (OSError, ValueError, TypeError):
            return
        if day == self._day:
            self._used = self._saved = int(used)

    @property
    def used_bytes(self) -> int:
        if self._today() != self._day:
            self._day, self._used, self._saved = self._today(), 0, 0
        return self._used

    @property
    def is_used_up(self) -> bool:
        return self.used_bytes >= self._limit_bytes

    def check(self) -> None:
        """Raise FieldError if nothing is left today."""
        if self.is_used_up:
            raise FieldError(f"the limit of {self._limit_bytes / 1e6:g} MB per day is reached until midnight UTC")

    def add(self, size_bytes: int) -> None:
        self._used = self.used_bytes + size_bytes
        if self._used - self._saved >= _SAVE_EVERY_BYTES:
            self.save()

    def save(self) -> None:
        if self._used != self._saved and self._limit_bytes < math.inf:
            write_atomically(self._file, json.dumps([self._day, self._used]), durable=False)
        self._saved = self._used

    def _today(self) -> str:
        return _day_of(self._clock())


def unlimited() -> DailyBytes:
    """Counts without a limit and without a file."""
    return DailyBytes(Path(os.devnull))


class DailyUploads:
    """Counts the uploads of each device in a row of the ledger, while there is a limit."""

    def __init__(self, database: Database, limit: Callable[[], int | None], clock: Callable[[], float]) -> None:
        self._database, self._limit, self._clock = database, limit, clock
        self._day, self._made = "", dict[str, int]()

    def load(self) -> None:
        rows = self._database.rows("SELECT value FROM facts WHERE name = 'uploads'")
        self._day, self._made = json.loads(rows[0][0]) if rows else ("", {})

    def wait_s(self, device: int) -> float:
        """The time until a device may begin another upload."""
        limit, now_s = self._limit(), self._clock()
        if limit is None or self._day != _day_of(now_s) or self._made.get(str(device), 0) < limit:
            return 0.0
        return _DAY_S - now_s % _DAY_S

    def check(self, device: int) -> None:
        if self.wait_s(device) > 0:
            raise WireError(f"uploads_per_day = {self._limit()}: this device has none left until midnight UTC")

    def add(self, device: int) -> None:
        """Count an upload, in the transaction of the caller."""
        if self._limit() is None:
            return
        if (today := _day_of(self._clock())) != self._day:
            self._day, self._made = today, {}
        self._made[str(device)] = self._made.get(str(device), 0) + 1
        row = ("uploads", json.dumps([self._day, self._made]))
        self._database.connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", row)


def _day_of(now_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(now_s))
