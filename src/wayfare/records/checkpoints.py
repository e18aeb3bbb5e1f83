"""Checkpoints on disk: one file each, written atomically and verified by its checksum."""

from __future__ import annotations

import hashlib
import pickle
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch

from wayfare.files import DRAFT_SUFFIX, open_atomically
from wayfare.simulator import SimulationState, state_from_plain

_SUFFIX = ".checkpoint"
_CHUNK_BYTES = 1 << 20
# Exceptions that reading a damaged file can raise.
_UNREADABLE = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, RuntimeError, TypeError, ValueError),
    pickle.UnpicklingError,
)


class DamagedError(Exception):
    """A checkpoint or the records before it differ from what was written; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    round: int
    file: str
    size_bytes: int
    sha256: str


def write_checkpoint(folder: Path, state: SimulationState) -> Checkpoint:
    """Write a checkpoint atomically and durably; an OSError leaves everything unchanged."""
    name = f"round-{state.round:08}{_SUFFIX}"
    with open_atomically(folder / name) as stream:
        summed = _Summed(stream)
        torch.save(state.plain(), cast(IO[bytes], summed))
        if summed.failed is not None:
            raise summed.failed
    return Checkpoint(round=state.round, file=name, size_bytes=summed.size_bytes, sha256=summed.sha256.hexdigest())


def read_checkpoint(folder: Path, known: Checkpoint) -> SimulationState:
    """The state of a checkpoint; DamagedError if the file is not the one that was written."""
    # A name in damaged records must not lead out of the folder.
    file = folder / Path(known.file).name
    try:
        size_bytes = file.stat().st_size
        if size_bytes != known.size_bytes:
            raise DamagedError(f"{file.name} has {size_bytes:,} bytes instead of {known.size_bytes:,}")
        sha256 = hashlib.sha256()
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                sha256.update(chunk)
        if sha256.hexdigest() != known.sha256:
            raise DamagedError(f"the checksum of {file.name} is wrong")
        # Memory-mapped, so that a fleet larger than memory is read device by device.
        state = state_from_plain(torch.load(file, map_location="cpu", weights_only=True, mmap=True))
    except OSError as error:
        raise DamagedError(f"{file.name} cannot be read: {error.strerror or error}") from None
    except _UNREADABLE as error:
        raise DamagedError(f"{file.name} contains no state: {error}") from None
    if state.round != known.round:
        raise DamagedError(f"{file.name} belongs to round {state.round}, not {known.round}")
    return state


def delete_unlisted_checkpoints(folder: Path, database: sqlite3.Connection) -> None:
    """Delete checkpoint files that the records do not list, and drafts of interrupted writes."""
    kept = {file for (file,) in database.execute("SELECT file FROM checkpoints")}
    for file in [*folder.glob(f"*{_SUFFIX}"), *folder.glob(f"*{_SUFFIX}.*{DRAFT_SUFFIX}")]:
        if file.name not in kept:
            file.unlink(missing_ok=True)


class _Summed:
    """A stream that counts bytes and computes their checksum.

    It keeps an error for later, because `torch.save` writes from C++, through which no exception may pass.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.sha256, self.size_bytes = stream, hashlib.sha256(), 0
        self.failed: OSError | None = None

    def write(self, content: Any) -> int:
        self.sha256.update(content)
        self.size_bytes += len(content)
        if self.failed is None:
            try:
                self._stream.write(content)
            except OSError as error:
                self.failed = error
        return len(content)

    def flush(self) -> None:
        self._stream.flush()
