"""Read a trace of any format. The format is detected from the content."""

from __future__ import annotations

from pathlib import Path

from wayfare.errors import ScenarioError, TraceError
from wayfare.mobility.base import Motion
from wayfare.mobility.traces.box import inside_box
from wayfare.mobility.traces.contact_list import is_contact_header, read_contact_list
from wayfare.mobility.traces.contact_table import is_parquet, read_contact_table
from wayfare.mobility.traces.gps import fix_columns, is_tar, read_cabspotting, read_fix_list
from wayfare.mobility.traces.ns2 import read_ns2
from wayfare.mobility.traces.one import read_one
from wayfare.mobility.traces.reading import DAMAGED, BadLines, cells_of, numbered_lines, open_bytes
from wayfare.mobility.traces.recording import Recording
from wayfare.mobility.traces.saved import read_saved
from wayfare.mobility.traces.sumo import read_sumo

FORMATS = ("sumo-fcd", "ns2", "one", "gps", "csv-motion", "contacts", "plan")
# Enough to skip a licence and statistics in comments, few enough to be fast on other files.
_MAX_SCANNED_LINES = 1000


def read_recording(
    path: Path | str,
    *,
    format: str = "auto",  # noqa: A002
    max_gap_s: float = 300.0,
    max_speed_mps: float = 70.0,
    box_m: tuple[float, float, float, float] | None = None,
    coordinates: str = "auto",
    lenient: bool = False,
) -> Recording:
    """Read the nodes of a trace file and their motion or contacts. TraceError names file, line and reason.

    The gap and the speed apply to GPS logs, the gap also to SUMO with rare time steps, the box to any motion.
    ``coordinates`` says whether SUMO wrote metres or degrees. ``lenient`` skips invalid lines and counts them.
    """
    file = Path(path)
    kind = detect(file) if format == "auto" else format
    if coordinates != "auto" and kind != "sumo-fcd":
        rule = f"applies only to SUMO floating car data; {file} is {kind}"
        raise ScenarioError("mobility.coordinates", coordinates, rule)
    bad = BadLines(file, lenient=lenient)
    recording = _read(file, kind, bad, max_gap_s, max_speed_mps, coordinates)
    if box_m is None:
        return recording
    if not isinstance(recording.content, Motion):
        raise TraceError(file, None, "a list of contacts has no positions, so it cannot be cut to a box")
    return inside_box(recording, box_m)


def _read(file: Path, kind: str, bad: BadLines, max_gap_s: float, max_speed_mps: float, coordinates: str) -> Recording:
    if kind == "gps":
        return read_cabspotting(file, bad, max_gap_s=max_gap_s, max_speed_mps=max_speed_mps)
    if kind == "plan":
        return read_saved(file)
    if kind == "contacts" and is_parquet(file):
        return read_contact_table(file, bad)
    with open_bytes(file) as stream:
        match kind:
            case "sumo-fcd":
                return read_sumo(stream, bad, max_gap_s=max_gap_s, coordinates=coordinates)
            case "ns2":
                return read_ns2(stream, bad)
            case "one":
                return read_one(stream, bad)
            case "csv-motion":
                return read_fix_list(stream, bad, max_gap_s=max_gap_s, max_speed_mps=max_speed_mps)
            case "contacts":
                return read_contact_list(stream, bad)
    raise TraceError(file, None, f"unknown format {kind!r}; choose from {', '.join(FORMATS)}")


def detect(file: Path) -> str:
    """Detect the format of a file from its first bytes and lines."""
    if file.is_dir():
        return "gps"
    with open_bytes(file) as stream:
        if is_tar(stream):
            return "gps"
    with open_bytes(file) as stream:
        try:
            head = stream.read(512)
        except DAMAGED as error:
            raise TraceError(file, 1, f"the data is damaged or truncated: {error}") from None
    if not head.strip():
        raise TraceError(file, None, "the file is empty")
    if is_parquet(file):
        return "contacts"
    if head.startswith(b"PK"):
        return "plan"
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") or head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "sumo-fcd"
    with open_bytes(file) as stream:
        # Lenient only for detection: the reader itself reports invalid lines.
        for line, text in numbered_lines(stream, BadLines(file, lenient=True)):
            if line > _MAX_SCANNED_LINES:
                break
            if not text.startswith("#") and (kind := _kind_of_line(text)):
                return kind
    raise TraceError(
        file, 1, f"unknown format; known formats: {', '.join(FORMATS)}; the file starts with {head[:40]!r}"
    )


def _kind_of_line(text: str) -> str | None:
    """The format that a line belongs to; None if it is ambiguous."""
    if text.startswith(("$node_", "$ns_", "$god_")):
        return "ns2"
    words = text.split()
    if len(words) in (5, 6) and words[1] == "CONN":
        return "one"
    try:
        columns = fix_columns(cells_of(text))
    except ValueError:
        return None
    if is_contact_header(columns):
        return "contacts"
    if {"time", "id"} <= set(columns):
        return "csv-motion"
    if len(words) == 4 and all(_is_number(word) for word in words):
        return "gps"
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
