"""Files and folders that appear whole or not at all, and locks on files.

Content goes into a draft beside its final name and takes that name when it is complete. Every draft has a name of its
own, so concurrent writers never share one, and the last to finish wins. Only a killed process leaves a draft behind:
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

from wayfare.errors import InputError

DRAFT_SUFFIX = ".new"


@contextmanager
def writing(path: Path | str, rule: str = "cannot write here") -> Iterator[None]:
    """Turn an OSError of the block into an InputError that names what was to be written."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {rule}: {error.strerror or error}") from None


def write_atomically(path: Path, content: bytes | str, *, mode: int = 0o666, durable: bool = True) -> None:
    """Write a file; a text becomes UTF-8. An error leaves what was there before."""
    with open_atomically(path, mode=mode, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def open_atomically(path: Path, *, mode: int = 0o666, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces `path` when the block ends without an error.

    A durable file survives a power cut from then on. `mode` is subject to the umask, as always.
    """
    draft = _draft_of(path)
    try:
        # The mode applies from creation: others cannot read a secret, not even for a moment.
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
    """Fill an empty folder that is called `path` when the block ends; a folder of that name must be empty."""
    draft = _draft_of(path)
    draft.mkdir(mode=mode, parents=True)
    try:
        yield draft
        if path.exists():  # Windows does not rename to a folder that is there, even if it is empty
            path.rmdir()
        draft.rename(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def sync_folder(folder: Path) -> None:
    """Bring names to the disk: a new name is safe only when its folder is."""
    if os.name == "nt":  # there folders cannot be opened, and need not be
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def lock(opened: int, *, wait: bool = False) -> None:
    """Lock an open file, or raise BlockingIOError; the system unlocks it when its process ends, however it ends."""
    if sys.platform == "win32":
        import msvcrt

        # A byte far behind what is written, which others may then still read.
        os.lseek(opened, 1 << 20, os.SEEK_SET)
        while True:
            try:
                msvcrt.locking(opened, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:  # also after ten seconds of waiting
                if not wait:
                    raise BlockingIOError from error
    else:
        import fcntl

        fcntl.flock(opened, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _draft_of(path: Path) -> Path:
    return path.parent / f".{path.name}.{secrets.token_hex(4)}{DRAFT_SUFFIX}"
