"""Contact lists as Parquet files, read with pyarrow (the extra ``parquet``)."""

from __future__ import annotations

from pathlib import Path

from wayfare.errors import TraceError, UnavailableError
from wayfare.mobility.traces.contact_list import add_contact, contact_columns
from wayfare.mobility.traces.meetings import ContactRows, meetings_recording
from wayfare.mobility.traces.reading import DAMAGED, BadLines, open_bytes
from wayfare.mobility.traces.recording import Recording

METADATA_KEY = "wayfare"
"""The metadata key of the comment lines that start a CSV file."""


def is_parquet(path: Path) -> bool:
    """Whether a file starts like a Parquet file."""
    with open_bytes(path) as stream:
        try:
            return stream.read(4) == b"PAR1"
        except DAMAGED:
            return False


def read_contact_table(path: Path, bad: BadLines) -> Recording:
    """The contacts of all pairs. Errors name rows as lines."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UnavailableError("Parquet needs pyarrow: pip install 'wayfare[parquet]'") from None
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise TraceError(path, None, f"invalid Parquet file: {error}") from None
    rows = ContactRows()
    for text in (table.schema.metadata or {}).get(METADATA_KEY.encode(), b"").decode(errors="replace").splitlines():
        rows.read_header(text)
    header = contact_columns(table.column_names, None, bad)
    for line, cells in enumerate(zip(*(column.to_pylist() for column in table.columns), strict=True), start=1):
        try:
            add_contact(rows, dict(zip(header, map(str, cells), strict=True)), line)
        except ValueError as error:
            bad.add(line, str(error))
    return meetings_recording(rows, bad, format="contacts", directed=False)
