"""A SQLite file that survives a power loss: committed data are on disk."""

from __future__ import annotations

import io
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from wayfare.errors import RunFolderError, StorageError
from wayfare.methods import State
from wayfare.methods.states import mapped

# A large transaction leaves a log of at most this size behind.
_JOURNAL_BYTES = 16 << 20

Migration: TypeAlias = Callable[[sqlite3.Connection], None]
NO_MIGRATIONS: Mapping[int, Migration] = {}


class Database:
    """One connection, used by one thread at a time, with explicit transactions."""

    def __init__(
        self,
        file: Path,
        schema: str,
        format_: int,
        migrations: Mapping[int, Migration] = NO_MIGRATIONS,
        page_bytes: int = 4 << 10,
    ) -> None:
        """``migrations`` lead from a format to the next one, in the transaction that opens the file.

        An existing file keeps the size of its pages.
        """
        self.lock = threading.RLock()
        self._file, self._depth = file, 0
        file.parent.mkdir(parents=True, exist_ok=True)
        self.connection = sqlite3.connect(file, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            self.connection.execute(f"PRAGMA page_size = {page_bytes}")
            # Only before the first table: free pages can be returned to the file system later.
            self.connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            # A commit returns when it is on disk. Readers in other processes never wait for a writer.
            self.connection.execute("PRAGMA journal_mode = WAL")
            self.connection.execute("PRAGMA synchronous = FULL")
            self.connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}")
            with self.transaction():
                (found,) = self.connection.execute("PRAGMA user_version").fetchone()
                while found in migrations:
                    migrations[found](self.connection)
                    found += 1
                    self.connection.execute(f"PRAGMA user_version = {found}")
                if found not in (0, format_):
                    raise RunFolderError(f"{file}: has format {found}, this Wayfare reads format {format_}")
                if found == 0:
                    for statement in schema.split(";"):
                        self.connection.execute(statement)
                    self.connection.execute(f"PRAGMA user_version = {format_}")
        except sqlite3.DatabaseError as error:
            self.connection.close()
            raise RunFolderError(f"{file}: cannot be opened: {error}") from None
        except BaseException:
            self.connection.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """An atomic transaction; a nested one joins the outer one."""
        with self.lock:
            if self._depth:
                yield self.connection
                return
            self.connection.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield self.connection
                self._commit()
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    def rows(self, query: str, *values: object) -> list[Any]:
        with self.lock:
            return self.connection.execute(query, values).fetchall()

    def _commit(self) -> None:
        try:
            self.connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise StorageError(f"{self._file}: {error}; earlier commits are safe") from None

    def close(self) -> None:
        with self.lock:
            self.connection.close()


def vector_bytes(vector: Tensor) -> bytes:
    return vector.detach().cpu().numpy().astype("<f4", copy=False).tobytes()


def vector_of(data: bytes) -> Tensor:
    """Decode a vector into new memory."""
    return torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))


def tree_bytes(state: State) -> bytes:
    buffer = io.BytesIO()
    torch.save(mapped(state, lambda vector: vector.detach().cpu().clone()), buffer)
    return buffer.getvalue()


def tree_of(data: bytes) -> State:
    """Decode a tree of vectors and numbers; nothing else is allowed."""
    state: State = torch.load(io.BytesIO(data), weights_only=True)
    return state
