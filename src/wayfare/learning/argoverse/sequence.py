"""Reads and writes Argoverse 1 motion-forecasting sequences in the official CSV layout.

One file is one sequence of 50 steps: 20 observed and 30 to forecast. Its rows are sightings of road users; the road
user of type AGENT is seen in every step. Steps are not evenly spaced in time, so the rank of a timestamp is its step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.errors import InputError

OBSERVED_STEPS, FUTURE_STEPS = 20, 30
STEPS = OBSERVED_STEPS + FUTURE_STEPS
STEP_S = 0.1
"""The nominal length of a step."""

COLUMNS = ("TIMESTAMP", "TRACK_ID", "OBJECT_TYPE", "X", "Y", "CITY_NAME")
KINDS = ("AGENT", "AV", "OTHERS")
CITIES = ("MIA", "PIT")
SPLITS = ("train", "val")

# City coordinates stay within a few kilometres; anything further out is invalid.
_PLACE_LIMIT_M = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """The road users of one file: positions in every step, NaN if not seen. The agent comes first."""

    city: str
    kinds: Ints  # (actors,), indices in KINDS
    places_m: Floats  # (actors, 50, 2), city coordinates


def sequence_files(folder: Path, split: str) -> list[Path]:
    """The CSV files of a split, ``<folder>/<split>/data/*.csv``, in the order of their numbers."""
    data = folder / split / "data"
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; it must contain train/data/*.csv and val/data/*.csv")
    if not data.is_dir():
        raise InputError(f"{data}: no such folder; the official layout has train/data/*.csv and val/data/*.csv")
    files = sorted(data.glob("*.csv"), key=lambda path: (len(path.stem), path.stem))
    if not files:
        raise InputError(f"{data}: contains no sequences (*.csv)")
    return files


def read_sequence(path: Path) -> Sequence:
    """Read a file in the official layout; raise InputError with file and reason if it is invalid."""
    columns = _columns(path)
    steps = _steps(path, columns["TIMESTAMP"])
    tracks = {name: index for index, name in enumerate(dict.fromkeys(columns["TRACK_ID"]))}
    track = np.fromiter((tracks[name] for name in columns["TRACK_ID"]), np.int64, len(steps))
    sightings = np.stack([_numbers(path, name, columns[name]) for name in ("X", "Y")], axis=1)
    cells = track * STEPS + steps
    repeated = np.flatnonzero(np.bincount(cells, minlength=1) > 1)
    if len(repeated):
        row = int(np.flatnonzero(cells == repeated[0])[1])
        raise _bad(path, f"track {columns['TRACK_ID'][row]} appears twice in one step", row)
    places = np.full((len(tracks), STEPS, 2), np.nan)
    places[track, steps] = sightings
    kinds = _kinds(path, columns["OBJECT_TYPE"], track, len(tracks))
    agent = _agent(path, kinds, places)
    order = np.concatenate([[agent], np.delete(np.arange(len(tracks)), agent)])
    return Sequence(city=_city(path, columns["CITY_NAME"]), kinds=kinds[order], places_m=places[order])


def write_sequence(path: Path, sequence: Sequence, start_s: float = 315_968_000.0) -> None:
    """Write a file in the official layout, with steps of 0.1 s."""
    lines = [",".join(COLUMNS)]
    for step in range(STEPS):
        for actor in np.flatnonzero(~np.isnan(sequence.places_m[:, step, 0])):
            x, y = sequence.places_m[actor, step]
            name = f"00000000-0000-0000-0000-{actor:012d}"
            kind = KINDS[sequence.kinds[actor]]
            lines.append(f"{start_s + STEP_S * step:.7f},{name},{kind},{x:.6f},{y:.6f},{sequence.city}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _bad(path: Path, reason: str, row: int | None = None) -> InputError:
    """An error that names the file, and the line if known (rows count from 0, below the header)."""
    return InputError(f"{path}: {reason}" if row is None else f"{path}, line {row + 2}: {reason}")


def _columns(path: Path) -> dict[str, tuple[str, ...]]:
    """The six columns as text, in any order and among any others."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(path, f"cannot be read: {error}") from None
    header = [cell.strip() for cell in lines[0].split(",")] if lines else []
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise _bad(path, f"the column {missing[0]} is missing; the header must have {','.join(COLUMNS)}")
    while lines and not lines[-1].strip():
        lines.pop()
    rows = [line.split(",") for line in lines[1:]]
    if not rows:
        raise _bad(path, "contains no rows")
    for row, cells in enumerate(rows):
        if len(cells) != len(header):
            raise _bad(path, f"has {len(cells)} cells, but the header has {len(header)}", row)
    whole = list(zip(*rows, strict=True))
    return {name: whole[header.index(name)] for name in COLUMNS}


def _steps(path: Path, stamps: tuple[str, ...]) -> Ints:
    """The step of every row: the rank of its timestamp."""
    distinct = list(dict.fromkeys(stamps))
    values = _numbers(path, "TIMESTAMP", distinct, limit=np.inf, rows=stamps)
    times, rank = np.unique(values, return_inverse=True)
    if len(times) != STEPS:
        rule = f"a sequence has {STEPS}, {OBSERVED_STEPS} observed and {FUTURE_STEPS} to forecast"
        raise _bad(path, f"has {len(times)} steps; {rule}")
    step_of = dict(zip(distinct, rank.tolist(), strict=True))
    return np.fromiter((step_of[stamp] for stamp in stamps), np.int64, len(stamps))


def _numbers(
    path: Path, column: str, cells: Iterable[str], limit: float = _PLACE_LIMIT_M, rows: tuple[str, ...] | None = None
) -> Floats:
    """A column of finite numbers; ``rows`` are all cells of the file when ``cells`` are only the distinct ones."""
    texts = list(cells)
    try:
        values = np.array(texts, dtype=np.float64)
        if np.all(np.isfinite(values) & (np.abs(values) <= limit)):
            return values
    except ValueError:
        pass
    for text in texts:
        if not _is_valid_number(text, limit):
            row = (rows or texts).index(text)
            raise _bad(path, f"{column} = {text[:40]!r} is not a valid number", row)
    raise _bad(path, f"{column} contains an invalid number")


def _is_valid_number(text: str, limit: float) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return bool(np.isfinite(value)) and abs(value) <= limit


def _kinds(path: Path, types: tuple[str, ...], track: Ints, tracks: int) -> Ints:
    """The kind of every track at its first sighting."""
    for row, kind in enumerate(types):
        if kind not in KINDS:
            raise _bad(path, f"OBJECT_TYPE = {kind[:40]!r} must be one of {', '.join(KINDS)}", row)
    kinds = np.empty(tracks, np.int64)
    kinds[track[::-1]] = np.array([KINDS.index(kind) for kind in reversed(types)])
    return kinds


def _agent(path: Path, kinds: Ints, places: Floats) -> int:
    """The index of the only AGENT, which must be seen in every step."""
    agents = np.flatnonzero(kinds == KINDS.index("AGENT"))
    if len(agents) != 1:
        raise _bad(path, f"has {len(agents)} tracks of type AGENT; a sequence has exactly one")
    seen = int(np.count_nonzero(~np.isnan(places[agents[0], :, 0])))
    if seen < STEPS:
        raise _bad(path, f"the AGENT must be seen in all {STEPS} steps, not in {seen}")
    return int(agents[0])


def _city(path: Path, names: tuple[str, ...]) -> str:
    for row, name in enumerate(names):
        if name not in CITIES:
            raise _bad(path, f"CITY_NAME = {name[:40]!r} is unknown; must be one of {', '.join(CITIES)}", row)
        if name != names[0]:
            raise _bad(path, f"CITY_NAME = {name!r} here and {names[0]!r} above; a sequence lies in one city", row)
    return names[0]
