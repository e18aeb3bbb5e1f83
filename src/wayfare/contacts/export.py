"""Export contacts: a table (CSV, Parquet, rows, a data frame) and The ONE's connectivity events.

Files start with comment lines that name the server, the devices and the duration, so that Wayfare reads the complete
plan back. Other readers skip them (The ONE by default, pandas with ``comment="#"``). Parquet has them as metadata.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from wayfare.contacts.plan import ContactPlan
from wayfare.errors import InputError, UnavailableError
from wayfare.files import writing
from wayfare.mobility import SERVER
from wayfare.mobility.traces.contact_table import METADATA_KEY


def contact_rows(plan: ContactPlan) -> list[dict[str, Any]]:
    """One row per contact: number and name of the device, peer, start, end and distance.

    Unnamed devices use their numbers, an unnamed server ``server``.
    """
    columns = _columns(plan)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def contact_frame(plan: ContactPlan) -> Any:
    try:
        import pandas
    except ImportError:
        raise UnavailableError("data frames need pandas: pip install pandas") from None
    return pandas.DataFrame(_columns(plan))


def write_contacts(plan: ContactPlan, path: Path | str) -> None:
    """Write the rows as ``.csv`` or ``.parquet`` with exact numbers. ``mobility.file`` reads both."""
    file = Path(path)
    if file.suffix not in (".csv", ".parquet"):
        raise InputError(f"{file}: must end in .csv or .parquet")
    header = _header(plan, " ", "server")
    if file.suffix == ".parquet":
        _write_parquet(plan, file, header)
        return
    with writing(file, "cannot be written"), file.open("w", encoding="utf-8", newline="") as target:
        target.write(header)
        writer = csv.writer(target, lineterminator="\n")
        columns = _columns(plan)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def export_one(plan: ContactPlan, path: Path | str) -> None:
    """Write ``time CONN a b up|down`` in order of time. An unnamed server is the node after the last device.

    The format has no distances, and no spaces in names: they become ``_``.
    """
    names = _names(plan, "_", str(plan.devices))
    rows = np.tile(np.arange(len(plan)), 2)
    time_s = np.concatenate([plan.start_s, plan.end_s])
    is_up = np.repeat([1, 0], len(plan))
    with writing(path, "cannot be written"), Path(path).open("w", encoding="utf-8") as file:
        file.write(_header(plan, "_", str(plan.devices)))
        # At equal times ends come before starts: a pair may separate and meet again.
        for event in np.lexsort((plan.device[rows], is_up, time_s)).tolist():
            row = rows[event]
            state = "up" if is_up[event] else "down"
            pair = f"{names[plan.device[row]]}\t{names[plan.peer[row]]}"
            file.write(f"{float(time_s[event])!r}\tCONN\t{pair}\t{state}\n")


def _write_parquet(plan: ContactPlan, file: Path, header: str) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UnavailableError("Parquet needs pyarrow: pip install 'wayfare[parquet]'") from None
    # Explicit types: an empty plan has no values to infer them from.
    kinds = (pyarrow.int64(), pyarrow.string(), pyarrow.string(), *[pyarrow.float64()] * 3)
    columns = _columns(plan)
    schema = pyarrow.schema(list(zip(columns, kinds, strict=True)), metadata={METADATA_KEY: header})
    table = pyarrow.table(columns, schema=schema)
    with writing(file, "cannot be written"):
        parquet.write_table(table, file)


def _columns(plan: ContactPlan) -> dict[str, list[Any]]:
    names = _names(plan, " ", "server")
    return {
        "device": plan.device.tolist(),
        "name": [names[device] for device in plan.device],
        "peer": [names[peer] for peer in plan.peer],
        "start_s": plan.start_s.tolist(),
        "end_s": plan.end_s.tolist(),
        "distance_m": plan.distance_m.tolist(),
    }


def _names(plan: ContactPlan, space: str, server: str) -> dict[int, str]:
    """The name of every node, with white space replaced; unnamed nodes use their numbers."""
    given = plan.names or (*map(str, range(plan.devices)), server)
    written = [space.join(name.split()) for name in given]
    if len(set(written)) < len(written):
        twice = next(name for name in written if written.count(name) > 1)
        raise InputError(f"two nodes would both be written as {twice!r}: their names differ only in white space")
    return {SERVER if number == plan.devices else number: name for number, name in enumerate(written)}


def _header(plan: ContactPlan, space: str, server: str) -> str:
    names = _names(plan, space, server)
    devices = "named" if plan.names else str(plan.devices)
    first = f"# wayfare contact plan: devices={devices} server={names[SERVER]} duration_s={float(plan.duration_s)!r}\n"
    named = range(plan.devices) if plan.names else ()
    return first + "".join(f"# wayfare device: {names[device]}\n" for device in named)
