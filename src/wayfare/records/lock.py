"""One process at a time writes a run.

The lock is a kernel lock on a file beside the run, so it ends with its process. The content of the file only names the
holder.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from wayfare.errors import RunFolderError
from wayfare.files import lock

# The name of a lock inside its folder.
INSIDE = "process.lock"
_log = logging.getLogger("wayfare")


class RunLock:
    """Held while a run is written; a second process gets an error that names the holder."""

    def __init__(self, folder: Path, *, inside: bool = False) -> None:
        """``inside``: the folder is all that a service may write."""
        self._run, self._file = folder, folder / INSIDE if inside else lock_file(folder)

    def __enter__(self) -> RunLock:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            while not self._take():
                pass
        except OSError as error:
            raise RunFolderError(f"{self._file.parent}: cannot write here: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        # Delete the file while the lock is held, so that no other process loses its lock file.
        self._file.unlink(missing_ok=True)
        self._held.close()

    def _take(self) -> bool:
        """Lock the file; False if another process deleted it meanwhile, so that it must be opened again."""
        with ExitStack() as unless_held:
            file = unless_held.enter_context(self._file.open("a+", encoding="utf-8"))
            try:
                lock(file.fileno())
            except BlockingIOError:
                rule = f"{_holder(file)} is writing this run; wait for it, or stop it first"
                raise RunFolderError(f"{self._run}: {rule}") from None
            found = os.fstat(file.fileno())
            if not self._file.exists() or not os.path.samestat(found, self._file.stat()):
                return False
            if found.st_size:
                _log.warning("%s: taking over from %s, which was killed", self._run, _holder(file))
            file.truncate(0)
            file.write(json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
            file.flush()
            self._held = file
            unless_held.pop_all()
        return True


def lock_file(folder: Path) -> Path:
    """The lock beside the folder of a run."""
    return folder.with_name(folder.name + ".lock")


def _holder(file: IO[str]) -> str:
    try:
        file.seek(0)
        holder = json.loads(file.read(4096))
        return f"process {int(holder['process'])} on {str(holder['host'])[:80]!r}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
