"""Saved contact plans: one ``.npz`` file with a version. Loading checks every array.

The reader is here and not in `contacts`, because a saved plan is also a trace.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from wayfare.errors import TraceError
from wayfare.files import open_atomically, writing
from wayfare.mobility.base import SERVER, Meetings
from wayfare.mobility.traces.reading import MAX_NAME_LENGTH, TIME_LIMIT_S
from wayfare.mobility.traces.recording import Recording

KIND = "wayfare contact plan"
VERSION = 1
# More than any plan needs; a damaged or hostile header may claim anything.
_MAX_BYTES = 4 << 30
_SCALARS = {"kind": "U", "version": "i", "devices": "i", "duration_s": "f"}
# The only optional array.
_NAMES = "names"
_COLUMNS = {"device": "i", "peer": "i", "start_s": "f", "end_s": "f", "distance_m": "f"}


def save_meetings(path: Path, meetings: Meetings, duration_s: float, names: tuple[str, ...] = ()) -> None:
    """Write a plan with known distances atomically. ``names`` are those of the devices and the server."""
    assert meetings.distance_m is not None
    named: dict[str, Any] = {_NAMES: np.array(names)} if names else {}
    with writing(path, "cannot be written"), open_atomically(path) as file:
        np.savez_compressed(
            file,
            kind=np.array(KIND),
            version=np.array(VERSION),
            devices=np.array(meetings.devices),
            duration_s=np.array(duration_s),
            device=meetings.device,
            peer=meetings.peer,
            start_s=meetings.start_s,
            end_s=meetings.end_s,
            distance_m=meetings.distance_m,
            **named,
        )


def load_meetings(path: Path) -> tuple[Meetings, float, tuple[str, ...]]:
    """Load and check a saved plan: contacts, duration, and names of the devices and the server."""
    arrays = _arrays(path)
    try:
        return _checked(arrays)
    except ValueError as error:
        raise TraceError(path, None, f"invalid contact plan: {error}") from None


def read_saved(path: Path) -> Recording:
    """A saved plan as a recording. Unnamed devices use their numbers, an unnamed server ``server``."""
    meetings, duration_s, names = load_meetings(path)
    server = meetings.devices
    names = names or (*(str(device) for device in range(meetings.devices)), "server")
    return Recording(
        file=str(path),
        format="plan",
        names=names,
        content=Meetings(
            devices=meetings.devices + 1,
            device=meetings.device,
            peer=np.where(meetings.peer == SERVER, server, meetings.peer),
            start_s=meetings.start_s,
            end_s=meetings.end_s,
            distance_m=meetings.distance_m,
        ),
        duration_s=duration_s,
        server=names[-1],
    )


def _arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of the file: exactly the expected ones, not pickled and of plausible size."""
    expected = _SCALARS | _COLUMNS
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
        if _NAMES in members:
            expected |= {_NAMES: "U"}
        if set(members) != set(expected):
            raise TraceError(path, None, "is a zip file, but not a saved contact plan")
        if sum(members.values()) > _MAX_BYTES:
            raise TraceError(path, None, f"the contact plan is larger than {_MAX_BYTES >> 30} GB")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {}
            for name, kind in expected.items():
                array = stored[name]
                if array.dtype.kind != kind or array.ndim != (name not in _SCALARS):
                    raise TraceError(path, None, f"invalid contact plan: {name} is {array.dtype} x {array.ndim}")
                arrays[name] = array
            return arrays
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise TraceError(path, None, f"cannot be read as a saved plan: {error}") from None
    except (MemoryError, OverflowError, SyntaxError, RuntimeError) as error:
        # An altered array header can claim any shape, or be no header at all.
        raise TraceError(path, None, f"the saved plan is damaged: {type(error).__name__}") from None


def _checked(arrays: dict[str, np.ndarray[Any, Any]]) -> tuple[Meetings, float, tuple[str, ...]]:
    """Check every rule of a plan. The first violation raises ValueError."""
    if str(arrays["kind"]) != KIND:
        raise ValueError(f"its kind is {str(arrays['kind'])[:MAX_NAME_LENGTH]!r}")
    if int(arrays["version"]) != VERSION:
        raise ValueError(f"version {int(arrays['version'])}; this Wayfare reads version {VERSION}")
    devices, duration_s = int(arrays["devices"]), float(arrays["duration_s"])
    device, peer = arrays["device"].astype(np.int64), arrays["peer"].astype(np.int64)
    start_s, end_s, distance_m = (arrays[name].astype(np.float64) for name in ("start_s", "end_s", "distance_m"))
    rules = (
        (devices >= 1, "devices must be at least 1"),
        (0 < duration_s <= TIME_LIMIT_S, f"duration_s must be above 0 and at most {TIME_LIMIT_S:g}"),
        (len({len(column) for column in (device, peer, start_s, end_s, distance_m)}) == 1, "columns differ in length"),
    )
    for holds, rule in rules:
        if not holds:
            raise ValueError(rule)
    same_device = device[1:] == device[:-1]
    columns = (
        ((device >= 0) & (device < devices), "device must be below devices"),
        ((peer == SERVER) | ((peer > device) & (peer < devices)), "peer must be the server or a device above device"),
        ((start_s >= 0) & (start_s < end_s) & (end_s <= duration_s), "a contact must lie inside the duration"),
        ((distance_m >= 0) & np.isfinite(distance_m), "distance_m must be finite and not negative"),
        ((device[1:] > device[:-1]) | (same_device & (start_s[1:] >= start_s[:-1])), "must be sorted"),
    )
    for column, rule in columns:
        if not column.all():
            raise ValueError(f"row {int(np.argmin(column))}: {rule}")
    by_pair = np.lexsort((start_s, peer, device))
    same_pair = (np.diff(device[by_pair]) == 0) & (np.diff(peer[by_pair]) == 0)
    if np.any(same_pair & (start_s[by_pair][1:] < end_s[by_pair][:-1])):
        raise ValueError("two contacts of one pair overlap")
    names = tuple(arrays[_NAMES].tolist()) if _NAMES in arrays else ()
    if names and (len(names) != devices + 1 or len({name.strip() for name in names} - {""}) != devices + 1):
        raise ValueError(f"needs {devices + 1} different names, of the devices and of the server")
    return (
        Meetings(devices=devices, device=device, peer=peer, start_s=start_s, end_s=end_s, distance_m=distance_m),
        duration_s,
        names,
    )
