"""The versions of the global model: replayed from the ledger's tables, starting from a snapshot on disk.

A snapshot is a model file with a checksum. The *base* is the snapshot that compaction left: everything before it is
gone. Without one, history starts with the initial model. Newer files only shorten a start.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from wayfare.codec.wire import Layout
from wayfare.errors import InputError, RunFolderError
from wayfare.field.runtime.aggregation import Aggregation, Piece, Snapshot, Versions
from wayfare.field.runtime.database import Database
from wayfare.field.runtime.messages import unpack
from wayfare.field.runtime.model_files import newest_model, write_model
from wayfare.field.runtime.orders import Order, obey, revised
from wayfare.methods import Arrival
from wayfare.server import ServerState


class Step(NamedTuple):
    """What ended a round: uploads of a fleet of so many devices, or an order."""

    round: int
    version: int
    devices: int
    arrivals: Sequence[Arrival] = ()
    order: Order | None = None


class History:
    def __init__(
        self, database: Database, folder: Path, initial: Tensor, layout: Layout, aggregation: Aggregation
    ) -> None:
        self._database, self._folder, self._initial, self.layout = database, folder, initial, layout
        self._first = aggregation

    def load(self) -> None:
        """Read the newest model file and replay what followed."""
        self.versions = self._newest()
        self._saved = self._moment
        for step in self._steps(self.versions.latest):
            self.advance(step)

    @property
    def latest(self) -> Snapshot:
        return self.versions.latest

    @property
    def aggregation(self) -> Aggregation:
        """The rule, guard and mean that hold now."""
        return self.versions.aggregation

    @property
    def base_version(self) -> int:
        """The oldest version that can be replayed."""
        rows = self._database.rows("SELECT value FROM facts WHERE name = 'base'")
        return int(json.loads(rows[0][0])) if rows else 0

    def advance(self, step: Step) -> None:
        self._advance(self.versions, step)

    def state_at(self, version: int) -> ServerState:
        """The state of a version. Without the rule's state if the version is recent and the rule hands none down."""
        state = self.versions.find(version)
        if state is None:
            state = self.snapshot_at(version).state
            self.versions.remember(version, state)
        return state

    def snapshot_at(self, version: int) -> Snapshot:
        """Replay the whole state of a version."""
        if not self.base_version <= version <= self.latest.version:
            rule = f"must be {self.base_version} to {self.latest.version}"
            rule += "; older ones were compacted" if self.base_version else ""
            raise InputError(f"version = {version}: {rule}")
        versions = self._newest(version)
        for step in self._steps(versions.latest):
            if step.version > version:
                break
            self._advance(versions, step)
        return versions.latest

    def judged_at(self, version: int) -> Tensor:
        """The model of a version that is evaluated, exported and released."""
        return self.snapshot_at(version).state.judged

    def replay(self) -> ServerState:
        """Replay everything that the ledger holds through the rule."""
        versions = self._newest(self.base_version)
        for step in self._steps(versions.latest):
            self._advance(versions, step)
        return versions.latest.state

    def save_model(self) -> None:
        """Write a file of the latest version."""
        if self._moment == self._saved:
            return
        self.register(self.latest)
        self._saved = self._moment

    def register(self, snapshot: Snapshot, *, base: bool = False) -> None:
        """Write a model file and make it the newest, or the base; delete files that are neither."""
        name, sha256 = write_model(self._folder, snapshot)
        with self._database.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO models VALUES (?, ?, ?)", (snapshot.version, name, sha256))
            if base:
                value = json.dumps(snapshot.version)
                connection.execute("INSERT OR REPLACE INTO facts VALUES ('base', ?)", (value,))
            named = connection.execute("SELECT version, file FROM models ORDER BY version DESC").fetchall()
            # If the newest file is damaged, the base is enough; before there is one, an older file saves time.
            base_version = self.base_version
            old = [row for row in named[1 if base_version else 2 :] if row[0] != base_version]
            connection.executemany("DELETE FROM models WHERE version = ?", [(version,) for version, _ in old])
        for _, file in old:
            (self._folder / file).unlink(missing_ok=True)

    def arrivals(self, pieces: Iterable[Piece]) -> list[Arrival]:
        return self.aggregation.arrivals(pieces, self._previous_version)

    @property
    def _moment(self) -> tuple[int, int]:
        return self.latest.version, self.latest.round

    def _advance(self, versions: Versions, step: Step) -> None:
        if step.order is None:
            versions.advance(step.round, step.version, step.arrivals, step.devices)
            return
        state = obey(step.order, versions, lambda version: self._before(versions, version))
        versions.put(step.round, step.version, state)

    def _before(self, versions: Versions, version: int) -> ServerState:
        """The whole state of a version before the last one of these versions."""
        return versions.latest.state if version == versions.latest.version else self.snapshot_at(version).state

    def _newest(self, most: int | None = None) -> Versions:
        """Versions that start with the newest valid file, up to a version if given, or with the initial model."""
        named = self._database.rows("SELECT version, file, sha256 FROM models ORDER BY version DESC")
        wanted = [row for row in named if most is None or row[0] <= most]
        found = newest_model(self._folder, wanted, len(self._initial))
        base = self.base_version
        if base and (found is None or found.version < base):
            raise RunFolderError(f"{self._folder}: no valid model file of version {base} or later; restore a backup")
        if found is None:
            return Versions.from_first(self._first, self._initial)
        rows = self._database.rows(
            "SELECT content, version FROM orders WHERE kind = 'set' AND version <= ? ORDER BY version", found.version
        )
        aggregation = self._first
        for content, version in rows:
            aggregation = revised(aggregation, json.loads(content), found.state.model, version)
        return Versions(aggregation, found)

    def _steps(self, after: Snapshot) -> Iterator[Step]:
        version = after.version
        rounds = self._database.rows(
            "SELECT rounds.round, rounds.version, devices, orders.id, kind, content FROM rounds"
            " LEFT JOIN orders ON orders.round = rounds.round WHERE rounds.round > ? ORDER BY rounds.round",
            after.round,
        )
        for round_, reached, devices, id_, kind, content in rounds:
            order = None if kind is None else Order(id_, kind, json.loads(content))
            applied = self._applied_in(reached) if reached > version and order is None else ()
            yield Step(round_, reached, devices, applied, order)
            version = reached

    def _applied_in(self, version: int) -> list[Arrival]:
        rows = self._database.rows(
            "SELECT device, scale, data, weight, samples FROM applied JOIN chunks USING (device, number, chunk)"
            " WHERE version = ? ORDER BY device, number, chunk",
            version,
        )
        return self.arrivals(
            Piece(device, unpack(data, self.layout).scaled(scale), *others) for device, scale, data, *others in rows
        )

    def _previous_version(self, device: int, number: int) -> float:
        """The version that includes a device's previous update; infinity while there is none."""
        query = (
            "SELECT version FROM chunks LEFT JOIN applied USING (device, number, chunk)"
            " WHERE device = ? AND number < ? ORDER BY number DESC LIMIT 1"
        )
        rows = self._database.rows(query, device, number)
        version = rows[0][0] if rows else 0
        return math.inf if version is None else version
