"""What the server carries through the loss of power: every chunk it recorded, once, and the model they add up to.

The ledger is the truth. The model file beside it is a shortcut: on a start it is read, and what was recorded since is
replayed. Every public method that changes something is one transaction, or part of the caller's.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout
from wayfare.errors import InvariantError, RunFolderError
from wayfare.field.runtime.database import Database
from wayfare.field.runtime.messages import Chunk, joined, unpack
from wayfare.field.runtime.model_files import newest_model, write_model
from wayfare.field.runtime.outbox import digest
from wayfare.field.runtime.rules import Bits, Latest, Limits, check_chunk
from wayfare.server import ServerState, aggregate
from wayfare.sparsify import Sparse

FILE = "ledger.sqlite"
# Models of the latest versions, for those who take one while the next is made already.
_MOST_PAST = 4
_FORMAT = 1
_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE devices (
    device INTEGER PRIMARY KEY, number INTEGER NOT NULL DEFAULT 0, open INTEGER NOT NULL DEFAULT 0,
    norm_sq REAL NOT NULL DEFAULT 0, spent_joules REAL NOT NULL DEFAULT 0);
CREATE TABLE chunks (
    device INTEGER NOT NULL, number INTEGER NOT NULL, chunk INTEGER NOT NULL, chunks INTEGER NOT NULL,
    round INTEGER NOT NULL, digest TEXT NOT NULL, scale REAL NOT NULL, version INTEGER, data BLOB NOT NULL,
    PRIMARY KEY (device, number, chunk));
CREATE INDEX by_version ON chunks (version);
CREATE TABLE finished (device INTEGER NOT NULL, round INTEGER NOT NULL, PRIMARY KEY (device, round)) WITHOUT ROWID;
CREATE TABLE rounds (round INTEGER PRIMARY KEY, version INTEGER NOT NULL);
CREATE TABLE models (version INTEGER PRIMARY KEY, file TEXT NOT NULL, sha256 TEXT NOT NULL)
"""


class Key(NamedTuple):
    """A chunk in the ledger."""

    device: int
    number: int
    chunk: int


class Ledger:
    """The server's store."""

    def __init__(
        self,
        folder: Path,
        initial: Tensor,
        *,
        layout: Layout,
        devices: int,
        identity: str,
        limits: Limits | None = None,
    ) -> None:
        self._folder, self._layout, self._fleet, self._limits = folder, layout, devices, limits or Limits()
        self._initial = initial
        self._database = Database(folder / FILE, _SCHEMA, _FORMAT)
        with self._database.transaction() as connection:
            facts = dict(connection.execute("SELECT name, value FROM facts"))
            if not facts:
                self._set("identity", identity)
                self._set("next_round", 1)
                self._set("version", 0)
                connection.executemany("INSERT INTO devices (device) VALUES (?)", [(n,) for n in range(devices)])
            elif json.loads(facts["identity"]) != identity:
                raise RunFolderError(f"{folder}: holds the ledger of another fleet, task or seed")
        self._load()

    def _load(self) -> None:
        """Take everything from the disk."""
        connection = self._database.connection
        facts = dict(connection.execute("SELECT name, value FROM facts"))
        self.version: int = json.loads(facts["version"])
        self.next_round: int = json.loads(facts["next_round"])
        rows = connection.execute("SELECT number, open, norm_sq, spent_joules FROM devices ORDER BY device").fetchall()
        self._devices = [Latest(number, bool(open_), norm_sq, spent) for number, open_, norm_sq, spent in rows]
        self._taken: dict[int, Bits] = {}  # entries of an open update that have come
        for device, latest in enumerate(self._devices):
            if latest.open:
                for (data,) in connection.execute(
                    "SELECT data FROM chunks WHERE device = ? AND number = ?", (device, latest.number)
                ):
                    self._take(device, unpack(data, self._layout).entries.indices.numpy())
        names = connection.execute("SELECT version, file, sha256 FROM models ORDER BY version DESC").fetchall()
        found = newest_model(self._folder, names, len(self._initial))
        if found is None:
            found = 0, self._initial, np.zeros(len(self._initial), dtype=np.int64)
        begin, self.model, self.changed = found
        self.saved_version = begin
        self._past: OrderedDict[int, Tensor] = OrderedDict({begin: self.model})
        for version, uploads in self._versions(begin):
            self._advance(version, uploads)
        # Recorded and not applied yet.
        waiting = connection.execute(
            "SELECT device, number, chunk, round, scale, data FROM chunks WHERE version IS NULL"
        )
        self._queue = {
            Key(device, number, chunk): (round_, _scaled(unpack(data, self._layout).entries, scale))
            for device, number, chunk, round_, scale, data in waiting
        }

    # What there is.

    def standing(self, device: int, number: int | None) -> tuple[int, list[int], bool]:
        """The next free number of a device; of one update the chunks recorded, and whether no more will be."""
        latest = self._devices[device]
        if number is None:
            return latest.number + 1, [], False
        rows = self._all("SELECT chunk FROM chunks WHERE device = ? AND number = ? ORDER BY chunk", device, number)
        sealed = number < latest.number or (number == latest.number and not latest.open)
        return latest.number + 1, [chunk for (chunk,) in rows], sealed

    def queued(self, round_: int | None = None) -> list[Key]:
        """Chunks recorded and not applied, of one round or of all."""
        return [key for key, (of, _) in self._queue.items() if round_ is None or of == round_]

    def version_after(self, round_: int) -> int | None:
        """The version with all of a round in it; None as long as it is not."""
        rows = self._all("SELECT version FROM rounds WHERE round = ?", round_)
        return rows[0][0] if rows else None

    def model_at(self, version: int) -> Tensor:
        """The model of any version; one long past is replayed."""
        if version not in self._past:
            state = ServerState(model=self._initial, devices=self._fleet)
            for reached, uploads in self._versions(0):
                if reached > version:
                    break
                state = aggregate(state, uploads)
            self._remember(version, state.model)
        return self._past[version]

    def changed_between(self, older: int, newer: int) -> NDArray[np.bool_]:
        """Which entries two versions may differ in."""
        if newer == self.version:
            return self.changed > older
        changed = np.zeros(len(self._initial), dtype=bool)
        for (data,) in self._all("SELECT data FROM chunks WHERE version > ? AND version <= ?", older, newer):
            changed[unpack(data, self._layout).entries.indices.numpy()] = True
        return changed

    def finished(self, round_: int) -> set[int]:
        """Devices whose exchange of a round is over."""
        return {device for (device,) in self._all("SELECT device FROM finished WHERE round = ?", round_)}

    def applied(self) -> dict[Key, str]:
        """Every chunk in the model, with its digest."""
        rows = self._all("SELECT device, number, chunk, digest FROM chunks WHERE version IS NOT NULL")
        return {Key(*row[:3]): row[3] for row in rows}

    def spent_joules(self) -> list[float]:
        """By the devices' own accounts."""
        return [latest.spent_joules for latest in self._devices]

    def replay(self) -> Tensor:
        """The model that the ledger adds up to, from the very beginning."""
        state = ServerState(model=self._initial, devices=self._fleet)
        for _, uploads in self._versions(0):
            state = aggregate(state, uploads)
        return state.model

    def delivered(self, device: int) -> NDArray[np.float64]:
        """The sum of all that a device has delivered, before anything was clipped."""
        total = np.zeros(len(self._initial))
        for (data,) in self._all("SELECT data FROM chunks WHERE device = ?", device):
            entries = unpack(data, self._layout).entries
            total[entries.indices.numpy()] += entries.values.double().numpy()
        return total

    # What happens.

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several changes at once. When they cannot be committed, what is in memory is taken from the disk again."""
        with self._database.lock:
            try:
                with self._database.transaction():
                    yield
            except BaseException:
                self._load()
                raise

    def record(self, device: int, data: bytes) -> tuple[Chunk, bool]:
        """A chunk of a device, and whether it is new; WireError when it cannot be believed, and nothing has changed."""
        chunk = unpack(data, self._layout)
        latest, key = self._devices[device], Key(device, chunk.update, chunk.chunk)
        known = self._all("SELECT digest FROM chunks WHERE device = ? AND number = ? AND chunk = ?", *key)
        if known:
            if known[0][0] != digest(data):
                raise WireError(f"update {chunk.update}, chunk {chunk.chunk}: recorded already with other contents")
            return chunk, False
        self._check(device, chunk)
        norm_sq = float(chunk.entries.values.double().square().sum())
        with self.transaction():
            if chunk.update != latest.number:
                self._taken.pop(device, None)
                latest.number, latest.open, latest.norm_sq = chunk.update, True, 0.0
            scale = self._limits.share(latest.norm_sq, norm_sq)
            latest.norm_sq += norm_sq
            latest.spent_joules = chunk.spent_joules
            row = (*key, chunk.chunks, chunk.round, digest(data), scale, None, data)
            self._database.connection.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._take(device, chunk.entries.indices.numpy())
            (count,) = self._all("SELECT count(*) FROM chunks WHERE device = ? AND number = ?", *key[:2])[0]
            if count == chunk.chunks:
                self._close(device)
            self._keep(device)
            self._queue[key] = chunk.round, _scaled(chunk.entries, scale)
        return chunk, True

    def seal(self, device: int, number: int) -> None:
        """Promise to record no more of an update."""
        latest = self._devices[device]
        if number < latest.number or (number == latest.number and not latest.open):
            return
        if number > latest.number and latest.open:
            raise WireError(f"update {number} cannot be sealed while update {latest.number} is open")
        with self.transaction():
            latest.number = number
            self._close(device)
            self._keep(device)

    def begin_anew(self, device: int) -> None:
        """A device lost its past, and with it its account of its energy and whatever it had promised."""
        with self.transaction():
            self._devices[device].spent_joules = 0.0
            self._close(device)
            self._keep(device)

    def finish(self, device: int, round_: int, number: int | None, *, remember: bool) -> None:
        """An exchange of a device is over; what it sent in it must be here."""
        latest = self._devices[device]
        if number is not None and (number > latest.number or (number == latest.number and latest.open)):
            raise WireError(f"update {number} is not all here")
        if not remember:
            return
        with self.transaction():
            self._database.connection.execute("INSERT OR IGNORE INTO finished VALUES (?, ?)", (device, round_))

    def apply(self, keys: Sequence[Key], *, next_round: int | None = None) -> None:
        """Bring recorded chunks into the model, as one version."""
        with self.transaction():
            if keys:
                version = self.version + 1
                rows = sorted(keys)
                uploads = [
                    (device, joined([self._queue[key][1] for key in group]))
                    for (device, _), group in groupby(rows, key=lambda key: key[:2])
                ]
                self._advance(version, [upload for _, upload in uploads])
                self._database.connection.executemany(
                    "UPDATE chunks SET version = ? WHERE device = ? AND number = ? AND chunk = ?",
                    [(version, *key) for key in rows],
                )
                for key in rows:
                    del self._queue[key]
                self.version = version
                self._set("version", version)
            if next_round is not None:
                self.next_round = next_round
                self._set("next_round", next_round)
                self._database.connection.execute("INSERT INTO rounds VALUES (?, ?)", (next_round - 1, self.version))

    def save_model(self) -> None:
        """Write the model file, then name it; older ones go."""
        if self.version == self.saved_version:
            return
        name, sha256 = write_model(self._folder, self.version, self.model, self.changed)
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?)", (self.version, name, sha256))
            old = connection.execute("SELECT version, file FROM models ORDER BY version DESC").fetchall()[2:]
            connection.executemany("DELETE FROM models WHERE version = ?", [(version,) for version, _ in old])
        for _, file in old:
            (self._folder / file).unlink(missing_ok=True)
        self.saved_version = self.version

    def close(self) -> None:
        """Let go of the files."""
        self._database.close()

    # How it is done.

    def _check(self, device: int, chunk: Chunk) -> None:
        """Refuse what fits no update of this device."""
        latest = self._devices[device]
        check_chunk(chunk, latest, self._limits, self.version)
        if chunk.update == latest.number:
            (chunks, round_), *_ = self._all(
                "SELECT chunks, round FROM chunks WHERE device = ? AND number = ?", device, chunk.update
            )
            if (chunks, round_) != (chunk.chunks, chunk.round):
                raise WireError(f"update {chunk.update}: its chunks do not agree on their number or round")
            if self._taken[device].any_of(chunk.entries.indices.numpy()):
                raise WireError(f"update {chunk.update}: an entry came twice")

    def _take(self, device: int, indices: Ints) -> None:
        if device not in self._taken:
            self._taken[device] = Bits(len(self._initial))
        self._taken[device].add(indices)

    def _close(self, device: int) -> None:
        self._devices[device].open = False
        self._taken.pop(device, None)

    def _keep(self, device: int) -> None:
        latest = self._devices[device]
        self._database.connection.execute(
            "UPDATE devices SET number = ?, open = ?, norm_sq = ?, spent_joules = ? WHERE device = ?",
            (latest.number, latest.open, latest.norm_sq, latest.spent_joules, device),
        )

    def _advance(self, version: int, uploads: Sequence[Sparse]) -> None:
        """The model of the next version."""
        model = aggregate(ServerState(model=self.model, devices=self._fleet), uploads).model
        if not bool(torch.isfinite(model.sum())) and not bool(torch.isfinite(model).all()):
            raise InvariantError(f"version {version} of the model would not be finite")
        self.model = model
        self._remember(version, model)
        for upload in uploads:
            self.changed[upload.indices.numpy()] = version

    def _remember(self, version: int, model: Tensor) -> None:
        self._past[version] = model
        while len(self._past) > _MOST_PAST:
            self._past.popitem(last=False)

    def _versions(self, after: int) -> Iterator[tuple[int, list[Sparse]]]:
        """What was applied, version by version, in the order of devices."""
        rows = self._database.connection.execute(
            "SELECT version, device, number, scale, data FROM chunks WHERE version > ?"
            " ORDER BY version, device, number, chunk",
            (after,),
        )
        for version, of_version in groupby(rows, key=lambda row: row[0]):
            yield (
                version,
                [
                    joined([_scaled(unpack(data, self._layout).entries, scale) for *_, scale, data in group])
                    for _, group in groupby(of_version, key=lambda row: row[1:3])
                ],
            )

    def _set(self, name: str, value: Any) -> None:
        self._database.connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    def _all(self, query: str, *values: object) -> list[Any]:
        with self._database.lock:
            return self._database.connection.execute(query, values).fetchall()


def _scaled(entries: Sparse, scale: float) -> Sparse:
    return entries if scale == 1.0 else Sparse(entries.indices, entries.values * scale)
