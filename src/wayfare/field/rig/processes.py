"""Server and devices as processes of their own: started, killed, started again."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from wayfare.errors import FieldError, WayfareError
from wayfare.field.runtime.logs import log_to_stderr
from wayfare.signals import stop_at_signals

# A process is forked from one that has imported everything: PyTorch takes seconds, and processes are killed often.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["wayfare.field.rig.demo"])


class Member:
    """The server or a device in a process, which may be killed and started as often as one likes."""

    def __init__(self, name: str, part: Callable[[threading.Event], None], log: Path) -> None:
        self.name = name
        self._part, self._log = part, log
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        process: Any = _context.Process(target=_live, args=(self.name, self._part, self._log), name=self.name)
        process.daemon = True
        process.start()
        self._process = process

    def kill(self) -> None:
        # Whoever checks on it meanwhile is not to take this for an error of its own.
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()

    def check(self) -> bool:
        """Whether it runs; False when it ended as it should. An error of its own is one here."""
        if self._process is None:
            return False
        code = self._process.exitcode
        if code is None:
            return True
        if code != 0:
            raise FieldError(f"{self.name} ended with {code}: {_last_line(self._log)} (all of it in {self._log})")
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
            raise FieldError(f"{self.name} did not end within {timeout_s:g} s; its log is {self._log}")
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
    """No process is left behind when whoever started them is killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1] if lines else "it said nothing"
