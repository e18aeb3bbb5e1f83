"""The tables of the ledger, and migrations from earlier formats."""

from __future__ import annotations

import json
import sqlite3
import time

FORMAT = 9
_LARGE_MODEL = 1_000_000  # entries
SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE devices (
    device INTEGER PRIMARY KEY, number INTEGER NOT NULL DEFAULT 0, open INTEGER NOT NULL DEFAULT 0,
    norm_sq REAL NOT NULL DEFAULT 0, spent_joules REAL NOT NULL DEFAULT 0,
    name TEXT NOT NULL DEFAULT '', delivered_s REAL, samples INTEGER);
CREATE TABLE finished (device INTEGER NOT NULL, round INTEGER NOT NULL, PRIMARY KEY (device, round)) WITHOUT ROWID;
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY, version INTEGER NOT NULL, devices INTEGER NOT NULL DEFAULT 0,
    made_s REAL NOT NULL DEFAULT 0);
CREATE INDEX rounds_by_version ON rounds (version);
CREATE TABLE models (version INTEGER PRIMARY KEY, file TEXT NOT NULL, sha256 TEXT NOT NULL);
"""
_ORDERS = """CREATE TABLE orders (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, content TEXT NOT NULL, asked_s REAL NOT NULL,
    round INTEGER, version INTEGER, outcome TEXT)"""
_CONTACTS = """CREATE TABLE contacts (
    device INTEGER NOT NULL, start_s REAL NOT NULL, end_s REAL NOT NULL, up_bytes INTEGER NOT NULL,
    down_bytes INTEGER NOT NULL, joules REAL NOT NULL, up_s REAL NOT NULL DEFAULT 0)"""
# A change of a row rewrites its data, so what is known later has its own table.
_CHUNKS = """CREATE TABLE chunks (
    device INTEGER NOT NULL, number INTEGER NOT NULL, chunk INTEGER NOT NULL, chunks INTEGER NOT NULL,
    round INTEGER NOT NULL, received_round INTEGER NOT NULL, digest TEXT NOT NULL, scale REAL NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (device, number, chunk))"""
_APPLIED = """CREATE TABLE applied (
    device INTEGER NOT NULL, number INTEGER NOT NULL, chunk INTEGER NOT NULL, version INTEGER NOT NULL,
    weight REAL NOT NULL, samples INTEGER, PRIMARY KEY (device, number, chunk)) WITHOUT ROWID"""
_APPLIED_BY_VERSION = "CREATE INDEX applied_by_version ON applied (version)"
# Class statistics of chunks that a compaction deleted; a device without its store replaces them.
_CONTRIBUTIONS = "CREATE TABLE IF NOT EXISTS contributions (device INTEGER PRIMARY KEY, data BLOB NOT NULL)"
SCHEMA += ";".join((_ORDERS, _CONTACTS, _CHUNKS, _APPLIED, _APPLIED_BY_VERSION, _CONTRIBUTIONS))


def page_bytes_for(entries: int) -> int:
    """The size of a page in a new ledger.

    SQLite writes chunks page by page, twice. Large pages halve the CPU time for large chunks, and waste it for small
    ones, because every transaction writes some pages that hardly changed.
    """
    return 16 << 10 if entries >= _LARGE_MODEL else 4 << 10


def _name_devices(connection: sqlite3.Connection) -> None:
    """Format 2 had a fixed number of devices without names, and every version counted all of them."""
    for table, column in (
        ("devices", "name TEXT NOT NULL DEFAULT ''"),
        ("devices", "delivered_s REAL"),
        ("devices", "samples INTEGER"),
        ("chunks", "weight REAL NOT NULL DEFAULT 1"),
        ("chunks", "samples INTEGER"),
        ("rounds", "devices INTEGER NOT NULL DEFAULT 0"),
        ("rounds", "made_s REAL NOT NULL DEFAULT 0"),
    ):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    connection.execute("CREATE INDEX rounds_by_version ON rounds (version)")
    now_s = time.time()
    connection.execute("UPDATE rounds SET devices = (SELECT count(*) FROM devices), made_s = ?", (now_s,))
    connection.execute("UPDATE devices SET delivered_s = ? WHERE number > 0", (now_s,))


def _take_orders(connection: sqlite3.Connection) -> None:
    connection.execute(_ORDERS)


def _log_contacts(connection: sqlite3.Connection) -> None:
    connection.execute(_CONTACTS)


def _time_uploads(connection: sqlite3.Connection) -> None:
    """Until format 6 the log of contacts did not tell how long uploads took."""
    if "up_s" not in [row[1] for row in connection.execute("PRAGMA table_info(contacts)")]:
        connection.execute("ALTER TABLE contacts ADD COLUMN up_s REAL NOT NULL DEFAULT 0")


def _part_versions(connection: sqlite3.Connection) -> None:
    """Format 5 kept the version of a chunk beside its data."""
    connection.execute(_APPLIED)
    connection.execute(_APPLIED_BY_VERSION)
    connection.execute(
        "INSERT INTO applied SELECT device, number, chunk, version, weight, samples FROM chunks"
        " WHERE version IS NOT NULL"
    )
    connection.execute("ALTER TABLE chunks RENAME TO chunks_5")
    connection.execute(_CHUNKS)
    kept = "device, number, chunk, chunks, round, received_round, digest, scale, data"
    connection.execute(f"INSERT INTO chunks SELECT {kept} FROM chunks_5 ORDER BY rowid")
    connection.execute("DROP TABLE chunks_5")


def _name_directions(connection: sqlite3.Connection) -> None:
    """Format 7 had a guard that did not judge directions."""
    for (text,) in connection.execute("SELECT value FROM facts WHERE name = 'identity'").fetchall():
        identity = json.loads(text)
        guard = identity.get("replay", {}).get("guard", "") if isinstance(identity, dict) else ""
        if guard.startswith("Guard(") and "directions" not in guard:
            identity["replay"]["guard"] = guard.removesuffix(")") + ", directions=False)"
            connection.execute("UPDATE facts SET value = ? WHERE name = 'identity'", (json.dumps(identity),))


def _keep_contributions(connection: sqlite3.Connection) -> None:
    """Format 8 forgot whose statistics a compaction deleted."""
    connection.execute(_CONTRIBUTIONS)


MIGRATIONS = {
    2: _name_devices,
    3: _take_orders,
    4: _log_contacts,
    5: _part_versions,
    6: _time_uploads,
    7: _name_directions,
    8: _keep_contributions,
}
