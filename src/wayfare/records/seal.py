"""Checksums of records, so that a number that changed on disk is never shown or used to resume."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wayfare.arrays import Floats
from wayfare.records.schema import COLUMNS


class Tally:
    """A running checksum per event table, over its rows in the order of their keys."""

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
                # SQLite stores a Boolean as an integer.
                plain = [int(value) if isinstance(value, bool) else value for value in row]
                self._sums[table].update(json.dumps(plain).encode())

    def digests(self) -> dict[str, str]:
        return {table: sha256.hexdigest() for table, sha256 in self._sums.items()}


def seal(meta: Mapping[str, Any], devices: Sequence[Sequence[object]], tally: Tally, model: bytes) -> str:
    """One checksum over all content of a finished run except the checksum itself."""
    content = {key: value for key, value in meta.items() if key != "seal"}
    text = json.dumps([content, [list(device) for device in devices], tally.digests()], sort_keys=True)
    return hashlib.sha256(text.encode() + model).hexdigest()


def _bytes(rows: Sequence[Sequence[object]] | Floats) -> bytes:
    """Numbers as little-endian doubles; NULL and every NaN have the same bytes."""
    values = np.array(rows, dtype="<f8")
    values[np.isnan(values)] = np.nan
    return values.tobytes()
