"""Atomic writes of files and folders, and locks on files.

Content goes into a draft in the same folder, which is renamed when it is complete. Every draft has a unique name, so
concurrent writers never share one, and the last to finish wins. Only a killed process leaves a draft behind:
`.<name>.<random>.new`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from wayfare.errors import InputError, RunFolderError

DRAFT_SUFFIX = ".new"


def require_folder(folder: Path) -> None:
    """Raise RunFolderError if there is no such folder."""
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: no such folder")


@contextmanager
def writing(path: Path | str, rule: str = "cannot write here") -> Iterator[None]:
    """Turn an OSError in the block into an InputError that names the path."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {rule}: {error.strerror or error}") from None


def write_atomically(path: Path, content: bytes | str, *, mode: int = 0o666, durable: bool = True) -> None:
    """Write a file, text as UTF-8. After an error, the old file remains."""
    with open_atomically(path, mode=mode, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def open_atomically(path: Path, *, mode: int = 0o666, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces `path` when the block ends without an error.

    A durable file survives a power cut from then on. The umask applies to `mode`.
    """
    draft = _draft_of(path)
    try:
        # The mode applies from creation, so that others can never read a secret.
        with open(draft, "xb", opener=partial(os.open, mode=mode)) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


@contextmanager
def make_folder_atomically(path: Path, *, mode: int = 0o777) -> Iterator[Path]:
    """Yield an empty folder that is renamed to `path` when the block ends. An existing `path` must be empty."""
    draft = _draft_of(path)
    draft.mkdir(mode=mode, parents=True)
    try:
        yield draft
        if path.exists():  # Windows cannot rename over an existing folder, even an empty one
            path.rmdir()
        draft.rename(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk: a new file name is durable only after its folder is."""
    if os.name == "nt":  # Windows cannot open folders, and needs no flush
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def lock(opened: int, *, wait: bool = False, shared: bool = False) -> None:
    """Lock an open file, or raise BlockingIOError. The system unlocks it when the process ends, even if killed.

    Several processes may hold a shared lock. Windows has none, and needs none to protect a file that is in use.
    """
    if sys.platform == "win32":
        if shared:
            return
        import msvcrt

        # Lock a byte far beyond the content, so that others can still read the content.
        os.lseek(opened, 1 << 20, os.SEEK_SET)
        while True:
            try:
                msvcrt.locking(opened, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:  # LK_LOCK also gives up after ten seconds
                if not wait:
                    raise BlockingIOError from error
    else:
        import fcntl

        fcntl.flock(opened, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def _draft_of(path: Path) -> Path:
    return path.parent / f".{path.name}.{secrets.token_hex(4)}{DRAFT_SUFFIX}"
