"""Checksums of records: a number that changed on the disk is noticed, never shown or gone on from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wayfare.arrays import Floats
from wayfare.records.schema import COLUMNS


class Tally:
    """A checksum for every table, of its rows as they come, in the order of their keys."""

    def __init__(self) -> None:
        self._sums = {table: hashlib.sha256() for table in COLUMNS}

    def add(self, table: str, rows: Sequence[Sequence[Any]] | Floats) -> None:
        if table in ("contacts", "evaluations"):
            self._sums[table].update(_bytes(rows))
            return
        for row in rows:
            if table == "metrics":
                round_, name, value = row
                self._sums[table].update(json.dumps([round_, name]).encode() + _bytes([[value]]))
            else:
                # A truth value is the number that SQLite makes of it.
                plain = [int(value) if isinstance(value, bool) else value for value in row]
                self._sums[table].update(json.dumps(plain).encode())

    def digests(self) -> dict[str, str]:
        return {table: sha256.hexdigest() for table, sha256 in self._sums.items()}


def seal(meta: Mapping[str, Any], devices: Sequence[Sequence[object]], tally: Tally, model: bytes) -> str:
    """One checksum over everything a finished run holds, but itself."""
    content = {key: value for key, value in meta.items() if key != "seal"}
    text = json.dumps([content, [list(device) for device in devices], tally.digests()], sort_keys=True)
    return hashlib.sha256(text.encode() + model).hexdigest()


def _bytes(rows: Sequence[Sequence[object]] | Floats) -> bytes:
    """Numbers as doubles, the least byte first; what SQLite keeps as NULL is the one NaN."""
    values = np.array(rows, dtype="<f8")
    values[np.isnan(values)] = np.nan
    return values.tobytes()
