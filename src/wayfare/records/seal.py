"""Checksums of records: a number that changed on the disk is noticed, never shown or gone on from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from wayfare.arrays import Floats


class Tally:
    """The checksum of rows as they come, in the order of their keys."""

    def __init__(self) -> None:
        self._contacts, self._relays, self._evaluations, self._metrics = (hashlib.sha256() for _ in range(4))

    def contacts(self, rows: Sequence[Sequence[object]] | Floats) -> None:
        self._contacts.update(_bytes(rows))

    def relays(self, rows: Iterable[Sequence[object]]) -> None:
        """Add relays, in the order in which they came; a truth value is the number that SQLite makes of it."""
        for row in rows:
            plain = [int(value) if isinstance(value, bool) else value for value in row]
            self._relays.update(json.dumps(plain).encode())

    def evaluations(self, rows: Sequence[Sequence[object]] | Floats) -> None:
        self._evaluations.update(_bytes(rows))

    def metrics(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add further metrics (round, name, value), those of a round in the order of their names."""
        for round_, name, value in rows:
            self._metrics.update(json.dumps([round_, name]).encode() + _bytes([[value]]))

    def digests(self) -> dict[str, str]:
        return {
            "contacts": self._contacts.hexdigest(),
            "relays": self._relays.hexdigest(),
            "evaluations": self._evaluations.hexdigest(),
            "metrics": self._metrics.hexdigest(),
        }


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
