"""Takes up a run that did not finish: what it is, whether it may go on, and from where."""

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
from wayfare.records.checkpoints import Checkpoint, DamagedError, forget_others, read_checkpoint
from wayfare.records.layout import as_list, connect, partial_folder, read_meta, stored_rows
from wayfare.records.schema import COLUMNS, FILE, VERSION
from wayfare.records.seal import Tally
from wayfare.records.write import RunWriter, device_rows, session, wrap_up
from wayfare.scenario.difference import differences
from wayfare.simulator import SimulationState
from wayfare.world import World

_log = logging.getLogger("wayfare")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A run that began: what its records say it is."""

    folder: Path  # the name it is to have
    meta: dict[str, Any]

    @property
    def is_whole(self) -> bool:
        """Whether only its name is missing."""
        return bool(self.meta["status"] == "finished")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """A checkpoint that is what was written, with the checksums of the records up to it."""

    state: SimulationState
    tally: Tally
    wall_s: float


def find_unfinished(folder: Path) -> Unfinished | None:
    """The run that began in a folder and has not got its name; None when there is none, or it had not got so far."""
    partial = partial_folder(folder)
    if not (partial / FILE).is_file():
        return None
    try:
        with closing(connect(partial)) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                return None
            meta = read_meta(database)
        if not isinstance(meta["status"], str) or not isinstance(meta["scenario"], dict):
            raise ValueError("status or scenario is not what it should be")
        if meta["version"] != VERSION:
            raise RunFolderError(
                f"{partial}: records of version {meta['version']}, this Wayfare writes {VERSION}; "
                "start it over with `fresh=True`"
            )
    except (sqlite3.Error, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFolderError(
            f"{partial / FILE}: damaged, or not the records of a run: {error}; start it over with `fresh=True`"
        ) from None
    return Unfinished(folder=folder, meta=meta)


def complete(folder: Path) -> None:
    try:
        wrap_up(folder)
    except (OSError, sqlite3.Error) as error:
        raise RunFolderError(f"{partial_folder(folder)}: whole, but cannot be given its name: {error}") from None


def refuse_changes(found: Unfinished, now: Mapping[str, Any]) -> None:
    """A run resumes only as what it began as; the error names what is different now."""
    before = found.meta
    settings = differences(_settings(before), _settings(now))
    changed = _changed_inputs(found, now["identity"]) + [line.removeprefix("scenario.") for line in settings]
    world = before.get("world")
    prints = world if isinstance(world, dict) else {}
    parts = [name for name, value in now["world"].items() if prints.get(name) != value]
    if parts and not settings:
        changed.append(f"what is drawn or read from files: {', '.join(parts)}")
    if changed:
        raise _another(found, changed)
    versions = before.get("versions")
    others = differences(versions if isinstance(versions, dict) else {}, now["versions"])
    if others:
        _log.warning("%s: goes on elsewhere (%s): its last bits may differ", found.folder, "; ".join(others))


def refuse_another(found: Unfinished, identity: Mapping[str, Any]) -> None:
    """A run counts only for the code and data it began with."""
    changed = _changed_inputs(found, identity)
    if changed:
        raise _another(found, changed)


def _changed_inputs(found: Unfinished, identity: Mapping[str, Any]) -> list[str]:
    before = found.meta.get("identity")
    if not isinstance(before, dict):
        raise RunFolderError(
            f"{found.folder}: its records do not say which code and data it began with; start it over with `fresh=True`"
        )
    return changes(before, identity)


def _settings(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": meta.get("seed"), "execution": meta.get("execution"), "scenario": without_parts(meta["scenario"])}


def _another(found: Unfinished, changed: Sequence[str]) -> RunFolderError:
    return RunFolderError(
        f"{found.folder}: began as another run, so it cannot resume as this one. Changed since: {'; '.join(changed)}. "
        "Undo the change, or start the run over with `fresh=True`"
    )


def reopen(found: Unfinished, world: World) -> tuple[RunWriter, SimulationState | None]:
    """The records up to the newest sound checkpoint, later ones deleted; no state means that the run begins anew."""
    partial = partial_folder(found.folder)
    try:
        database = connect(partial)
    except (OSError, sqlite3.Error) as error:
        raise RunFolderError(f"{partial}: cannot write here: {error}") from None
    try:
        damaged: list[str] = []
        newest = next(sound_checkpoints(partial, database, damaged), None)
        round_ = newest.state.round if newest else -1
        with database:
            for table in (*COLUMNS, "checkpoints"):
                database.execute(f"DELETE FROM {table} WHERE round > ?", (round_,))
            for table in ("devices", "model"):
                database.execute(f"DELETE FROM {table}")
            database.executemany("INSERT INTO devices VALUES (?, ?, ?, ?)", device_rows(world))
            sessions = [*as_list(found.meta.get("sessions")), session(max(round_, 0))]
            database.execute("INSERT OR REPLACE INTO meta VALUES ('sessions', ?)", (json.dumps(sessions),))
        forget_others(partial, database)
        writer = RunWriter(
            found.folder, database, newest.tally if newest else Tally(), wall_s=newest.wall_s if newest else 0.0
        )
        writer.safe_round = newest.state.round if newest else None
        if newest:
            _log.warning("%s: began before, goes on after round %d", found.folder, round_)
        for note in damaged:
            writer.note(f"{note}; going on from round {round_}" if newest else f"{note}; the run begins anew")
    except (OSError, sqlite3.Error) as error:
        database.close()
        raise RunFolderError(
            f"{partial / FILE}: cannot be read or written: {error}; if it is damaged, start it over with `fresh=True`"
        ) from None
    return writer, newest.state if newest else None


def tally_up_to(database: sqlite3.Connection, round_: int) -> Tally:
    tally = Tally()
    for table in COLUMNS:
        tally.add(table, stored_rows(database, table, round_))
    return tally


def sound_checkpoints(folder: Path, database: sqlite3.Connection, damaged: list[str]) -> Iterator[Sound]:
    """The checkpoints that are what was written, the newest first; a word on each that is not goes into a list."""
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
                raise DamagedError(f"the {wrong[0]} up to it are not what was written")
            sound = Sound(state=state, tally=tally, wall_s=float(wall_s))
        except (DamagedError, ValueError, TypeError) as error:
            damaged.append(f"the checkpoint of round {round_} is damaged: {error}")
            continue
        yield sound


def _table(text: object) -> dict[str, str]:
    """A JSON object; damaged text is an empty one, which no checksum agrees with."""
    try:
        table = json.loads(str(text))
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}
