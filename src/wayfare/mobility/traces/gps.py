"""GPS logs: a folder or archive of ``new_<cab>.txt`` (cabspotting), or CSV ``time,id,x,y`` or ``time,id,lat,lon``."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from wayfare.errors import TraceError
from wayfare.mobility.traces.reading import (
    DAMAGED,
    BadLines,
    cells_of,
    metres_in,
    name_in,
    number_in,
    numbered_lines,
    open_bytes,
    time_in,
)
from wayfare.mobility.traces.recording import Fixes, Recording, motion_recording

_TAR_BLOCK = 512
_ALIASES = {
    "time_s": "time",
    "timestamp": "time",
    "x_m": "x",
    "y_m": "y",
    "latitude": "lat",
    "longitude": "lon",
    "lng": "lon",
}


def read_cabspotting(path: Path, bad: BadLines, *, max_gap_s: float, max_speed_mps: float) -> Recording:
    """The motion of all cabs of a folder, an archive or a single file. Times may increase or decrease."""
    fixes = Fixes()
    for name, stream in _cab_files(path, bad):
        member = bad.inside(name) if name != path.name else bad
        _read_cab(fixes, Path(name).stem.removeprefix("new_"), stream, member)
        if member is not bad:
            bad.include(member)
    return motion_recording(fixes, bad, format="gps", geographic=True, max_gap_s=max_gap_s, max_speed_mps=max_speed_mps)


def _cab_files(path: Path, bad: BadLines) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield every file of fixes with its name."""
    if path.is_dir():
        try:
            found = sorted(entry for entry in path.iterdir() if entry.name.startswith("new_") and entry.is_file())
        except OSError as error:
            raise TraceError(path, None, f"cannot be read: {error}") from None
        if not found:
            raise TraceError(path, None, "the folder has no new_<cab>.txt")
        for file in found:
            with open_bytes(file) as stream:
                yield file.name, stream
        return
    with open_bytes(path) as stream:
        tar = is_tar(stream)
    if not tar:
        with open_bytes(path) as stream:
            yield path.name, stream
        return
    with open_bytes(path) as packed, _archive(watched := _Watched(packed), bad) as archive:
        members = iter(archive)
        while True:
            try:
                member = next(members, None)
                content = archive.extractfile(member) if member is not None and member.isfile() else None
            except DAMAGED as error:
                bad.add(None, f"the archive is damaged or truncated: {error}")
                return
            if member is None:
                if not watched.ended_well:
                    bad.add(None, "the archive is damaged or truncated: its end is missing")
                return
            if content is not None and Path(member.name).name.startswith("new_"):
                yield member.name, content


class _Watched:
    """A stream that records its last block: tarfile does not notice an archive truncated between two members."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._tail = stream, b""

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        self._tail = (self._tail + block[-_TAR_BLOCK:])[-_TAR_BLOCK:]
        return block

    @property
    def ended_well(self) -> bool:
        return self._tail == bytes(_TAR_BLOCK)


@contextmanager
def _archive(stream: _Watched, bad: BadLines) -> Iterator[tarfile.TarFile]:
    try:
        archive = tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|")  # noqa: SIM115
    except DAMAGED as error:
        raise TraceError(bad.file, None, f"the archive is damaged: {error}") from None
    with archive:
        yield archive


def is_tar(stream: IO[bytes]) -> bool:
    """Whether a stream starts like a tar archive."""
    try:
        return stream.read(512)[257:262] == b"ustar"
    except DAMAGED:
        return False


def _read_cab(fixes: Fixes, name: str, stream: IO[bytes], bad: BadLines) -> None:
    """One cab: ``latitude longitude occupied unix_time``."""
    node: int | None = None
    last_s: float | None = None
    direction = 0.0
    for line, text in numbered_lines(stream, bad):
        try:
            words = text.split()
            if len(words) != 4:
                raise ValueError(f"not a fix (latitude longitude occupied unix_time): {text[:60]!r}")
            latitude, longitude = _degrees(words[0], words[1])
            time_s = time_in(words[3])
            if last_s is not None:
                if time_s == last_s:
                    raise ValueError(f"a second fix at time {time_s:.0f}")
                if direction * (time_s - last_s) < 0:
                    raise ValueError(f"time changes direction: {time_s:.0f} after {last_s:.0f}")
                direction = time_s - last_s
        except ValueError as error:
            bad.add(line, str(error))
            continue
        last_s = time_s
        node = fixes.number(name_in(name)) if node is None else node
        fixes.add(node, time_s, longitude, latitude)


def read_fix_list(stream: IO[bytes], bad: BadLines, *, max_gap_s: float, max_speed_mps: float) -> Recording:
    """CSV of fixes in metres or degrees. The times of a node must increase."""
    fixes = Fixes()
    last_s: dict[int, float] = {}
    header: list[str] | None = None
    geographic = False
    for line, text in numbered_lines(stream, bad):
        if text.startswith("#"):
            continue
        try:
            cells = cells_of(text)
            if header is None:
                header, geographic = _fix_header(cells, text, line, bad)
                continue
            if len(cells) != len(header):
                raise ValueError(f"{len(cells)} cells under a header of {len(header)}")
            row = dict(zip(header, cells, strict=True))
            time_s, name = time_in(row["time"]), name_in(row["id"])
            if geographic:
                y, x = _degrees(row["lat"], row["lon"])
            else:
                x, y = metres_in(row["x"], "x"), metres_in(row["y"], "y")
            node = fixes.number(name)
            if node in last_s and time_s <= last_s[node]:
                raise ValueError(f"time of {name} runs backwards: {time_s:g} after {last_s[node]:g}")
        except ValueError as error:
            bad.add(line, str(error))
            continue
        last_s[node] = time_s
        fixes.add(node, time_s, x, y)
    return motion_recording(
        fixes, bad, format="csv-motion", geographic=geographic, max_gap_s=max_gap_s, max_speed_mps=max_speed_mps
    )


def _fix_header(cells: list[str], text: str, line: int, bad: BadLines) -> tuple[list[str], bool]:
    header = fix_columns(cells)
    if {"time", "id", "x", "y"} <= set(header):
        return header, False
    if {"time", "id", "lat", "lon"} <= set(header):
        return header, True
    raise TraceError(bad.file, line, f"the header must name time,id,x,y or time,id,lat,lon: {text[:60]!r}")


def fix_columns(cells: list[str]) -> list[str]:
    """The columns of a header, by their canonical names."""
    return [_ALIASES.get(cell.lower(), cell.lower()) for cell in cells]


def _degrees(latitude: str, longitude: str) -> tuple[float, float]:
    return number_in(latitude, "latitude", 90.0), number_in(longitude, "longitude", 180.0)
