"""The bytes that a device may send and receive in a day, for tariffs with a limit."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from wayfare.errors import FieldError
from wayfare.files import write_atomically

_SAVE_EVERY_BYTES = 1 << 20


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
            raise FieldError(f"the {self._limit_bytes / 1e6:g} MB of this day are used up")

    def add(self, size_bytes: int) -> None:
        self._used = self.used_bytes + size_bytes
        if self._used - self._saved >= _SAVE_EVERY_BYTES:
            self.save()

    def save(self) -> None:
        if self._used != self._saved and self._limit_bytes < math.inf:
            write_atomically(self._file, json.dumps([self._day, self._used]), durable=False)
        self._saved = self._used

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self._clock()))


def unlimited() -> DailyBytes:
    """Counts without a limit and without a file."""
    return DailyBytes(Path(os.devnull))
