"""Reads the records of a run, and finds the runs in a folder."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Floats
from wayfare.contacts import TraceUse
from wayfare.errors import RunFolderError, WayfareError
from wayfare.files import require_folder
from wayfare.learning.tasks import Metric
from wayfare.methods.privacy import PrivacySpent
from wayfare.records.layout import final_folder, read_meta, resume_call, stored_devices, stored_rows
from wayfare.records.schema import COLUMNS, FILE, VERSION
from wayfare.records.seal import Tally, seal
from wayfare.scenario import Scenario, parse
from wayfare.simulator import RelayEvent
from wayfare.world import Withheld


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunRecord:
    folder: Path
    scenario: Scenario
    scheme: str
    scheme_text: str  # the text that builds the scheme again
    energy_rule: str
    seed: int
    parameters: int
    sums: int  # entries that are class statistics; 0 also if the records are older than this field
    withheld: Withheld | None  # classes without statistics; None also if the records are older than this field
    wall_s: float
    metric: Metric
    meta: dict[str, Any]
    budgets_joules: Floats
    class_counts: Floats
    contacts: dict[str, Floats]
    relays: tuple[RelayEvent, ...]
    evaluations: dict[str, Floats]
    others: dict[str, Floats]  # further metrics, one value per evaluation
    model: Tensor | None  # the final model; None if only its hash was kept
    privacy: PrivacySpent | None  # None if the method is not private
    trace: TraceUse | None  # None if mobility is not a trace, or the records are older than this field

    def __repr__(self) -> str:
        last = self.metric.text(float(self.evaluations["score"][-1]))
        run = f"{self.scheme}, seed {self.seed}, {self.scenario.rounds:,} rounds"
        return f"<RunRecord of {run}: {self.metric.name} {last} at the end, in {self.folder}>"


def find_runs(folder: Path) -> list[Path]:
    """The finished runs at or below a folder, in order of their names."""
    require_folder(folder)
    found = [file.parent for file in sorted(folder.rglob(FILE)) if not file.parent.name.endswith(".partial")]
    if not found:
        if unfinished := next(folder.rglob(FILE), None):
            resume = resume_call(final_folder(unfinished.parent))
            raise RunFolderError(f"{folder}: contains no finished run; resume with {resume}")
        raise RunFolderError(f"{folder}: neither a run nor a folder of runs (no {FILE} in it)")
    return found


def read_run(folder: Path) -> RunRecord:
    file = folder / FILE
    if not file.is_file():
        raise RunFolderError(f"{folder}: not a run (no {FILE} in it)")
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return _read(folder, database)
    except (sqlite3.DatabaseError, ValueError, KeyError, IndexError, TypeError, OverflowError, WayfareError) as error:
        if isinstance(error, RunFolderError):
            raise
        raise RunFolderError(
            f"{file}: damaged, or not the records of a run: {error}; delete this folder to show the other runs, or to "
            "let its study repeat the run"
        ) from None


def _read(folder: Path, database: sqlite3.Connection) -> RunRecord:
    meta = read_meta(database)
    if meta["version"] != VERSION:
        raise RunFolderError(f"{folder}: has records of version {meta['version']}; this Wayfare reads {VERSION}")
    if meta["status"] != "finished":
        raise RunFolderError(f"{folder}: this run did not finish; resume it with {resume_call(final_folder(folder))}")
    devices = stored_devices(database)
    models = database.execute("SELECT float32_le FROM model ORDER BY round DESC LIMIT 1").fetchall()
    vector = models[0][0] if models else b""
    tally, rows = Tally(), {table: stored_rows(database, table) for table in COLUMNS}
    for table, found in rows.items():
        tally.add(table, found)
    if not isinstance(vector, bytes):
        raise TypeError("the model is not a blob")
    if meta["seal"] != seal(meta, devices, tally, vector):
        raise RunFolderError(f"{folder / FILE}: damaged: its checksum is wrong")
    return RunRecord(
        folder=folder,
        scenario=parse(meta["scenario"]),
        scheme=meta["scheme"],
        scheme_text=str(meta.get("scheme_text", meta["scheme"])),
        energy_rule=meta["energy_rule"],
        seed=meta["seed"],
        parameters=meta["parameters"],
        sums=meta.get("sums", 0),
        withheld=_withheld(meta["withheld"]) if meta.get("withheld") else None,
        wall_s=meta["wall_s"],
        metric=Metric(**meta["metric"]),
        meta=meta,
        budgets_joules=np.array([budget for _, budget, _, _ in devices]),
        class_counts=np.array([json.loads(counts) for *_, counts in devices], dtype=np.float64),
        contacts=_columns("contacts", rows["contacts"]),
        relays=tuple(_relay(row) for row in rows["relays"]),
        evaluations=_columns("evaluations", rows["evaluations"]),
        others=_others(rows["metrics"]),
        privacy=PrivacySpent(**meta["privacy"]) if meta.get("privacy") else None,
        trace=_trace(meta["trace"]) if meta.get("trace") else None,
        model=torch.from_numpy(np.frombuffer(vector, dtype="<f4").astype(np.float32)) if models else None,
    )


def _trace(use: Mapping[str, Any]) -> TraceUse:
    return TraceUse(**{**use, "device_names": tuple(use.get("device_names", ()))})


def _withheld(found: Mapping[str, Any]) -> Withheld:
    return Withheld(found["min_count"], tuple(found["classes"]))


def _relay(row: tuple[Any, ...]) -> RelayEvent:
    values = dict(zip(COLUMNS["relays"], row, strict=True))
    return RelayEvent(**{**values, "completed": bool(values["completed"])})


def _others(metrics: Sequence[tuple[Any, ...]]) -> dict[str, Floats]:
    found: dict[str, list[float]] = {}
    for _, name, value in metrics:
        found.setdefault(name, []).append(value)
    return {name: np.array(values, dtype=np.float64) for name, values in found.items()}


def _columns(table: str, rows: Sequence[tuple[Any, ...]]) -> dict[str, Floats]:
    names = COLUMNS[table]
    return dict(zip(names, np.array(rows, dtype=np.float64).reshape(len(rows), len(names)).T, strict=True))
