"""One process at a time writes a run.

The lock is the kernel's, on a file beside the run: whatever ends a process, its lock ends with it. The file only says
who holds it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from pathlib import Path

from wayfare.errors import RunFolderError
from wayfare.files import lock

_log = logging.getLogger("wayfare")


class RunLock:
    """Held while a run is written; a second process that wants it is told who has it."""

    def __init__(self, folder: Path) -> None:
        self._run, self._file = folder, folder.with_name(folder.name + ".lock")
        self._held: int | None = None

    def __enter__(self) -> RunLock:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            while self._held is None:
                self._held = self._take()
            os.ftruncate(self._held, 0)
            os.lseek(self._held, 0, os.SEEK_SET)
            os.write(self._held, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode())
        except OSError as error:
            self._close()
            raise RunFolderError(f"{self._file.parent}: cannot write here: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        # The file goes while the lock is held, so nobody else's is ever taken away.
        self._file.unlink(missing_ok=True)
        self._close()

    def _take(self) -> int | None:
        """The file, locked; None when it was taken away in between and is to be opened again."""
        opened = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock(opened)
            same = self._file.exists() and os.path.samestat(os.fstat(opened), self._file.stat())
        except BlockingIOError:
            holder = _holder(opened)
            os.close(opened)
            raise RunFolderError(f"{self._run}: is being written by {holder}; wait for it, or stop it first") from None
        except BaseException:
            os.close(opened)
            raise
        if not same:
            os.close(opened)
            return None
        if os.fstat(opened).st_size:
            _log.warning("%s: taking over from %s, which ended without a word", self._run, _holder(opened))
        return opened

    def _close(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


def _holder(opened: int) -> str:
    try:
        os.lseek(opened, 0, os.SEEK_SET)
        holder = json.loads(os.read(opened, 4096))
        return f"process {int(holder['process'])} on {str(holder['host'])[:80]!r}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
