"""Writes the records of one run, and its checkpoints."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import platform
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wayfare.contacts import trace_use
from wayfare.errors import RunFolderError, StorageError
from wayfare.methods import Method
from wayfare.records.checkpoints import delete_unlisted_checkpoints, write_checkpoint
from wayfare.records.layout import (
    as_list,
    connect,
    partial_folder,
    read_meta,
    rename_to_final,
    resume_call,
    stored_devices,
)
from wayfare.records.origin import commit_of_code
from wayfare.records.schema import COLUMNS, TABLES, VERSION
from wayfare.records.seal import Tally, seal
from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, Observer, RelayEvent, SimulationState
from wayfare.version import ALGORITHM, __version__
from wayfare.world import World, peer_digests, withheld_classes, world_digests

_log = logging.getLogger("wayfare")

# The newest, and one to fall back on if it is damaged.
_KEPT_CHECKPOINTS = 2


class RunWriter(Observer):
    """An observer that records everything. The folder gets its final name when the run is complete.

    Until then the records are in ``<folder>.partial``, where they can be read during the run. Every evaluation is
    committed at once; a checkpoint is committed in one transaction with all records up to its round.
    """

    def __init__(self, folder: Path, database: sqlite3.Connection, tally: Tally, *, wall_s: float = 0.0) -> None:
        self._folder, self._partial, self._database, self._tally = folder, partial_folder(folder), database, tally
        self._rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in COLUMNS}
        self._size_bytes = 0
        self.earlier_s = wall_s
        """Wall time of earlier sessions."""
        self.safe_round: int | None = None
        """The round of the last checkpoint."""

    @classmethod
    def begin(cls, folder: Path, world: World, meta: Mapping[str, Any]) -> RunWriter:
        """Create the records of a new run, with `run_inputs` as `meta`, and delete those of an unfinished one."""
        partial = partial_folder(folder)
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            database = connect(partial)
        except (OSError, sqlite3.Error) as error:
            raise RunFolderError(f"{partial}: cannot write here: {_reason(error)}") from None
        writer = cls(folder, database, Tally())
        try:
            with writer._storing():
                database.execute("PRAGMA journal_mode = WAL")
                # Tables and meta in one transaction, so that every run on disk has its inputs.
                database.executescript(f"BEGIN;{TABLES}")
                writer._meta({**meta, "status": "running", "started": _now(), "sessions": [session(0)]})
                database.executemany("INSERT INTO devices VALUES (?, ?, ?, ?)", device_rows(world))
                database.commit()
        except BaseException:
            database.close()
            raise
        return writer

    def on_contact(self, event: ContactEvent) -> None:
        """Buffer a contact; it is written with the next evaluation or checkpoint."""
        self._rows["contacts"].append(_row("contacts", event))

    def on_relay(self, event: RelayEvent) -> None:
        self._rows["relays"].append(_row("relays", event))

    def on_evaluation(self, event: EvaluationEvent, others: Sequence[MetricEvent]) -> None:
        """Write an evaluation and every contact before it, in one transaction."""
        metrics = sorted(_row("metrics", other) for other in others)
        self.write_rows({"evaluations": [_row("evaluations", event)], "metrics": metrics})

    def write_rows(self, rows: Mapping[str, Sequence[tuple[Any, ...]]]) -> None:
        """Write rows by table, in the order of their keys; an extended run starts with those of the shorter run."""
        for table, some in rows.items():
            self._rows[table] += some
        with self._storing(), self._database:
            self._insert_rows()

    def checkpoint(self, state: SimulationState, wall_s: float, *, pinned: bool = False) -> None:
        """Save everything up to a round: first the checkpoint file, then one transaction that lists it.

        A pinned checkpoint is kept forever; of the others, the last two are.
        """
        with self._storing():
            saved = write_checkpoint(self._partial, state)
            self._size_bytes = saved.size_bytes
            with self._database:
                self._insert_rows()
                self._database.execute(
                    "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (*astuple(saved), json.dumps(self._tally.digests()), self.earlier_s + wall_s, pinned),
                )
                self._database.execute(
                    "DELETE FROM checkpoints WHERE NOT pinned AND round NOT IN "
                    "(SELECT round FROM checkpoints ORDER BY round DESC LIMIT ?)",
                    (_KEPT_CHECKPOINTS,),
                )
            self.safe_round = state.round
            # Only now: until the transaction is on disk, the older checkpoints are the valid ones.
            delete_unlisted_checkpoints(self._partial, self._database)

    def finish(
        self,
        model: Tensor,
        rounds: int,
        wall_s: float,
        *,
        privacy: Mapping[str, Any] | None = None,
        keep_model: bool = True,
    ) -> None:
        """Add the final model, or only its hash, and what privacy cost; give the folder its final name."""
        vector = model.cpu().numpy().astype("<f4").tobytes()
        with self._storing():
            with self._database:
                self._insert_rows()
                self._meta({"model_sha256": hashlib.sha256(vector).hexdigest()})
                if privacy is not None:
                    self._meta({"privacy": privacy})
                if keep_model:
                    self._database.execute("INSERT INTO model VALUES (?, ?)", (rounds, vector))
                self._database.execute("DELETE FROM checkpoints WHERE NOT pinned")
                self._meta({"status": "finished", "wall_s": round(self.earlier_s + wall_s, 3)})
                meta, devices = read_meta(self._database), stored_devices(self._database)
                self._meta({"seal": seal(meta, devices, self._tally, vector if keep_model else b"")})
            self._database.close()
            finalise_run(self._folder)

    def note(self, text: str) -> None:
        _log.warning("%s: %s", self._folder, text)
        with self._storing(), self._database:
            self._meta({"notes": [*as_list(read_meta(self._database).get("notes")), text]})

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def saved_progress(self) -> str:
        if self.safe_round is None:
            return "No checkpoint was written yet, so the run will start from the beginning."
        resume = resume_call(self._folder)
        return f"A checkpoint holds everything up to round {self.safe_round}; {resume} resumes there."

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Turn a write error into a StorageError that says what was saved and how to resume."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            room = f" (a checkpoint takes {self._size_bytes / 1e6:.1f} MB)" if self._size_bytes else ""
            raise StorageError(
                f"{self._partial}: cannot be written: {_reason(error)}{room}. {self.saved_progress()}"
            ) from None

    def _insert_rows(self) -> None:
        """Insert buffered rows within a transaction; a failure ends the run."""
        for table, rows in self._rows.items():
            names = COLUMNS[table]
            marks = ", ".join("?" * len(names))
            self._database.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows)
            self._tally.add(table, rows)
            rows.clear()

    def _meta(self, values: Mapping[str, Any]) -> None:
        self._database.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)", [(key, json.dumps(value)) for key, value in values.items()]
        )


def finalise_run(folder: Path) -> None:
    """Clean up a complete run and give it its final name; safe to repeat after an interruption."""
    partial = partial_folder(folder)
    with closing(connect(partial)) as database:
        # Without a WAL the run is one file, which can be copied and read on a read-only disk.
        database.execute("PRAGMA journal_mode = DELETE")
        delete_unlisted_checkpoints(partial, database)
    rename_to_final(folder)


def run_inputs(
    world: World, method: Method, identity: Mapping[str, Any], execution: Mapping[str, Any], hardware: str
) -> dict[str, Any]:
    """The inputs of a run; it resumes only if they are unchanged."""
    used, withheld = trace_use(world.scenario), withheld_classes(world)
    return {
        "version": VERSION,
        "algorithm": ALGORITHM,
        "scenario": world.scenario.model_dump(mode="json"),
        "scheme": method.name,
        "scheme_text": method.text or method.name,
        "identity": dict(identity),
        "energy_rule": method.energy_rule,
        "seed": world.seed,
        "parameters": world.link.parameters,
        "sums": world.link.sums,
        "withheld": None if withheld is None else asdict(withheld),
        "metric": asdict(world.task.metric),
        "execution": dict(execution),
        "world": world_digests(world) | (peer_digests(world) if method.peers else {}),
        "trace": None if used is None else asdict(used),
        "versions": {
            "hardware": hardware,
            "wayfare": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def session(round_: int) -> dict[str, Any]:
    """A session of a run: the round after which it started, time, host and commit."""
    return {"after_round": round_, "at": _now(), "host": platform.node(), "commit": commit_of_code()}


def device_rows(world: World) -> list[tuple[int, float, int, str]]:
    labels = world.task.class_of_samples()
    counts = [np.bincount(labels[held], minlength=world.task.classes).tolist() for held in world.held]
    return [
        (device, float(budget), len(world.held[device]), json.dumps(counts[device]))
        for device, budget in enumerate(world.budgets_joules)
    ]


# `astuple` copies every value, which takes four times as long.
_VALUES = {table: attrgetter(*names) for table, names in COLUMNS.items()}


def _row(table: str, event: ContactEvent | RelayEvent | EvaluationEvent | MetricEvent) -> tuple[Any, ...]:
    return tuple(map(_storable, _VALUES[table](event)))


def _storable(value: object) -> object:
    """A value as SQLite stores it: NaN becomes NULL."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _reason(error: OSError | sqlite3.Error) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
