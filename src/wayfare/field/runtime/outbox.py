"""A device's durable state: its models, its memory and its open update.

Every method that changes something is one transaction. The process may be killed between any two of them.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Floats
from wayfare.codec.pieces import Piece
from wayfare.codec.wire import Layout
from wayfare.control.auto_weight import Experience
from wayfare.device import DeviceState, begin_device, receive
from wayfare.errors import InvariantError, RunFolderError
from wayfare.field.runtime.database import Database, tree_bytes, tree_of, vector_bytes, vector_of
from wayfare.field.runtime.messages import Chunk, joined, split, split_coded, unpack
from wayfare.field.runtime.stores import check_identity
from wayfare.methods import NO_STATE, Method, State
from wayfare.sparsify import Sparse

_FORMAT = 3
_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE vectors (name TEXT PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE updates (
    number INTEGER PRIMARY KEY, round INTEGER NOT NULL, chunks INTEGER NOT NULL, open INTEGER NOT NULL);
CREATE TABLE chunks (
    number INTEGER NOT NULL, chunk INTEGER NOT NULL, digest TEXT NOT NULL, data BLOB,
    outcome TEXT CHECK (outcome IN ('recorded', 'returned')), PRIMARY KEY (number, chunk))
"""
_VECTORS = ("base", "memory", "local", "model", "velocity")
# The states of the method's parts, each a tree in one row.
_TREES = ("memory_state", "local_state")


@dataclass(frozen=True, slots=True)
class OpenUpdate:
    """An update with chunks that are neither confirmed nor returned."""

    number: int
    round: int
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    trained_round: int = 0  # the last trained round of the local model
    cut_round: int = 0  # of the last decided contact
    cut_s: float = 0.0  # its time by the machine's clock
    takes_model: bool = True  # whether that contact ends with a download
    cut_short: bool = False  # whether it gets the previous model, because it ended too early for the new one
    finished_round: int = 0  # of the last complete exchange
    version: int | None = 0  # of the global model; None: not a version of the server
    last_update: int = 0


class Outbox:
    """The store of a device. Hold `lock` while reading several related values."""

    def __init__(
        self,
        file: Path,
        initial: Tensor,
        method: Method,
        *,
        layout: Layout,
        budget_joules: float,
        identity: Mapping[str, Any],
        audit: bool = False,
    ) -> None:
        self.file = file
        self._layout, self._method = layout, method
        self._database = Database(file, _SCHEMA, _FORMAT, {2: _same_tables})
        self._all = self._database.rows
        self.lock = self._database.lock
        with self._database.transaction() as connection:
            found = dict(connection.execute("SELECT name, value FROM facts"))
            if not found:
                zero = torch.zeros_like(initial)
                self._vectors = {"base": initial, "memory": zero, "local": initial, "model": initial}
                if method.local.momentum:
                    self._vectors["velocity"] = zero
                self.progress = Progress()
                self._state = begin_device(initial, zero, budget_joules, method)
                self._advance()
                self._keep(*self._vectors, *_TREES)
                self.learned: Floats | None = np.zeros(len(initial)) if audit else None
                self._keep_learned()
            else:
                known = json.loads(found["identity"])
                if not isinstance(known, str):  # format 2 had only a hash of the whole scenario
                    check_identity(file, known, identity)
                rows = dict(connection.execute("SELECT name, data FROM vectors"))
                self._vectors = {name: vector_of(rows[name]) for name in _VECTORS if name in rows}
                self.learned = np.frombuffer(rows["learned"], "<f8").copy() if "learned" in rows else None
                self.progress = Progress(**json.loads(found["progress"]))
                trees = {name: tree_of(rows[name]) for name in _TREES}
                self._state = _state_of({**json.loads(found["state"]), **trees}, self._vectors)
            self._set("identity", identity)
        if any(len(vector) != len(initial) for vector in self._vectors.values()):
            raise RunFolderError(f"{file}: contains models of another size")

    # Reading.

    @property
    def state(self) -> DeviceState:
        """The device of Algorithm 1; ``received`` is the base against which its learning counts."""
        return self._state

    @property
    def local(self) -> Tensor:
        """The local model as trained so far; never changed in place."""
        return self._vectors["local"]

    @property
    def model(self) -> Tensor:
        """The global model of `progress.version`, or the initial one."""
        return self._vectors["model"]

    @property
    def velocity(self) -> Tensor | None:
        """The velocity of the local rule's momentum, if any; never changed in place."""
        return self._vectors.get("velocity")

    def open_update(self) -> OpenUpdate | None:
        row = self._all("SELECT number, round, chunks FROM updates WHERE open ORDER BY number")
        return OpenUpdate(*row[0]) if row else None

    def pending(self, number: int) -> list[tuple[int, bytes]]:
        """Unconfirmed chunks, the most important first."""
        return self._all("SELECT chunk, data FROM chunks WHERE number = ? AND outcome IS NULL ORDER BY chunk", number)

    def outcomes(self) -> list[tuple[int, int, str, str | None]]:
        """Every chunk ever made: update, chunk, digest and outcome (None: unconfirmed)."""
        return self._all("SELECT number, chunk, digest, outcome FROM chunks ORDER BY number, chunk")

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Lock the store while reading values and writing results derived from them."""
        with self.lock:
            yield

    # Changing.

    def trained(self, start: Tensor, result: Tensor, trained_round: int, velocity: Tensor | None = None) -> None:
        """Add the trainer's change from ``start`` to ``result``, also on top of a model received meanwhile."""
        with self._transaction():
            if self.learned is not None:
                self.learned = self.learned + (start.double() - result.double()).numpy()
                self._keep_learned()
            if velocity is not None and self.local is start:
                # The velocity of an older model no longer counts.
                self._vectors["velocity"] = velocity
                self._keep("velocity")
            self._vectors["local"] = result if self.local is start else self.local + (result - start)
            self._keep("local")
            self._advance(trained_round=trained_round)

    def cut(
        self,
        state: DeviceState,
        sent: Sparse | None,
        *,
        round_: int,
        next_update: int,
        chunk_bytes: int,
        coded: Sequence[Piece] = (),
        cut_short: bool = False,
    ) -> OpenUpdate | None:
        """Put the chunks of a contact into the outbox. None sends nothing, keeps everything and skips the download.

        ``coded`` are the messages of a coded upload, with exact values; decoded they give ``sent``.
        """
        with self._transaction() as connection:
            if self.open_update() is not None:
                raise InvariantError("a new update was cut while another is open")
            if sent is None:
                self._state = replace(state, received=self._vectors["base"], memory=self._vectors["memory"])
                self._advance(cut_round=round_, cut_s=time.time(), takes_model=False)
                return None
            fit = self._layout, chunk_bytes
            pieces = split_coded(coded, *fit) if coded else split(sent, *fit)
            number = max(self.progress.last_update + 1, next_update) if pieces else self.progress.last_update
            for place, piece in enumerate(pieces):
                data = Chunk(
                    update=number,
                    chunk=place,
                    chunks=len(pieces),
                    round=round_,
                    received_round=state.received_round,
                    base_version=self.progress.version or 0,
                    spent_joules=state.spent_joules,
                    entries=piece.kept,
                    value_bits=piece.value_bits,
                ).packed(self._layout)
                connection.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, NULL)", (number, place, digest(data), data))
            if pieces:
                connection.execute("INSERT INTO updates VALUES (?, ?, ?, 1)", (number, round_, len(pieces)))
            # Everything learned is now in the update or in the memory: continue from the local model.
            # A memory of zeros may be one expanded zero.
            self._vectors |= {"base": self.local, "memory": state.memory.contiguous()}
            self._state = replace(state, received=self.local, memory=self._vectors["memory"])
            self._keep("base", "memory", *_TREES)
            self._advance(
                cut_round=round_, cut_s=time.time(), takes_model=True, cut_short=cut_short, last_update=number
            )
            return OpenUpdate(number, round_, len(pieces)) if pieces else None

    def start_over(self, round_: int) -> None:
        """Discard what was learned and not delivered, because the model is outdated; then download the current one."""
        with self._transaction():
            if self.open_update() is not None:
                raise InvariantError("the device starts over while an update is open")
            if self.learned is not None:
                lost = self._vectors["memory"].double() + (self._vectors["base"].double() - self.local.double())
                self.learned = self.learned - lost.numpy()
                self._keep_learned()
            base, zero = self._vectors["base"], torch.zeros_like(self._vectors["base"])
            self._vectors |= {"local": base, "memory": zero}
            fresh = begin_device(base, zero, self._state.budget_joules, self._method)
            self._state = replace(
                self._state, memory=zero, memory_state=fresh.memory_state, local_state=fresh.local_state
            )
            self._keep("local", "memory", *_TREES)
            self._advance(cut_round=round_, cut_s=time.time(), takes_model=True, cut_short=False)

    def settle(self, number: int, recorded: Collection[int]) -> bool:
        """Mark chunks as recorded; return whether the update is completely delivered."""
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE chunks SET outcome = 'recorded', data = NULL"
                " WHERE number = ? AND chunk = ? AND outcome IS NULL",
                [(number, chunk) for chunk in recorded],
            )
            (left,) = connection.execute(
                "SELECT count(*) FROM chunks WHERE number = ? AND outcome IS NULL", (number,)
            ).fetchone()
            if not left:
                connection.execute("UPDATE updates SET open = 0 WHERE number = ?", (number,))
            return not left

    def take_back(self, number: int, recorded: Collection[int]) -> None:
        """After the server sealed an update: return its unrecorded entries to the memory."""
        with self._transaction() as connection:
            self.settle(number, recorded)
            returned = [unpack(data, self._layout).entries for _, data in self.pending(number)]
            connection.execute(
                "UPDATE chunks SET outcome = 'returned', data = NULL WHERE number = ? AND outcome IS NULL", (number,)
            )
            connection.execute("UPDATE updates SET open = 0 WHERE number = ?", (number,))
            if returned and self._method.server.takes == "models":
                # The server cannot use part of a model. Everything learned is still in the local model.
                self._vectors["base"] = self.model
                self._state = replace(self._state, received=self.model)
                self._keep("base")
            elif returned:
                memory, memory_state = self._method.memory.take_back(
                    self._state.memory, joined(returned), self._state.memory_state
                )
                self._vectors["memory"] = memory.contiguous()
                self._state = replace(self._state, memory=self._vectors["memory"], memory_state=memory_state)
                self._keep("memory", "memory_state")
            self._advance()

    def receive(self, model: Tensor, version: int, round_: int, handed: State = NO_STATE) -> None:
        """Continue from the global model, with the learning since the last cut and the state handed down with it."""
        with self._transaction():
            if self.open_update() is not None:
                raise InvariantError("a model was received while an update is open")
            since = self._vectors["base"] - self.local
            local = model - since if bool(since.any()) else model
            self._vectors |= {"base": model, "local": local, "model": model}
            if self.velocity is not None:
                self._vectors["velocity"] = torch.zeros_like(model)
            self._state = receive(self._state, model, round_, self._method, handed)
            self._keep(*(name for name in self._vectors if name != "memory"), "local_state")
            self._advance(version=version, finished_round=round_)

    def finish(self, round_: int) -> None:
        with self._transaction():
            self._advance(finished_round=round_)

    def forget_version(self) -> None:
        """The global model is not the server's: the next download must be whole."""
        with self._transaction():
            self._advance(version=None)

    def close(self) -> None:
        self._database.close()

    # Storage.

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Memory follows the file: if the commit fails, nothing has changed."""
        with self.lock:
            before = self.progress, self._state, dict(self._vectors), self.learned
            try:
                with self._database.transaction() as connection:
                    yield connection
            except BaseException:
                self.progress, self._state, self._vectors, self.learned = before
                raise

    def _advance(self, **changes: Any) -> None:
        self.progress = replace(self.progress, **changes)
        self._set("progress", asdict(self.progress))
        self._set("state", _plain(self._state))

    def _set(self, name: str, value: object) -> None:
        self._database.connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    def _keep(self, *names: str) -> None:
        self._database.connection.executemany(
            "INSERT OR REPLACE INTO vectors VALUES (?, ?)",
            [(name, self._bytes(name)) for name in names],
        )

    def _bytes(self, name: str) -> bytes:
        if name in self._vectors:
            return vector_bytes(self._vectors[name])
        return tree_bytes(self._state.memory_state if name == "memory_state" else self._state.local_state)

    def _keep_learned(self) -> None:
        if self.learned is not None:
            self._database.connection.execute(
                "INSERT OR REPLACE INTO vectors VALUES ('learned', ?)", (self.learned.astype("<f8").tobytes(),)
            )


def _same_tables(connection: sqlite3.Connection) -> None:
    """Format 3 has the tables of format 2; only the identity changed, which the store checks itself."""


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _plain(state: DeviceState) -> dict[str, Any]:
    """The scalar fields of a device's state, without vectors and trees."""
    others = ("received", "memory", *_TREES)
    numbers = {field.name: getattr(state, field.name) for field in fields(state) if field.name not in others}
    numbers["experience"] = asdict(state.experience)
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in numbers.items()}


def _state_of(others: dict[str, Any], vectors: dict[str, Tensor]) -> DeviceState:
    experience = Experience.of(others.pop("experience"))
    return DeviceState(received=vectors["base"], memory=vectors["memory"], experience=experience, **others)
