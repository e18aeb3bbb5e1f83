"""Contact lists: CSV with the header ``start_s,end_s,a,b``, optionally ``distance_m``, and lines in any order.

The columns of the nodes may also be ``name,peer``, as in the tables that Wayfare writes.
"""

from __future__ import annotations

from typing import IO

from wayfare.errors import TraceError
from wayfare.mobility.traces.meetings import ContactRows, meetings_recording
from wayfare.mobility.traces.reading import BadLines, cells_of, metres_in, name_in, numbered_lines, time_in
from wayfare.mobility.traces.recording import Recording

COLUMNS = ("start_s", "end_s", "a", "b")
_ALIASES = {"name": "a", "peer": "b"}


def read_contact_list(stream: IO[bytes], bad: BadLines) -> Recording:
    """The contacts of all pairs. Two contacts of one pair must not overlap."""
    contacts = ContactRows()
    header: list[str] | None = None
    for line, text in numbered_lines(stream, bad):
        try:
            if text.startswith("#"):
                contacts.read_header(text)
                continue
            cells = cells_of(text)
        except ValueError as error:
            bad.add(line, str(error))
            continue
        if header is None:
            header = contact_columns(cells, line, bad)
            continue
        try:
            if len(cells) != len(header):
                raise ValueError(f"{len(cells)} cells under a header of {len(header)}")
            add_contact(contacts, dict(zip(header, cells, strict=True)), line)
        except ValueError as error:
            bad.add(line, str(error))
    return meetings_recording(contacts, bad, format="contacts", directed=False)


def is_contact_header(cells: list[str]) -> bool:
    """Whether a line is the header of a contact list."""
    return set(COLUMNS) <= set(_known(cells))


def contact_columns(cells: list[str], line: int | None, bad: BadLines) -> list[str]:
    """The columns of a header, by their canonical names."""
    if not is_contact_header(cells):
        raise TraceError(bad.file, line, f"the header must name {','.join(COLUMNS)}: {','.join(cells)[:60]!r}")
    return _known(cells)


def _known(cells: list[str]) -> list[str]:
    names = [cell.lower() for cell in cells]
    return names if {"a", "b"} <= set(names) else [_ALIASES.get(name, name) for name in names]


def add_contact(contacts: ContactRows, row: dict[str, str], line: int) -> None:
    """Add one row. An invalid row raises ValueError."""
    start_s, end_s = time_in(row["start_s"], "start_s"), time_in(row["end_s"], "end_s")
    a, b = name_in(row["a"]), name_in(row["b"])
    if end_s < start_s:
        raise ValueError(f"the contact ends at {end_s:g}, before it starts at {start_s:g}")
    if a == b:
        raise ValueError(f"{a} is in contact with itself")
    if "distance_m" in row:
        distance_m = metres_in(row["distance_m"], "distance_m")
        if distance_m < 0:
            raise ValueError(f"distance_m = {distance_m:g} is negative")
        contacts.distance_m.append(distance_m)
    contacts.add(contacts.number(a), contacts.number(b), start_s, end_s, line)
    contacts.seen(start_s)
    contacts.seen(end_s)
