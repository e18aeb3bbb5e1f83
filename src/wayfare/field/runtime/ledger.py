"""The server's durable state: every recorded chunk, once, and the model that its rule makes from them.

The ledger is authoritative. The model file is a shortcut: on start the server reads it and replays later chunks through
the server rule. Every public method that changes something is one transaction, or part of the caller's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout
from wayfare.errors import InputError
from wayfare.field.runtime.aggregation import Aggregation, Snapshot, as_begun, differing
from wayfare.field.runtime.compaction import Compacted, Window, base_within, compact
from wayfare.field.runtime.contact_log import ContactLog
from wayfare.field.runtime.contributions import contribution, withdrawal
from wayfare.field.runtime.database import Database
from wayfare.field.runtime.history import History, Step
from wayfare.field.runtime.ledger_format import FORMAT, MIGRATIONS, SCHEMA, page_bytes_for
from wayfare.field.runtime.messages import Chunk, unpack
from wayfare.field.runtime.model_files import export_file
from wayfare.field.runtime.orders import Order
from wayfare.field.runtime.outbox import digest, is_digest
from wayfare.field.runtime.released import ORDERS, ReleasedVersions
from wayfare.field.runtime.roster import Roster
from wayfare.field.runtime.rules import Bits, Limits, check_chunk, check_rest, check_sums
from wayfare.field.runtime.stores import check_identity
from wayfare.methods import NO_STATE, State
from wayfare.server import ServerState

FILE = "ledger.sqlite"
# The version of chunks that are recorded but in no model, because the rest of a whole model never arrived.
_VOID = 0


class Key(NamedTuple):
    device: int
    number: int
    chunk: int


class Ledger:
    def __init__(
        self,
        folder: Path,
        initial: Tensor,
        *,
        layout: Layout,
        aggregation: Aggregation,
        identity: Mapping[str, Any],
        names: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> None:
        """``names`` are the first devices, by number. Others get the next numbers when they are first heard."""
        self.folder, self._layout = folder, layout
        self._initial, self._limits = initial, limits or Limits()
        self._takes_models = aggregation.rule.takes == "models"
        if self._takes_models and self._limits.clip_norm is not None:
            rule = "not allowed: the server mixes whole models, and only updates can be clipped"
            raise InputError(f"clip_norm = {self._limits.clip_norm!r}: {rule}")
        membership = aggregation.membership
        scales = self._limits.clip_norm is not None or (membership is not None and membership.discount_days is not None)
        if aggregation.terms.sums and scales:
            raise InputError("clip_norm and discount_days: not allowed, because statistics must arrive as they are")
        if self._takes_models and membership is not None and membership.discount_days is not None:
            rule = "not allowed: the server mixes whole models, and only updates can be discounted"
            raise InputError(f"discount_days = {membership.discount_days!r}: {rule}")
        self._database = Database(folder / FILE, SCHEMA, FORMAT, MIGRATIONS, page_bytes_for(len(initial)))
        self.contacts = ContactLog(self._database)
        self.released = ReleasedVersions(self._database, folder, layout)
        self._all = self._database.rows
        self.roster = Roster(self._database, membership, aggregation.terms.devices, self._uploads_per_day)
        with self._database.transaction() as connection:
            facts = dict(connection.execute("SELECT name, value FROM facts"))
            known = json.loads(facts["identity"]) if facts else {}
            aggregation, identity = as_begun(aggregation, identity, known)
            self._history = History(self._database, folder, initial, layout, aggregation)
            if not isinstance(known, str):  # format 2 had only a hash of the whole scenario
                check_identity(folder / FILE, known, identity)
            connection.execute("INSERT OR REPLACE INTO facts VALUES ('identity', ?)", (json.dumps(identity),))
        self._load()
        self.roster.begin(names)

    def _load(self) -> None:
        connection = self._database.connection
        self.roster.load()
        self._devices = self.roster.devices
        self._taken: dict[int, Bits] = {}  # entries of open updates that have arrived
        for device, latest in enumerate(self._devices):
            if latest.open:
                for (data,) in connection.execute(
                    "SELECT data FROM chunks WHERE device = ? AND number = ?", (device, latest.number)
                ):
                    self._take(device, unpack(data, self._layout).entries.indices.numpy())
        self._history.load()
        self.released.load()
        # Recorded and not applied yet.
        waiting = connection.execute(
            "SELECT device, number, chunk, scale, data FROM chunks"
            " LEFT JOIN applied USING (device, number, chunk) WHERE version IS NULL"
        )
        self._queue = {Key(*key): unpack(data, self._layout).scaled(scale) for *key, scale, data in waiting}

    # Reading.

    @property
    def version(self) -> int:
        return self._history.latest.version

    @property
    def next_round(self) -> int:
        return self._history.latest.round + 1

    @property
    def model(self) -> Tensor:
        return self._history.latest.state.model

    @property
    def state(self) -> ServerState:
        """The global model, the state of the rule, and the mean of the models, which is evaluated and exported."""
        return self._history.latest.state

    @property
    def aggregation(self) -> Aggregation:
        return self._history.aggregation

    def standing(self, device: int, number: int | None) -> tuple[int, list[int], bool]:
        """A device's next free number; the recorded chunks of one update, and whether it is closed."""
        latest = self._devices[device]
        if number is None:
            return latest.number + 1, [], False
        rows = self._all("SELECT chunk FROM chunks WHERE device = ? AND number = ? ORDER BY chunk", device, number)
        return latest.number + 1, [chunk for (chunk,) in rows], self.is_delivered(device, number)

    def is_delivered(self, device: int, number: int) -> bool:
        """Whether an update is complete or sealed."""
        latest = self._devices[device]
        return number <= latest.number and not latest.is_open(number)

    def queued(self, round_: int | None = None) -> list[Key]:
        return [key for key, chunk in self._queue.items() if round_ is None or chunk.round == round_]

    def due(self, round_: int | None = None) -> list[Key]:
        """Chunks that can be applied. Some rules must wait until an update is complete or sealed."""
        keys = self.queued(round_)
        if self._history.aggregation.takes_pieces:
            return keys
        return [key for key in keys if not self._devices[key.device].is_open(key.number)]

    def version_after(self, round_: int) -> int | None:
        """The version that includes all of a round; None before it exists."""
        rows = self._all("SELECT version FROM rounds WHERE round = ?", round_)
        return rows[0][0] if rows else None

    def version_before(self, round_: int) -> int:
        """The version that includes all earlier rounds."""
        rows = self._all("SELECT max(version) FROM rounds WHERE round < ?", round_)
        return rows[0][0] or 0

    def model_at(self, version: int) -> Tensor:
        """The model of any version; old ones are replayed."""
        return self._history.state_at(version).model

    def handed(self, device: int, version: int) -> State:
        """The state that the rule hands to a device with a version of the model."""
        rule = self._history.aggregation.rule
        return rule.handed(self._history.state_at(version).rule_state, device) if rule.hands_down else NO_STATE

    def changed_between(self, older: int, newer: int) -> NDArray[np.bool_]:
        """The entries in which two versions may differ; exact if both models are kept."""
        before, after = self._history.versions.find(older), self._history.versions.find(newer)
        if before is not None and after is not None:
            return differing(before.model, after.model)
        return self._history.latest.changed > older

    def finished(self, round_: int) -> set[int]:
        return {device for (device,) in self._all("SELECT device FROM finished WHERE round = ?", round_)}

    def recorded(self) -> dict[Key, str]:
        rows = self._all("SELECT device, number, chunk, digest FROM chunks")
        return {Key(*row[:3]): row[3] for row in rows}

    def applied(self) -> dict[Key, str]:
        """Every applied chunk, with its digest."""
        query = "SELECT device, number, chunk, digest FROM chunks NATURAL JOIN applied WHERE version > ?"
        rows = self._all(query, _VOID)
        return {Key(*row[:3]): row[3] for row in rows}

    def spent_joules(self) -> list[float]:
        """The devices' energy in joules, as they report it."""
        return [latest.spent_joules for latest in self._devices]

    def replay(self) -> ServerState:
        """Replay the ledger through the rule, from the initial model or from the snapshot of the last compaction."""
        return self._history.replay()

    def delivered(self, device: int) -> NDArray[np.float64]:
        return contribution(self._database, self._layout, device)

    # Changing.

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several changes at once. If the commit fails, the state in memory is reloaded from disk."""
        with self._database.lock:
            try:
                with self._database.transaction():
                    yield
            except BaseException:
                self._load()
                raise

    def record(self, device: int, data: bytes) -> tuple[Chunk, bool]:
        """Record a chunk; return it and whether it is new. An invalid chunk raises WireError and changes nothing."""
        chunk = unpack(data, self._layout)
        latest, key = self._devices[device], Key(device, chunk.update, chunk.chunk)
        known = self._all("SELECT digest FROM chunks WHERE device = ? AND number = ? AND chunk = ?", *key)
        if known:
            if not is_digest(known[0][0], data):
                raise WireError(f"update {chunk.update}, chunk {chunk.chunk}: already recorded with other contents")
            return chunk, False
        self._check(device, chunk)
        if chunk.update != latest.number:
            self.roster.uploads.add(device)
        self._record(device, chunk, data)
        return chunk, True

    def _record(self, device: int, chunk: Chunk, data: bytes) -> None:
        latest, key = self._devices[device], Key(device, chunk.update, chunk.chunk)
        norm_sq = float((values := chunk.entries.values.double()).dot(values))
        with self.transaction():
            if chunk.update != latest.number:
                self._taken.pop(device, None)
                latest.number, latest.open, latest.norm_sq = chunk.update, True, 0.0
            scale = self._limits.share(latest.norm_sq, norm_sq)
            latest.norm_sq += norm_sq
            latest.spent_joules = chunk.spent_joules
            latest.delivered_s = self.roster.now_s()
            row = (*key, chunk.chunks, chunk.round, chunk.received_round, digest(data), scale, data)
            self._database.connection.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._queue[key] = chunk.scaled(scale)
            self._take(device, chunk.entries.indices.numpy())
            (count,) = self._all("SELECT count(*) FROM chunks WHERE device = ? AND number = ?", *key[:2])[0]
            if count == chunk.chunks:
                self._close(device, whole=True)
            self.roster.keep(device)

    def seal(self, device: int, number: int) -> None:
        """Promise to record no more of an update."""
        latest = self._devices[device]
        if self.is_delivered(device, number):
            return
        if number > latest.number and latest.open:
            raise WireError(f"cannot seal update {number} while update {latest.number} is open")
        with self.transaction():
            self._close(device)
            latest.number = number
            self.roster.keep(device)

    def reset_device(self, device: int) -> None:
        """Reset a device that lost its store, with its energy account, its open update and its statistics."""
        with self.transaction():
            latest = self._devices[device]
            latest.spent_joules = 0.0
            self._close(device)
            self.roster.keep(device)
            former = self.delivered(device) if self.aggregation.terms.sums else np.zeros(0)
            if chunk := withdrawal(former, update=latest.number + 1, round_=self.next_round, version=self.version):
                self._record(device, chunk, chunk.packed(self._layout))

    def finish(self, device: int, round_: int) -> None:
        with self.transaction():
            self._database.connection.execute("INSERT OR IGNORE INTO finished VALUES (?, ?)", (device, round_))

    def apply(self, keys: Sequence[Key], *, next_round: int | None = None) -> None:
        """Apply recorded chunks to the model, as one version.

        With ``next_round`` all earlier rounds are over. Without a plan every version is a round.
        """
        if not keys and next_round is None:
            return
        round_, version = (next_round or self.next_round + 1) - 1, self.version + bool(keys)
        with self.transaction():
            connection, rows = self._database.connection, sorted(keys)
            devices = self.roster.active_devices
            pieces = [self.roster.weighed(key.device, self._queue[key]) for key in rows]
            for key in rows:
                del self._queue[key]
            self._history.advance(Step(round_, version, devices, self._history.arrivals(pieces)))
            connection.executemany(
                "INSERT INTO applied VALUES (?, ?, ?, ?, ?, ?)",
                [(*key, version, piece.weight, piece.samples) for key, piece in zip(rows, pieces, strict=True)],
            )
            made = (round_, version, devices, self.roster.now_s())
            connection.execute("INSERT INTO rounds VALUES (?, ?, ?, ?)", made)

    def obey(self) -> None:
        """Carry out the operator's orders."""
        for id_, kind, content in self._all("SELECT id, kind, content FROM orders WHERE outcome IS NULL ORDER BY id"):
            order = Order(id_, kind, json.loads(content))
            try:
                with self.transaction():
                    self._answer(order, "done: " + self._obeyed(order))
            except (InputError, KeyError, TypeError, ValueError) as error:
                self._answer(order, f"rejected: {error}")
            self.released.delete_unused()

    def _obeyed(self, order: Order) -> str:
        """Carry out one order; most make a version."""
        if order.kind == "compact":
            found = self.compact(Window(**order.content))
            return f"versions from {found.base_version} on; {found.chunks} chunks, {found.bytes / 1e6:.1f} MB deleted"
        if order.kind == "export":
            return export_file(self.folder, version := int(order.content["version"]), self._history.judged_at(version))
        if order.kind in ORDERS:
            return self.released.obey(order, self.roster.names, self._history.judged_at)
        round_, version, devices = self.next_round, self.version + 1, self.roster.active_devices
        self._history.advance(Step(round_, version, devices, order=order))
        connection, made = self._database.connection, (round_, version, devices, self.roster.now_s())
        connection.execute("INSERT INTO rounds VALUES (?, ?, ?, ?)", made)
        connection.execute("UPDATE orders SET round = ?, version = ? WHERE id = ?", (round_, version, order.id))
        return f"version {version}"

    def _answer(self, order: Order, outcome: str) -> None:
        with self._database.transaction() as connection:
            connection.execute("UPDATE orders SET outcome = ? WHERE id = ?", (outcome, order.id))

    def base_within(self, window: Window) -> Snapshot | None:
        """The base that a window allows, if it must move; other threads may call this."""
        return base_within(self._database, self._history, window, self.roster.now_s())

    def compact(self, window: Window | Snapshot) -> Compacted:
        """Replace what lies before a window, or before a snapshot, by the snapshot."""
        with self._database.lock:
            snapshot = self.base_within(window) if isinstance(window, Window) else window
            if snapshot is None:
                return Compacted(base_version=self.base_version)
            return compact(self._database, self._history, snapshot)

    @property
    def base_version(self) -> int:
        """The oldest version that can be replayed."""
        return self._history.base_version

    def disk_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())

    def save_model(self) -> None:
        """Save the model file, which shortens the next start."""
        self._history.save_model()

    def heard(self, device: int, *, up_bytes: int = 0, down_bytes: int = 0) -> None:
        """Note a message of a device for the log of contacts."""
        self.contacts.heard(device, self._devices[device].spent_joules, up_bytes=up_bytes, down_bytes=down_bytes)

    def close(self) -> None:
        self._database.close()

    # Internals.

    def _uploads_per_day(self) -> int | None:
        settings = self.aggregation.settings_at(self.version)
        return (settings and settings.uploads_per_day) or self._limits.uploads_per_day

    def _check(self, device: int, chunk: Chunk) -> None:
        check_chunk(chunk, self._devices[device], self._limits, self.version)
        self.roster.check(device, chunk)
        if self.aggregation.terms.sums:
            check_sums(chunk, [queued.entries for queued in self._queue.values()], self.model)
        others = self._all(
            "SELECT chunks, round, received_round FROM chunks WHERE device = ? AND number = ?", device, chunk.update
        )
        check_rest(chunk, others, self._taken.get(device), len(self._initial) if self._takes_models else 0)

    def _take(self, device: int, indices: Ints) -> None:
        if device not in self._taken:
            self._taken[device] = Bits(len(self._initial))
        self._taken[device].add(indices)

    def _close(self, device: int, *, whole: bool = False) -> None:
        """Close the latest update. Its recorded chunks count, unless they are an incomplete model."""
        latest = self._devices[device]
        if self._takes_models and latest.open and not whole:
            void = [key for key in self._queue if key[:2] == (device, latest.number)]
            for key in void:
                del self._queue[key]
            self._database.connection.executemany(f"INSERT INTO applied VALUES (?, ?, ?, {_VOID}, 1, NULL)", void)
        latest.open = False
        self._taken.pop(device, None)
