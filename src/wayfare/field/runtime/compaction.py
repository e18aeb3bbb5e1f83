"""Compaction: replace old chunks by a snapshot of the model, so that a server's disk stays bounded.

The snapshot is written and registered before anything is deleted, in one transaction with the deletion. Of every
device the last applied update keeps its rows without their data: a device that returns after months still learns which
of its chunks were recorded.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from wayfare.errors import ScenarioError
from wayfare.field.runtime.aggregation import Snapshot
from wayfare.field.runtime.contributions import keep_contributions
from wayfare.field.runtime.database import Database
from wayfare.field.runtime.history import History

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How much of its past a server keeps: both limits hold."""

    days: float = 7.0
    bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if not self.days >= 0:
            raise ScenarioError("keep_days", self.days, "must be at least 0")
        if self.bytes < 0:
            raise ScenarioError("keep_mb", self.bytes / 1e6, "must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    base_version: int  # the oldest version that can be replayed
    chunks: int = 0  # deleted, or left without their data
    bytes: int = 0  # of their data


def base_within(database: Database, history: History, window: Window, now_s: float | None = None) -> Snapshot | None:
    """The oldest version within a window, if the base must move to it.

    It only reads, so another thread may replay it while the server makes new versions.
    """
    version = _first_kept(database, history, window, time.time() if now_s is None else now_s)
    return history.snapshot_at(version) if version > history.base_version else None


def compact(database: Database, history: History, snapshot: Snapshot) -> Compacted:
    """Make a snapshot the base, and delete what lies before it."""
    version = snapshot.version
    with database.transaction() as connection:
        history.register(snapshot, base=True)
        # Open updates keep their data: their chunks must not overlap.
        is_open = (
            "SELECT 1 FROM devices WHERE devices.device = chunks.device AND open AND devices.number = chunks.number"
        )
        is_past = (
            "SELECT 1 FROM applied WHERE version <= :version AND applied.device = chunks.device"
            " AND applied.number = chunks.number AND applied.chunk = chunks.chunk"
        )
        old = f"length(data) > 0 AND EXISTS ({is_past}) AND NOT EXISTS ({is_open})"
        values = {"version": version}
        totals = f"SELECT count(*), sum(length(data)) FROM chunks WHERE {old}"
        count, size = connection.execute(totals, values).fetchone()
        if history.aggregation.terms.sums:
            keep_contributions(connection, database, history.layout, old, values)
        connection.execute(f"UPDATE chunks SET data = x'' WHERE {old}", values)
        last = "SELECT device, max(number) FROM applied WHERE version <= ? GROUP BY device"
        older = [
            {"device": device, "number": number, "version": version} for device, number in database.rows(last, version)
        ]
        of_older = "device = :device AND number < :number"
        connection.executemany(f"DELETE FROM chunks WHERE {of_older} AND EXISTS ({is_past})", older)
        connection.executemany(f"DELETE FROM applied WHERE {of_older} AND version <= :version", older)
        # The last version of every day tells how old a model is.
        kept = f"SELECT max(version) FROM rounds WHERE version <= :version GROUP BY CAST(made_s / {_DAY_S} AS INTEGER)"
        connection.execute(f"DELETE FROM rounds WHERE version < :version AND version NOT IN ({kept})", values)
        connection.execute("DELETE FROM finished WHERE round <= ?", (snapshot.round,))
    return Compacted(base_version=version, chunks=count, bytes=size or 0)


def shrink(database: Database) -> None:
    """Return free pages of the file to the file system; otherwise later chunks reuse them."""
    with database.lock:
        database.connection.execute("PRAGMA incremental_vacuum").fetchall()
        database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _first_kept(database: Database, history: History, window: Window, now_s: float) -> int:
    """The oldest version that a window keeps; it must not lie between a rollback and its target."""
    base = history.base_version
    before = database.rows("SELECT max(version) FROM rounds WHERE made_s <= ?", now_s - window.days * _DAY_S)
    version = max(before[0][0] or 0, base)
    left = window.bytes
    sizes = (
        "SELECT version, sum(length(data)) FROM applied JOIN chunks USING (device, number, chunk)"
        " WHERE version > ? GROUP BY version ORDER BY version DESC"
    )
    for made, size in database.rows(sizes, version):
        left -= size
        if left < 0:
            version = made
            break
    rollbacks = "SELECT version, json_extract(content, '$.version') FROM orders WHERE kind = 'rollback' AND version > ?"
    for made, target in sorted(database.rows(rollbacks, version)):
        if target < version < made:
            version = made
    return version
