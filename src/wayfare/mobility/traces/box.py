"""A box cut out of a motion: nodes are absent while they are outside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wayfare.errors import TraceError
from wayfare.mobility.base import Motion
from wayfare.mobility.traces.recording import Recording


def inside_box(recording: Recording, box_m: tuple[float, float, float, float]) -> Recording:
    """Keep only the motion inside ``x_min, y_min, x_max, y_max``."""
    assert isinstance(recording.content, Motion)
    cut = clip_motion(recording.content, box_m)
    if len(cut.node) == 0:
        raise TraceError(recording.file, None, f"no node is ever inside the box {box_m}")
    return replace(recording, content=cut)


def clip_motion(motion: Motion, corners_m: tuple[float, float, float, float]) -> Motion:
    """The part of every leg inside a rectangle (Liang and Barsky, with time as the parameter)."""
    x0, y0, x1, y1 = corners_m
    enter_s, leave_s = np.zeros(len(motion.node)), motion.end_s - motion.start_s
    for place, speed, low, high in ((motion.x_m, motion.vx_mps, x0, x1), (motion.y_m, motion.vy_mps, y0, y1)):
        moving = speed != 0
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            one, other = (low - place) / speed, (high - place) / speed
        inside = (place >= low) & (place <= high)
        near = np.where(moving, np.minimum(one, other), np.where(inside, -np.inf, np.inf))
        far = np.where(moving, np.maximum(one, other), np.where(inside, np.inf, -np.inf))
        enter_s, leave_s = np.maximum(enter_s, near), np.minimum(leave_s, far)
    kept = leave_s > enter_s
    enter_s, leave_s = enter_s[kept], leave_s[kept]
    start_s, whole_s = motion.start_s[kept], (motion.end_s - motion.start_s)[kept]
    return Motion(
        nodes=motion.nodes,
        node=motion.node[kept],
        start_s=np.where(enter_s > 0, start_s + enter_s, start_s),
        # An uncut leg keeps its exact end, which is the start of the next one.
        end_s=np.where(leave_s < whole_s, start_s + leave_s, motion.end_s[kept]),
        x_m=motion.x_m[kept] + motion.vx_mps[kept] * enter_s,
        y_m=motion.y_m[kept] + motion.vy_mps[kept] * enter_s,
        vx_mps=motion.vx_mps[kept],
        vy_mps=motion.vy_mps[kept],
    )
