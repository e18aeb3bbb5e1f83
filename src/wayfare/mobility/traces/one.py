"""Connectivity events of The ONE: ``time CONN a b up|down [interface]``.

Each direction and interface is tracked separately, because recorders log what each node saw (a sees b, b sees a). A
pair is in contact while at least one of them is up. A contact that is up at the end lasts until the end.
"""

from __future__ import annotations

from typing import IO

from wayfare.mobility.traces.meetings import ContactRows, meetings_recording
from wayfare.mobility.traces.reading import BadLines, name_in, numbered_lines, time_in
from wayfare.mobility.traces.recording import Recording


def read_one(stream: IO[bytes], bad: BadLines) -> Recording:
    rows = ContactRows()
    up: dict[tuple[str, str, str], tuple[float, int]] = {}
    clock_s = -float("inf")
    for line, text in numbered_lines(stream, bad):
        try:
            if text.startswith("#"):
                rows.read_header(text)
                continue
            time_s, a, b, is_up, interface = _event(text)
            if time_s < clock_s:
                raise ValueError(f"time runs backwards: {time_s:g} after {clock_s:g}")
            pair = a, b, interface
            if is_up and pair in up:
                raise ValueError(f"{a} {b} up, but already up since line {up[pair][1]}")
            if not is_up and pair not in up:
                raise ValueError(f"{a} {b} down without up")
        except ValueError as error:
            bad.add(line, str(error))
            continue
        clock_s = time_s
        rows.seen(time_s)
        if is_up:
            up[pair] = (time_s, line)
        else:
            rows.add(rows.number(a), rows.number(b), up.pop(pair)[0], time_s, line)
    for (a, b, _), (start_s, line) in up.items():
        rows.add(rows.number(a), rows.number(b), start_s, clock_s, line)
    return meetings_recording(rows, bad, format="one", directed=True)


def _event(text: str) -> tuple[float, str, str, bool, str]:
    words = text.split()
    if len(words) not in (5, 6) or words[1] != "CONN":
        raise ValueError(f"not a connectivity event (time CONN a b up|down): {text[:60]!r}")
    time_s, a, b, state = time_in(words[0]), name_in(words[2]), name_in(words[3]), words[4].lower()
    if state not in ("up", "down"):
        raise ValueError(f"{words[4][:20]!r} is neither up nor down")
    if a == b:
        raise ValueError(f"{a} is in contact with itself")
    return time_s, a, b, state == "up", words[5] if len(words) == 6 else ""
