"""Copies of a server's state while it runs, and their restoration."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from wayfare.errors import FieldError, InputError
from wayfare.field.runtime.ledger import FILE
from wayfare.field.runtime.released import released_files
from wayfare.records.lock import INSIDE, RunLock

_ATTEMPTS = 10


def back_up(state: Path, copy: Path) -> int:
    """Copy a consistent state into a new folder; return its version. The server may go on meanwhile.

    SQLite copies the ledger as of one moment. If the server deletes a model file before it is copied, everything is
    copied again.
    """
    if not (state / FILE).is_file():
        raise InputError(f"{state}: no ledger; give the folder of the server's state")
    if copy.exists() and (not copy.is_dir() or any(each.name != INSIDE for each in copy.iterdir())):
        raise InputError(f"{copy}: must be a new or empty folder")
    copy.mkdir(parents=True, exist_ok=True)
    for _ in range(_ATTEMPTS):
        try:
            return _copied(state, copy)
        except FileNotFoundError:
            continue
    raise FieldError(f"{state}: model files kept changing during {_ATTEMPTS} attempts; try again")


def restore(copy: Path, state: Path) -> int:
    """Make a backup the state of a server that is not running; return its version."""
    with RunLock(state, inside=True):
        return back_up(copy, state)


def _copied(source: Path, target: Path) -> int:
    with closing(sqlite3.connect(source / FILE, timeout=30)) as old, closing(sqlite3.connect(target / FILE)) as new:
        old.backup(new)
        (found,) = new.execute("PRAGMA integrity_check").fetchone()
        if found != "ok":
            raise FieldError(f"{source / FILE}: damaged: {found}")
        named = new.execute("SELECT file, sha256 FROM models").fetchall()
        released = released_files(dict(new.execute("SELECT name, value FROM facts")))
        (version,) = new.execute("SELECT coalesce(max(version), 0) FROM rounds").fetchone()
    for name, sha256 in named:
        shutil.copyfile(source / name, target / name)
        if hashlib.sha256((target / name).read_bytes()).hexdigest() != sha256:
            raise FieldError(f"{source / name}: damaged: its checksum differs")
    for name in released:
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, target / name)
    return int(version)
