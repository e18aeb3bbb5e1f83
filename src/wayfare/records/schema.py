"""The tables of a run's one SQLite file."""

from __future__ import annotations

from dataclasses import fields

from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, RelayEvent

FILE = "run.sqlite"
VERSION = 3

CONTACT_COLUMNS = tuple(field.name for field in fields(ContactEvent))
RELAY_COLUMNS = tuple(field.name for field in fields(RelayEvent))
EVALUATION_COLUMNS = tuple(field.name for field in fields(EvaluationEvent))
METRIC_COLUMNS = tuple(field.name for field in fields(MetricEvent))

TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE devices (
    device INTEGER PRIMARY KEY, budget_joules REAL NOT NULL, samples INTEGER NOT NULL, class_counts TEXT NOT NULL
);
CREATE TABLE contacts ({", ".join(CONTACT_COLUMNS)}, PRIMARY KEY (round, device)) WITHOUT ROWID;
CREATE TABLE relays (number INTEGER PRIMARY KEY, {", ".join(RELAY_COLUMNS)});
CREATE TABLE evaluations ({", ".join(EVALUATION_COLUMNS)}, PRIMARY KEY (round)) WITHOUT ROWID;
CREATE TABLE metrics ({", ".join(METRIC_COLUMNS)}, PRIMARY KEY (round, name)) WITHOUT ROWID;
CREATE TABLE model (round INTEGER PRIMARY KEY, float32_le BLOB NOT NULL);
CREATE TABLE checkpoints (
    round INTEGER PRIMARY KEY, file TEXT NOT NULL, size_bytes INTEGER NOT NULL, sha256 TEXT NOT NULL,
    records TEXT NOT NULL, wall_s REAL NOT NULL, pinned INTEGER NOT NULL
);
"""
