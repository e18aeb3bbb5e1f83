"""The folder of a run, its name while the run is incomplete, and access to its tables."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from wayfare.files import sync_folder
from wayfare.records.schema import COLUMNS, FILE


def partial_folder(folder: Path) -> Path:
    """The folder of a run that is not complete yet."""
    return folder.parent / (folder.name + ".partial")


def final_folder(folder: Path) -> Path:
    """The folder of a complete run, given that folder, its partial folder or its lock."""
    folder = folder if folder.name else folder.resolve()
    name = folder.name.removesuffix(".partial").removesuffix(".lock")
    return folder.with_name(name) if name else folder


def resume_call(folder: Path) -> str:
    return f"`wayfare.resume({str(folder)!r})`"


def connect(partial: Path) -> sqlite3.Connection:
    return sqlite3.connect(partial / FILE)


def read_meta(database: sqlite3.Connection) -> dict[str, Any]:
    return {key: json.loads(value) for key, value in database.execute("SELECT key, value FROM meta")}


def as_list(value: object) -> list[Any]:
    """A list from `meta`; a missing or damaged one is empty."""
    return value if isinstance(value, list) else []


def stored_devices(database: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return database.execute("SELECT * FROM devices ORDER BY device").fetchall()


def stored_rows(database: sqlite3.Connection, table: str, until: int = 1 << 62) -> list[tuple[Any, ...]]:
    """The rows of an event table up to a round, in the order of their keys."""
    columns = COLUMNS[table]
    order = "number" if table == "relays" else f"{columns[0]}, {columns[1]}"
    query = f"SELECT {', '.join(columns)} FROM {table} WHERE round <= ? ORDER BY {order}"
    return database.execute(query, (until,)).fetchall()


def rename_to_final(folder: Path) -> None:
    """Give a complete run its final name; this deletes an older run of that name."""
    partial = partial_folder(folder)
    sync_folder(partial)
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
    sync_folder(folder.parent)
