"""Choose the server and the devices of a trace by their numbers of contacts.

The server is the node named in the scenario, else in the file, else the node called ``server``, else the node with
most contacts. The devices are the nodes with most contacts with the server. Ties go to the first name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from wayfare.arrays import Ints
from wayfare.errors import ScenarioError
from wayfare.mobility.base import SERVER, Meetings, Motion
from wayfare.mobility.traces.recording import Recording

# Contacts of motion are counted on a grid of instants, at most one per second and this many. Exact times do not matter.
_INSTANTS = 8192
_PRESENCES = 4_000_000
# Pairs of (node, instant) compared at once; bounds the memory if all nodes are near each other.
_BLOCK = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The names of the devices and the server, and their motion or contacts."""

    devices: tuple[str, ...]
    server: str
    duration_s: float
    content: Motion | Meetings


def select(recording: Recording, *, devices: int | None, server: str | None, range_m: float) -> Selection:
    """Choose the server and the devices of a recording. By default all other nodes are devices."""
    names, content = recording.names, recording.content
    chosen = _named_server(recording, server)
    if chosen is None:
        total = np.zeros(len(names), dtype=np.int64)
        for low, high in _contacts(content, range_m):
            total += np.bincount(low, minlength=len(names)) + np.bincount(high, minlength=len(names))
        chosen = int(np.argmax(total))
    with_server = np.zeros(len(names), dtype=np.int64)
    for low, high in _contacts(content, range_m):
        with_server += np.bincount(low[high == chosen], minlength=len(names))
        with_server += np.bincount(high[low == chosen], minlength=len(names))
    others = np.delete(np.arange(len(names)), chosen)
    if devices is None:
        devices = len(others)
    if devices > len(others) or devices < 1:
        raise ScenarioError(
            "fleet.devices", devices, f"the trace has only {len(others)} devices besides the server {names[chosen]!r}"
        )
    ranked = others[np.argsort(-with_server[others], kind="stable")]
    kept = np.sort(ranked[:devices])
    return Selection(
        devices=tuple(names[node] for node in kept),
        server=names[chosen],
        duration_s=recording.duration_s,
        content=_renumbered(content, kept, chosen),
    )


def all_nodes(recording: Recording, server: str) -> Selection:
    """Select all nodes of a recording, with a given server."""
    chosen = recording.names.index(server)
    others = np.delete(np.arange(len(recording.names)), chosen)
    return Selection(
        devices=tuple(recording.names[node] for node in others),
        server=server,
        duration_s=recording.duration_s,
        content=_renumbered(recording.content, others, chosen),
    )


def _named_server(recording: Recording, server: str | None) -> int | None:
    names = recording.names
    wanted = server or recording.server or ("server" if "server" in names else None)
    if wanted is None:
        return None
    if wanted not in names:
        known = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise ScenarioError("mobility.server", wanted, f"no node of the trace has this name; its nodes are {known}")
    return names.index(wanted)


def _renumbered(content: Motion | Meetings, kept: Ints, server: int) -> Motion | Meetings:
    """Keep the chosen nodes: devices become 0 .. n - 1; the server becomes the peer SERVER or the last node."""
    nodes = content.nodes if isinstance(content, Motion) else content.devices
    number = np.full(nodes, -2, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    if isinstance(content, Motion):
        number[server] = len(kept)
        new = number[content.node]
        rows = np.flatnonzero(new >= 0)
        rows = rows[np.lexsort((content.start_s[rows], new[rows]))]
        return Motion(
            nodes=len(kept) + 1,
            node=new[rows],
            start_s=content.start_s[rows],
            end_s=content.end_s[rows],
            x_m=content.x_m[rows],
            y_m=content.y_m[rows],
            vx_mps=content.vx_mps[rows],
            vy_mps=content.vy_mps[rows],
        )
    number[server] = SERVER
    one, other = number[content.device], number[content.peer]
    # The server may have had the smaller number.
    device, peer = np.where(one == SERVER, other, one), np.where(one == SERVER, SERVER, other)
    rows = np.flatnonzero((device >= 0) & (peer >= SERVER))
    rows = rows[np.lexsort((content.start_s[rows], device[rows]))]
    return replace(
        content,
        devices=len(kept),
        device=device[rows],
        peer=peer[rows],
        start_s=content.start_s[rows],
        end_s=content.end_s[rows],
        distance_m=content.distance_m[rows] if content.distance_m is not None else None,
    )


def _contacts(content: Motion | Meetings, range_m: float) -> Iterator[tuple[Ints, Ints]]:
    """Yield the smaller and the larger node of every contact, in blocks that fit into memory."""
    if isinstance(content, Meetings):
        return iter([(content.device, content.peer)])
    return _contacts_of_motion(content, range_m)


def _contacts_of_motion(motion: Motion, range_m: float) -> Iterator[tuple[Ints, Ints]]:
    """Pairs of nodes that come within range, on a grid of instants."""
    begin_s, end_s = float(motion.start_s.min()), float(motion.end_s.max())
    step_s = max((end_s - begin_s) / _INSTANTS, min(1.0, (end_s - begin_s) / 256))
    step_s = max(step_s, float((motion.end_s - motion.start_s).sum()) / _PRESENCES)
    instants_s = np.arange(begin_s, end_s + step_s / 2, step_s)
    node, instant, x_m, y_m = _presences(motion, instants_s)
    before = np.empty(0, dtype=np.int64)
    first = 0
    while first < len(instants_s):
        # As many instants as fit a block, at least one.
        row = int(np.searchsorted(instant, first))
        last = int(instant[row + _BLOCK]) if row + _BLOCK < len(instant) else len(instants_s)
        last = max(last, first + 1)
        rows = slice(row, int(np.searchsorted(instant, last)))
        low, high, when = _near_pairs(node[rows], instant[rows], x_m[rows], y_m[rows], range_m)
        key = (low * motion.nodes + high) * len(instants_s) + when
        # A contact starts if the pair was not near one instant earlier.
        begins = ~np.isin(key - 1, np.concatenate([before, key])) | (when == 0)
        yield low[begins], high[begins]
        before = key[when == last - 1]
        first = last


def _presences(motion: Motion, instants_s: np.ndarray) -> tuple[Ints, Ints, np.ndarray, np.ndarray]:
    """The positions of all nodes at every instant, sorted by instant. Legs are half open, so no node appears twice."""
    first = np.searchsorted(instants_s, motion.start_s, side="left")
    last = np.searchsorted(instants_s, motion.end_s, side="left")
    count = last - first
    leg = np.repeat(np.arange(len(count)), count)
    instant = np.arange(len(leg)) - np.repeat(np.cumsum(count) - count, count) + first[leg]
    since_s = instants_s[instant] - motion.start_s[leg]
    x_m, y_m = motion.x_m[leg] + motion.vx_mps[leg] * since_s, motion.y_m[leg] + motion.vy_mps[leg] * since_s
    order = np.argsort(instant, kind="stable")
    return motion.node[leg][order], instant[order], x_m[order], y_m[order]


def _near_pairs(node: Ints, instant: Ints, x_m: np.ndarray, y_m: np.ndarray, range_m: float) -> tuple[Ints, Ints, Ints]:
    """All (smaller node, larger node, instant) within range, found with cells as wide as the range."""
    empty = np.empty(0, dtype=np.int64)
    if len(node) == 0:
        return empty, empty, empty
    column = np.floor((x_m - x_m.min()) / range_m).astype(np.int64) + 1
    row = np.floor((y_m - y_m.min()) / range_m).astype(np.int64) + 1
    width, height = int(column.max()) + 2, int(row.max()) + 2
    since = instant - instant[0]
    cell = (since * height + row) * width + column
    order = np.argsort(cell, kind="stable")
    cell, node, instant, x_m, y_m = cell[order], node[order], instant[order], x_m[order], y_m[order]
    found = []
    for shift in (0, 1, width - 1, width, width + 1):
        low = np.searchsorted(cell, cell + shift, side="left")
        high = np.searchsorted(cell, cell + shift, side="right")
        if shift == 0:
            low = np.arange(len(cell)) + 1
        count = np.maximum(high - low, 0)
        one = np.repeat(np.arange(len(cell)), count)
        other = np.arange(len(one)) - np.repeat(np.cumsum(count) - count, count) + low[one]
        near = np.hypot(x_m[one] - x_m[other], y_m[one] - y_m[other]) <= range_m
        # In a very wide area cell numbers wrap around, and two instants may share one.
        near &= instant[one] == instant[other]
        found.append((one[near], other[near]))
    one, other = (np.concatenate(part) for part in zip(*found, strict=True))
    return np.minimum(node[one], node[other]), np.maximum(node[one], node[other]), instant[one]
