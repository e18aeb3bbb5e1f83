"""The tables in the SQLite file of a run."""

from __future__ import annotations

from dataclasses import fields

from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, RelayEvent

FILE = "run.sqlite"
VERSION = 3

_EVENTS = {"contacts": ContactEvent, "relays": RelayEvent, "evaluations": EvaluationEvent, "metrics": MetricEvent}
COLUMNS = {table: tuple(field.name for field in fields(event)) for table, event in _EVENTS.items()}
"""The columns of the event tables, whose rows arrive one by one."""

TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE devices (
    device INTEGER PRIMARY KEY, budget_joules REAL NOT NULL, samples INTEGER NOT NULL, class_counts TEXT NOT NULL
);
CREATE TABLE contacts ({", ".join(COLUMNS["contacts"])}, PRIMARY KEY (round, device)) WITHOUT ROWID;
CREATE TABLE relays (number INTEGER PRIMARY KEY, {", ".join(COLUMNS["relays"])});
CREATE TABLE evaluations ({", ".join(COLUMNS["evaluations"])}, PRIMARY KEY (round)) WITHOUT ROWID;
CREATE TABLE metrics ({", ".join(COLUMNS["metrics"])}, PRIMARY KEY (round, name)) WITHOUT ROWID;
CREATE TABLE model (round INTEGER PRIMARY KEY, float32_le BLOB NOT NULL);
CREATE TABLE checkpoints (
    round INTEGER PRIMARY KEY, file TEXT NOT NULL, size_bytes INTEGER NOT NULL, sha256 TEXT NOT NULL,
    records TEXT NOT NULL, wall_s REAL NOT NULL, pinned INTEGER NOT NULL
);
"""
