"""A device's durable state: its models, its memory and its open update.

Every method that changes something is one transaction. The process may be killed between any two of them. Only
training may stay in memory for a while, to spare flash memory (`wayfare.field.runtime.writes`). After a kill the device
continues from the local model on disk and repeats its steps. A cut saves the local model, so that no chunk depends on
training that a kill could lose.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from wayfare.arrays import Floats
from wayfare.codec.pieces import Piece
from wayfare.codec.wire import Layout
from wayfare.device import DeviceState, begin_device, receive
from wayfare.errors import InvariantError, RunFolderError
from wayfare.field.runtime.database import Database, tree_bytes, tree_of
from wayfare.field.runtime.messages import Chunk, joined, split, split_coded, unpack
from wayfare.field.runtime.stores import TREES, OpenUpdate, Progress, check_identity, device_state, plain_state
from wayfare.field.runtime.writes import EVERYTHING, VectorStore, WriteBudget, WriteLimits
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
# Closed updates whose chunks stay listed, without an audit.
_LISTED_UPDATES = 16


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
        writes: WriteLimits | None = None,
    ) -> None:
        """Without ``writes`` everything is saved at once."""
        self.file = file
        self.budget = self._budget = WriteBudget(writes or EVERYTHING)
        self._local_on_disk: Tensor | None = None
        self._layout, self._method = layout, method
        # Format 3 has the tables of format 2; only the identity changed, which is checked below.
        self._database = Database(file, _SCHEMA, _FORMAT, {2: lambda connection: None})
        self._all = self._database.rows
        self._vector_store = VectorStore(self._database, file, self._budget)
        self.lock = self._database.lock
        with self._database.transaction() as connection:
            found = dict(connection.execute("SELECT name, value FROM facts"))
            self._kept_round = 0  # of the local model on disk
            if not found:
                zero = torch.zeros_like(initial)
                self._vectors = {"base": initial, "memory": zero, "local": initial, "model": initial}
                if method.local.momentum:
                    self._vectors["velocity"] = zero
                self.progress = Progress()
                self._state = begin_device(initial, zero, budget_joules, method)
                self._advance()
                self.learned: Floats | None = np.zeros(len(initial)) if audit else None
                self._keep(*self._vectors, *TREES)
            else:
                known = json.loads(found["identity"])
                if not isinstance(known, str):  # format 2 had only a hash of the whole scenario
                    check_identity(file, known, identity)
                if "writes" in found:
                    self._budget.resume(*json.loads(found["writes"]))
                self._vectors = self._vector_store.vectors(_VECTORS, len(initial))
                rows = self._vector_store.rows(*TREES, "learned")
                self.learned = np.frombuffer(rows["learned"], "<f8").copy() if "learned" in rows else None
                self.progress = Progress(**json.loads(found["progress"]))
                self._kept_round = self.progress.trained_round
                trees = {name: tree_of(rows[name]) for name in TREES}
                self._state = device_state({**json.loads(found["state"]), **trees}, self._vectors)
            self._set("identity", identity)
        self._local_on_disk = self._vectors["local"]
        self._vector_store.delete_unused()
        for name, vector in self._vectors.items():
            if len(vector) != len(initial):
                raise RunFolderError(f"{file}: {name} has {len(vector)} entries, the model of this task {len(initial)}")

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
        with self.lock:
            if self.learned is not None:
                self.learned = self.learned + (start.double() - result.double()).numpy()
            if velocity is not None and self.local is start:
                # The velocity of an older model no longer counts.
                self._vectors["velocity"] = velocity
            self._vectors["local"] = result if self.local is start else self.local + (result - start)
            self.progress = replace(self.progress, trained_round=trained_round)
            if self._budget.may_save(4 * len(result) * (1 if self.velocity is None else 2)):
                self.save_training()

    def save_training(self) -> None:
        """Write the local model, if it is newer than the one on disk."""
        with self._transaction():
            if self._local_on_disk is not self.local:
                self._keep("local")
                self._advance()

    @property
    def may_exchange(self) -> bool:
        """Whether the bytes that this device may write in a day suffice for an exchange now."""
        return self._budget.may_exchange()

    @property
    def written_bytes(self) -> int:
        """Bytes written since the store was opened."""
        return self._budget.written_bytes

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
        added: Tensor | None = None,
    ) -> OpenUpdate | None:
        """Put the chunks of a contact into the outbox. None sends nothing, keeps everything and skips the download.

        ``coded`` are the messages of a coded upload, with exact values; decoded they give ``sent``.
        ``added`` is what a privacy rule added to the change, for the audit.
        """
        with self._transaction() as connection:
            if self.open_update() is not None:
                raise InvariantError("a new update was cut while another is open")
            if sent is None:
                self._state = replace(state, received=self._vectors["base"], memory=self._vectors["memory"])
                self._advance(cut_round=round_, cut_s=time.time(), takes_model=False)
                return None
            pieces = split_coded(coded, self._layout, chunk_bytes) if coded else split(sent, self._layout, chunk_bytes)
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
                self._budget.wrote(2 * len(data))
            if pieces:
                connection.execute("INSERT INTO updates VALUES (?, ?, ?, 1)", (number, round_, len(pieces)))
            if self.learned is None:
                for table in ("chunks", "updates"):
                    connection.execute(f"DELETE FROM {table} WHERE number <= ?", (number - _LISTED_UPDATES,))
            elif added is not None:
                self.learned = self.learned + added.numpy()
            # Everything learned is now in the update or in the memory, which may be one expanded zero.
            self._vectors |= {"base": self.local, "memory": state.memory.contiguous()}
            self._state = replace(state, received=self.local, memory=self._vectors["memory"])
            self._keep("local", "base", "memory", *TREES)
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
            self._keep("local", "memory", *TREES)
            self._advance(cut_round=round_, cut_s=time.time(), takes_model=True, cut_short=False)

    def settle(self, number: int, recorded: Collection[int]) -> bool:
        """Mark chunks as recorded; return whether the update is completely delivered."""
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE chunks SET outcome = 'recorded', data = NULL"
                " WHERE number = ? AND chunk = ? AND outcome IS NULL",
                [(number, chunk) for chunk in recorded],
            )
            [(left,)] = self._all("SELECT count(*) FROM chunks WHERE number = ? AND outcome IS NULL", number)
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

    def receive(
        self,
        model: Tensor,
        version: int,
        round_: int,
        handed: State = NO_STATE,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Continue from the global model, with the learning since the last cut and the state handed down with it."""
        with self._transaction():
            if self.open_update() is not None:
                raise InvariantError("a model was received while an update is open")
            base = self._vectors["base"]
            since = base - self.local
            local = model - since if bool(since.any()) else model
            # The local model on disk is the one of the cut, without the training since then: continue from the model.
            is_saved_later = self._local_on_disk is base and not self._budget.may_save(4 * len(model))
            self._vectors |= {"base": model, "local": local, "model": model}
            if self.velocity is not None:
                self._vectors["velocity"] = torch.zeros_like(model)
            self._state = receive(self._state, model, round_, self._method, handed)
            self._keep("base", "model", "local_state")
            if is_saved_later:
                self._vector_store.write("local", model)
                self._local_on_disk = model
                if self.velocity is not None:
                    self._vector_store.write("velocity", self.velocity)
            else:
                self._keep("local")
            self._advance(version=version, finished_round=round_, settings=settings or {})

    def finish(self, round_: int) -> None:
        with self._transaction():
            self._advance(finished_round=round_)

    def forget_version(self) -> None:
        """The global model is not the server's: the next download must be whole."""
        with self._transaction():
            self._advance(version=None)

    def close(self) -> None:
        """Save what was trained, and close the store."""
        with self.lock:
            self.save_training()
            self._database.close()

    # Storage.

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Memory follows the file: if the commit fails, nothing has changed."""
        with self.lock:
            before = self.progress, self._state, dict(self._vectors), self.learned
            on_disk = self._vector_store.stored, self._local_on_disk, self._kept_round
            try:
                with self._database.transaction() as connection:
                    yield connection
            except BaseException:
                self.progress, self._state, self._vectors, self.learned = before
                self._vector_store.stored, self._local_on_disk, self._kept_round = on_disk
                raise
            if self._vector_store.stored is not on_disk[0]:
                self._vector_store.delete_unused()

    def _advance(self, **changes: Any) -> None:
        self.progress = replace(self.progress, **changes)
        # A killed device repeats the steps after its local model on disk.
        self._set("progress", asdict(replace(self.progress, trained_round=self._kept_round)))
        self._set("state", plain_state(self._state))
        self._set("writes", self._budget.as_fact())

    def _set(self, name: str, value: object) -> None:
        self._database.connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    def _keep(self, *names: str) -> None:
        """Write vectors and trees; with the local model everything that describes the same moment."""
        for name in names:
            if name == "local":
                self._local_on_disk, self._kept_round = self.local, self.progress.trained_round
                self._budget.saved()
                self._keep_learned()
                if self.velocity is not None:
                    self._vector_store.write("velocity", self.velocity)
            if name in self._vectors:
                self._vector_store.write(name, self._vectors[name])
            else:
                trees = {"memory_state": self._state.memory_state, "local_state": self._state.local_state}
                self._vector_store.write_bytes(name, tree_bytes(trees[name]))

    def _keep_learned(self) -> None:
        if self.learned is not None:
            self._vector_store.write_bytes("learned", self.learned.astype("<f8").tobytes())


def digest(data: bytes) -> str:
    return blake3(data).hexdigest(length=16)


def is_digest(known: str, data: bytes) -> bool:
    """Whether a stored digest is that of these bytes; stores of earlier versions have BLAKE2 digests."""
    return known == digest(data) or known == hashlib.blake2b(data, digest_size=16).hexdigest()
