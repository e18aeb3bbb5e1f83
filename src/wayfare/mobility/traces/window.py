"""Cut a time window out of a recording, and repeat a recording."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from wayfare.arrays import Floats
from wayfare.mobility.base import Meetings, Motion


def cut(content: Motion | Meetings, begin_s: float, end_s: float) -> Motion | Meetings:
    """The motion or contacts between two times; the first becomes time 0."""
    start_s, until_s = np.maximum(content.start_s, begin_s) - begin_s, np.minimum(content.end_s, end_s) - begin_s
    rows = np.flatnonzero(until_s > start_s)
    start_s, until_s = start_s[rows], until_s[rows]
    if isinstance(content, Meetings):
        return Meetings(
            devices=content.devices,
            device=content.device[rows],
            peer=content.peer[rows],
            start_s=start_s,
            end_s=until_s,
            distance_m=content.distance_m[rows] if content.distance_m is not None else None,
        )
    late_s = np.maximum(begin_s - content.start_s[rows], 0.0)
    return Motion(
        nodes=content.nodes,
        node=content.node[rows],
        start_s=start_s,
        end_s=until_s,
        x_m=content.x_m[rows] + content.vx_mps[rows] * late_s,
        y_m=content.y_m[rows] + content.vy_mps[rows] * late_s,
        vx_mps=content.vx_mps[rows],
        vy_mps=content.vy_mps[rows],
    )


def repeat(content: Motion | Meetings, period_s: float, duration_s: float) -> Motion | Meetings:
    """Repeat motion or contacts with a period up to a duration. At each end nodes jump back to their start."""
    times = math.ceil(duration_s / period_s)
    if times <= 1:
        return cut(content, 0.0, duration_s)
    shift_s = np.repeat(np.arange(times) * period_s, len(content.start_s))
    # An end at the period's end must equal the start of the next repetition exactly.
    ends_with_period = np.tile(content.end_s >= period_s, times)
    start_s = np.tile(content.start_s, times) + shift_s
    end_s = np.where(ends_with_period, shift_s + period_s, np.tile(content.end_s, times) + shift_s)
    owner = content.node if isinstance(content, Motion) else content.device
    order = np.lexsort((start_s, np.tile(owner, times)))

    def again(column: Floats) -> Floats:
        return np.tile(column, times)[order]

    played: Motion | Meetings
    if isinstance(content, Motion):
        played = replace(
            content,
            node=np.tile(content.node, times)[order],
            start_s=start_s[order],
            end_s=end_s[order],
            x_m=again(content.x_m),
            y_m=again(content.y_m),
            vx_mps=again(content.vx_mps),
            vy_mps=again(content.vy_mps),
        )
    else:
        played = replace(
            content,
            device=np.tile(content.device, times)[order],
            peer=np.tile(content.peer, times)[order],
            start_s=start_s[order],
            end_s=end_s[order],
            distance_m=again(content.distance_m) if content.distance_m is not None else None,
        )
    return cut(played, 0.0, duration_s)
