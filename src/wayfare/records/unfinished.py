"""Resumes an unfinished run: its inputs, whether it may resume, and from which checkpoint."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wayfare.errors import RunFolderError
from wayfare.identity import changes, without_parts
from wayfare.records.checkpoints import Checkpoint, DamagedError, delete_unlisted_checkpoints, read_checkpoint
from wayfare.records.layout import as_list, connect, partial_folder, read_meta, stored_rows
from wayfare.records.schema import COLUMNS, FILE, VERSION
from wayfare.records.seal import Tally
from wayfare.records.write import RunWriter, device_rows, finalise_run, session
from wayfare.scenario.difference import differences
from wayfare.simulator import SimulationState
from wayfare.world import World

_log = logging.getLogger("wayfare")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """An unfinished run and its inputs, as recorded."""

    folder: Path  # its final folder
    meta: dict[str, Any]

    @property
    def is_complete(self) -> bool:
        """Whether only the final renaming is missing."""
        return bool(self.meta["status"] == "finished")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidCheckpoint:
    """A verified checkpoint, with the checksums of the records up to it."""

    state: SimulationState
    tally: Tally
    wall_s: float


def find_unfinished(folder: Path) -> Unfinished | None:
    """The unfinished run of a folder; None if there is none, or if it has no records yet."""
    partial = partial_folder(folder)
    if not (partial / FILE).is_file():
        return None
    try:
        with closing(connect(partial)) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                return None
            meta = read_meta(database)
        if not isinstance(meta["status"], str) or not isinstance(meta["scenario"], dict):
            raise ValueError("status or scenario is invalid")
        if meta["version"] != VERSION:
            raise RunFolderError(
                f"{partial}: has records of version {meta['version']}; this Wayfare writes {VERSION}; "
                "restart it with `fresh=True`"
            )
    except (sqlite3.Error, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFolderError(
            f"{partial / FILE}: damaged, or not the records of a run: {error}; restart it with `fresh=True`"
        ) from None
    return Unfinished(folder=folder, meta=meta)


def complete(folder: Path) -> None:
    try:
        finalise_run(folder)
    except (OSError, sqlite3.Error) as error:
        raise RunFolderError(f"{partial_folder(folder)}: complete, but cannot be renamed: {error}") from None


def reject_changes(found: Unfinished, now: Mapping[str, Any]) -> None:
    """Raise RunFolderError if the inputs of a run have changed; the message names the changes."""
    before = found.meta
    settings = differences(_settings(before), _settings(now))
    changed = _changed_inputs(found, now["identity"]) + [line.removeprefix("scenario.") for line in settings]
    world = before.get("world")
    digests = world if isinstance(world, dict) else {}
    parts = [name for name, value in now["world"].items() if digests.get(name) != value]
    if parts and not settings:
        changed.append(f"the drawn world or its files: {', '.join(parts)}")
    if changed:
        raise _changed_error(found, changed)
    versions = before.get("versions")
    others = differences(versions if isinstance(versions, dict) else {}, now["versions"])
    if others:
        reason = "; ".join(others)
        _log.warning("%s: resumes in another environment (%s): its last bits may differ", found.folder, reason)


def reject_other_code(found: Unfinished, identity: Mapping[str, Any]) -> None:
    """Raise RunFolderError if the code or data of a run have changed."""
    changed = _changed_inputs(found, identity)
    if changed:
        raise _changed_error(found, changed)


def reject_other_record(folder: Path, identity: Mapping[str, Any]) -> None:
    """Raise RunFolderError if a folder holds a finished run with other code or data, which a new run would replace."""
    if not (folder / FILE).is_file():
        return
    try:
        with closing(connect(folder)) as database:
            before = read_meta(database).get("identity")
    except (sqlite3.Error, OSError, ValueError, TypeError, RecursionError):
        # A damaged record has nothing to lose.
        return
    if isinstance(before, dict) and (changed := changes(before, identity)):
        raise RunFolderError(
            f"{folder}: holds a finished run with other inputs: {'; '.join(changed)}. "
            "Use another folder, undo the change, or restart the run with `fresh=True`, which replaces that record"
        )


def _changed_inputs(found: Unfinished, identity: Mapping[str, Any]) -> list[str]:
    before = found.meta.get("identity")
    if not isinstance(before, dict):
        raise RunFolderError(f"{found.folder}: its records do not name its code and data; restart it with `fresh=True`")
    return changes(before, identity)


def _settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": meta.get("seed"), "execution": meta.get("execution"), "scenario": without_parts(meta["scenario"])}


def _changed_error(found: Unfinished, changed: Sequence[str]) -> RunFolderError:
    return RunFolderError(
        f"{found.folder}: cannot resume, because its inputs have changed: {'; '.join(changed)}. "
        "Undo the change, or restart the run with `fresh=True`"
    )


def reopen(found: Unfinished, world: World) -> tuple[RunWriter, SimulationState | None]:
    """Open a run at its newest valid checkpoint and delete later records; without a state the run starts again."""
    partial = partial_folder(found.folder)
    try:
        database = connect(partial)
    except (OSError, sqlite3.Error) as error:
        raise RunFolderError(f"{partial}: cannot write here: {error}") from None
    try:
        damaged: list[str] = []
        newest = next(valid_checkpoints(partial, database, damaged), None)
        round_ = newest.state.round if newest else -1
        with database:
            for table in (*COLUMNS, "checkpoints"):
                database.execute(f"DELETE FROM {table} WHERE round > ?", (round_,))
            for table in ("devices", "model"):
                database.execute(f"DELETE FROM {table}")
            database.executemany("INSERT INTO devices VALUES (?, ?, ?, ?)", device_rows(world))
            sessions = [*as_list(found.meta.get("sessions")), session(max(round_, 0))]
            database.execute("INSERT OR REPLACE INTO meta VALUES ('sessions', ?)", (json.dumps(sessions),))
        delete_unlisted_checkpoints(partial, database)
        writer = RunWriter(
            found.folder, database, newest.tally if newest else Tally(), wall_s=newest.wall_s if newest else 0.0
        )
        writer.safe_round = newest.state.round if newest else None
        if newest:
            _log.warning("%s: resuming after round %d", found.folder, round_)
        for note in damaged:
            writer.note(f"{note}; resuming after round {round_}" if newest else f"{note}; the run starts again")
    except (OSError, sqlite3.Error) as error:
        database.close()
        raise RunFolderError(
            f"{partial / FILE}: cannot be read or written: {error}; if it is damaged, restart it with `fresh=True`"
        ) from None
    return writer, newest.state if newest else None


def tally_up_to(database: sqlite3.Connection, round_: int) -> Tally:
    tally = Tally()
    for table in COLUMNS:
        tally.add(table, stored_rows(database, table, round_))
    return tally


def valid_checkpoints(folder: Path, database: sqlite3.Connection, damaged: list[str]) -> Iterator[ValidCheckpoint]:
    """The valid checkpoints, the newest first; a note on each damaged one is appended to `damaged`."""
    rows = database.execute(
        "SELECT round, file, size_bytes, sha256, records, wall_s FROM checkpoints ORDER BY round DESC"
    ).fetchall()
    for round_, file, size_bytes, sha256, records, wall_s in rows:
        try:
            known = Checkpoint(round=round_, file=str(file), size_bytes=size_bytes, sha256=sha256)
            state = read_checkpoint(folder, known)
            tally, written = tally_up_to(database, state.round), _table(records)
            wrong = [name for name, digest in tally.digests().items() if written.get(name) != digest]
            if wrong:
                raise DamagedError(f"the checksum of the {wrong[0]} up to it is wrong")
            valid = ValidCheckpoint(state=state, tally=tally, wall_s=float(wall_s))
        except (DamagedError, ValueError, TypeError) as error:
            damaged.append(f"the checkpoint of round {round_} is damaged: {error}")
            continue
        yield valid


def _table(text: object) -> dict[str, str]:
    """A JSON object; damaged text gives an empty one, which matches no checksum."""
    try:
        table = json.loads(str(text))
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}
