"""Whether a device may train now: parked, charging, cool enough."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from wayfare.errors import FieldError

_log = logging.getLogger("wayfare.field")
_TIMEOUT_S = 10.0
# The shell's exit statuses for a command that is not executable, or not found.
_NOT_RUN = (126, 127)


def always() -> bool:
    """The default: a device may train at any time."""
    return True


@dataclass(slots=True)
class Permission:
    """Asks a hook from time to time, because it may be slow. A hook that fails allows nothing."""

    may_train: Callable[[], bool] = always
    every_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    _asked_s: float = field(default=float("-inf"), init=False)
    _allowed: bool = field(default=True, init=False)

    def __call__(self) -> bool:
        if self.may_train is always:
            return True
        if self.clock() - self._asked_s >= self.every_s:
            before = self._allowed
            try:
                self._allowed = bool(self.may_train())
            except Exception as error:
                _log.warning("may_train failed; the device does not train", extra={"reason": repr(error)})
                self._allowed = False
            self._asked_s = self.clock()
            if self._allowed != before:
                _log.info("training %s", "resumes" if self._allowed else "pauses")
        return self._allowed


def by_command(command: str) -> Callable[[], bool]:
    """A hook that runs a command: exit status 0 means that the device may train."""

    def may_train() -> bool:
        # Its output is not a log line.
        ran = subprocess.run(command, shell=True, timeout=_TIMEOUT_S, check=False, capture_output=True, text=True)
        if ran.returncode in _NOT_RUN:
            raise FieldError(f"{command}: {ran.stderr.strip()}")
        return ran.returncode == 0

    return may_train
