"""Collect, check and sort contacts: shared by the contact formats."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.errors import TraceError
from wayfare.mobility.base import Meetings
from wayfare.mobility.traces.reading import BadLines, name_in, time_in
from wayfare.mobility.traces.recording import Recording, natural_order

HEADER = re.compile(r"# wayfare contact plan: devices=([0-9]{1,9}|named) server=(.+) duration_s=(\S+)$")
"""The first line of Wayfare's exports. It preserves devices without contacts, and the start and end of the plan."""
_DEVICE = re.compile(r"# wayfare device: (.+)$")
"""If devices are `named`, one line per device follows."""


@dataclass(slots=True)
class ContactRows:
    """Growing columns of contacts."""

    names: dict[str, int] = field(default_factory=dict)
    one: array[int] = field(default_factory=lambda: array("q"))
    other: array[int] = field(default_factory=lambda: array("q"))
    start_s: array[float] = field(default_factory=lambda: array("d"))
    end_s: array[float] = field(default_factory=lambda: array("d"))
    distance_m: array[float] = field(default_factory=lambda: array("d"))
    line: array[int] = field(default_factory=lambda: array("q"))
    # Start and end of the file, which may be before the first contact and after the last.
    begin_s: float | None = None
    until_s: float | None = None
    server: str | None = None

    def number(self, name: str) -> int:
        """The number of a node; a new name gets a new number."""
        return self.names.setdefault(name, len(self.names))

    def add(self, one: int, other: int, start_s: float, end_s: float, line: int) -> None:
        self.one.append(one)
        self.other.append(other)
        self.start_s.append(start_s)
        self.end_s.append(end_s)
        self.line.append(line)

    def seen(self, time_s: float) -> None:
        self.begin_s = time_s if self.begin_s is None else min(self.begin_s, time_s)
        self.until_s = time_s if self.until_s is None else max(self.until_s, time_s)

    def read_header(self, text: str) -> None:
        """Read the header lines of Wayfare's exports; ignore other comments."""
        if device := _DEVICE.match(text):
            self.number(name_in(device[1]))
        header = HEADER.match(text)
        if header is None:
            return
        devices = 0 if header[1] == "named" else int(header[1])
        if devices > 100_000:
            return
        self.seen(0.0)
        self.seen(time_in(header[3], "duration_s"))
        for number in range(devices):
            self.number(str(number))
        self.server = name_in(header[2])
        self.number(self.server)


def meetings_recording(contacts: ContactRows, bad: BadLines, *, format: str, directed: bool) -> Recording:  # noqa: A002
    """The contacts of all pairs, from time 0 on.

    With ``directed``, the file lists both directions of a pair separately, and they are united. Otherwise overlapping
    contacts of a pair are bad lines. Contacts of length 0 are skipped with a note.
    """
    if not contacts.one or contacts.begin_s is None or contacts.until_s is None:
        raise bad.nothing_left("contacts")
    names = list(contacts.names)
    order = natural_order(names)
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    one, other = rank[np.frombuffer(contacts.one, dtype=np.int64)], rank[np.frombuffer(contacts.other, dtype=np.int64)]
    low, high = np.minimum(one, other), np.maximum(one, other)
    start_s, end_s = np.frombuffer(contacts.start_s), np.frombuffer(contacts.end_s)
    distance_m = np.frombuffer(contacts.distance_m) if contacts.distance_m else None
    rows = np.lexsort((end_s, start_s, high, low))
    if directed:
        low, high, start_s, end_s = unite(low[rows], high[rows], start_s[rows], end_s[rows])
    else:
        rows = _without_overlaps(rows, low, high, start_s, end_s, np.frombuffer(contacts.line, dtype=np.int64), bad)
        low, high, start_s, end_s = low[rows], high[rows], start_s[rows], end_s[rows]
        distance_m = distance_m[rows] if distance_m is not None else None
    start_s, end_s = start_s - contacts.begin_s, end_s - contacts.begin_s
    real = end_s > start_s
    if not real.any():
        raise TraceError(bad.file, None, "all contacts have length 0")
    return Recording(
        file=str(bad.file),
        format=format,
        names=tuple(names[index] for index in order),
        content=Meetings(
            devices=len(names),
            device=low[real],
            peer=high[real],
            start_s=start_s[real],
            end_s=end_s[real],
            distance_m=distance_m[real] if distance_m is not None else None,
        ),
        duration_s=contacts.until_s - contacts.begin_s,
        server=contacts.server,
        skipped=bad.count,
        first_skipped=str(bad.first) if bad.first else None,
        notes=() if real.all() else (f"{int((~real).sum()):,} of {len(real):,} contacts skipped: length 0",),
    )


def unite(low: Ints, high: Ints, start_s: Floats, end_s: Floats) -> tuple[Ints, Ints, Floats, Floats]:
    """Merge contacts of a pair that overlap or touch; rows are sorted by pair, then start."""
    new_pair = np.append(True, (low[1:] != low[:-1]) | (high[1:] != high[:-1]))
    first: list[int] = []
    ends: list[float] = []
    for row, (new, start, end) in enumerate(zip(new_pair.tolist(), start_s.tolist(), end_s.tolist(), strict=True)):
        if new or start > ends[-1]:
            first.append(row)
            ends.append(end)
        else:
            ends[-1] = max(ends[-1], end)
    rows = np.array(first, dtype=np.int64)
    return low[rows], high[rows], start_s[rows], np.array(ends)


def _without_overlaps(
    rows: Ints, low: Ints, high: Ints, start_s: Floats, end_s: Floats, line: Ints, bad: BadLines
) -> Ints:
    """The rows without those that start before the previous contact of their pair has ended."""
    kept: list[int] = []
    for row in rows.tolist():
        if kept:
            last = kept[-1]
            same_pair = low[row] == low[last] and high[row] == high[last]
            if same_pair and start_s[row] < end_s[last]:
                bad.add(int(line[row]), f"overlaps the contact of the same pair on line {line[last]}")
                continue
        kept.append(row)
    return np.array(kept, dtype=np.int64)
