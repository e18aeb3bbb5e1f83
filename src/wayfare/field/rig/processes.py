"""Server and devices as processes: start, kill and restart."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from wayfare.errors import FieldError, WayfareError
from wayfare.field.runtime.logs import log_to_stderr
from wayfare.forking import quick_context
from wayfare.signals import stop_at_signals

# Processes are killed and started often.
_context = quick_context("wayfare.field.rig.demo")


class Member:
    """The server or a device in a process that can be killed and restarted any number of times."""

    def __init__(self, name: str, part: Callable[[threading.Event], None], log: Path) -> None:
        self.name = name
        self._part, self._log = part, log
        self._process: BaseProcess | None = None

    def start(self) -> None:
        args = self.name, self._part, self._log
        process = _context.Process(target=_live, args=args, name=self.name, daemon=True)
        process.start()
        self._process = process

    def kill(self) -> None:
        # A concurrent check must not report this kill as an error.
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()

    def check(self) -> bool:
        """Whether the process runs; False after a normal exit. Raises FieldError if it failed."""
        if self._process is None:
            return False
        code = self._process.exitcode
        if code is None:
            return True
        if code != 0:
            raise FieldError(f"{self.name} exited with {code}: {_last_line(self._log)} (full log: {self._log})")
        return False

    def stop(self, timeout_s: float = 20.0) -> None:
        if self._process is None:
            return
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(timeout_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            raise FieldError(f"{self.name} did not exit within {timeout_s:g} s; see {self._log}")
        self.check()
        self._process = None


def _live(name: str, part: Callable[[threading.Event], None], log: Path) -> None:
    import torch

    torch.set_num_threads(1)
    with log.open("a") as opened:
        os.dup2(opened.fileno(), sys.stdout.fileno())
        os.dup2(opened.fileno(), sys.stderr.fileno())
    log_to_stderr(name)
    stop = stop_at_signals()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        part(stop)
    except WayfareError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _end_with_parent(parent: int) -> None:
    """Exit when the parent process is killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else "the log is empty"
