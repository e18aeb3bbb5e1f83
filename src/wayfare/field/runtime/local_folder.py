"""The folder with the data of a device, which may grow at any time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from wayfare.learning.folders import FolderSamples
from wayfare.learning.tasks.local import LocalTask

_log = logging.getLogger("wayfare.field")
# Look for new files this often, and spend at most a fiftieth of the time on it.
RESCAN_S, _RESCAN_SHARE = 10.0, 0.02


class LocalFolder:
    def __init__(
        self,
        task: LocalTask,
        folder: Path,
        cache: Path,
        *,
        rescan_s: float = RESCAN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._rescan_s, self._clock = folder, rescan_s, clock
        self.samples = FolderSamples(folder, task.wanted, cache)
        self._next_s = clock() + rescan_s
        if not len(self.samples):
            _log.warning("no data yet; the device waits for files", extra={"folder": str(folder)})

    def has_changed(self) -> bool:
        """Look for new files if it is time; whether there are any."""
        began_s, changed = self._clock(), False
        if began_s >= self._next_s:
            try:
                changed = self.samples.rescan()
            except OSError as error:
                # A file that was removed meanwhile; the next scan finds out.
                _log.warning("%s: cannot be read: %s", self._path, error)
            self._next_s = self._clock() + max(self._rescan_s, (self._clock() - began_s) / _RESCAN_SHARE)
        return changed
