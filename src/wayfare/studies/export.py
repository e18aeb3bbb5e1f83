"""Studies as tidy tables, with one row per run and one row per evaluation."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wayfare.errors import UnavailableError
from wayfare.files import writing
from wayfare.records import RunRecord, read_run
from wayfare.studies.results import RunResult, StudyResults
from wayfare.studies.store import Manifest, PlannedRun

Record = dict[str, Any]


def run_rows(results: StudyResults) -> list[Record]:
    """One row per run: its key and settings, all measures, and when it reached the targets (empty: never)."""
    rows = []
    for result in results.results:
        row = _identity(results.manifest, result.run) | {
            "energy_rule": result.summary.energy_rule,
            "metric": result.metric.name,
            **result.measures,
        }
        for target, reached in zip(results.manifest.targets, result.reached, strict=True):
            row |= {
                f"rounds_to_{target:g}": reached.rounds,
                f"time_s_to_{target:g}": reached.time_s,
                f"energy_joules_to_{target:g}": reached.energy_joules,
            }
        rows.append(row | {"folder": str(result.folder)})
    return rows


def evaluation_rows(results: StudyResults) -> list[Record]:
    return [row for result in results.results for row in _evaluations(results.manifest, result)]


def write_csv(rows: Sequence[Record], file: Path) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with writing(file, "cannot be written"), file.open("w", encoding="utf-8", newline="") as target:
        writer = csv.DictWriter(target, names)
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(rows: Sequence[Record], file: Path) -> None:
    """Write typed columns with pyarrow (the extra `parquet`)."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UnavailableError("Parquet needs pyarrow: pip install 'wayfare[parquet]'") from None
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    with writing(file, "cannot be written"):
        parquet.write_table(table, file)


def write_tensorboard(record: RunRecord, folder: Path) -> None:
    """Write the curves of a run for TensorBoard (the extra `tensorboard`), with rounds as steps."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UnavailableError("TensorBoard needs tensorboard: pip install 'wayfare[tensorboard]'") from None
    columns = {record.metric.name: record.evaluations["score"]}
    columns |= {name: record.evaluations[name] for name in ("loss", "energy_joules", "bits")} | record.others
    with SummaryWriter(str(folder)) as writer:
        for name, values in columns.items():
            for round_, value in zip(record.evaluations["round"], values, strict=True):
                writer.add_scalar(name, float(value), int(round_))


def _identity(manifest: Manifest, run: PlannedRun) -> Record:
    values = {
        axis: json.dumps(value) if isinstance(value, dict | list) else value
        for axis, value in manifest.points[run.point].items()
    }
    shared = manifest.is_shared(run)
    return {"study": manifest.name, "key": run.key, "shared": shared, **values, "scheme": run.scheme, "seed": run.seed}


def _evaluations(manifest: Manifest, result: RunResult) -> Iterator[Record]:
    record = read_run(result.folder)
    identity = _identity(manifest, result.run) | {"metric": result.metric.name}
    columns = record.evaluations | record.others
    for index in range(len(record.evaluations["round"])):
        numbers = {name: float(values[index]) for name, values in columns.items()}
        yield identity | numbers | {"round": int(numbers["round"])}
