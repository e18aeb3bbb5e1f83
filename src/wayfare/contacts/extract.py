"""Exact contact intervals of two nodes.

Motion is piecewise linear, so the squared distance of two nodes is a quadratic in time on every common leg and a
contact begins and ends at its roots: no time step, nothing missed.
"""

from __future__ import annotations

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.mobility import Motion


def contact_intervals(motion: Motion, one: int, other: int, range_m: float) -> tuple[Floats, Floats]:
    """When two nodes are within range of each other: starts and ends, in order."""
    a, b = motion.legs_of(one), motion.legs_of(other)
    cuts = np.union1d(
        np.concatenate([motion.start_s[a], motion.end_s[a]]), np.concatenate([motion.start_s[b], motion.end_s[b]])
    )
    begin, until = cuts[:-1], cuts[1:]
    leg_a, leg_b = _leg_at(motion, a, begin, until), _leg_at(motion, b, begin, until)
    both = (leg_a >= 0) & (leg_b >= 0)
    begin, until, leg_a, leg_b = begin[both], until[both], leg_a[both], leg_b[both]
    since_a, since_b = begin - motion.start_s[leg_a], begin - motion.start_s[leg_b]
    x = motion.x_m[leg_b] + motion.vx_mps[leg_b] * since_b - motion.x_m[leg_a] - motion.vx_mps[leg_a] * since_a
    y = motion.y_m[leg_b] + motion.vy_mps[leg_b] * since_b - motion.y_m[leg_a] - motion.vy_mps[leg_a] * since_a
    near, far = within_range(
        x, y, motion.vx_mps[leg_b] - motion.vx_mps[leg_a], motion.vy_mps[leg_b] - motion.vy_mps[leg_a], range_m
    )
    start_s = np.maximum(begin + np.maximum(near, 0.0), begin)
    end_s = np.minimum(begin + far, until)
    met = (near <= until - begin) & (far >= 0) & (end_s > start_s)
    # A contact that spans several legs comes in pieces that share an instant; the shared cut is exact.
    start_s, end_s = start_s[met], end_s[met]
    if len(start_s) == 0:
        return start_s, end_s
    apart = start_s[1:] > end_s[:-1]
    return start_s[np.append(True, apart)], end_s[np.append(apart, True)]


def within_range(x: Floats, y: Floats, vx: Floats, vy: Floats, range_m: float) -> tuple[Floats, Floats]:
    """When |(x, y) + (vx, vy) t| <= range: the two roots of the quadratic; (inf, -inf) if never, (-inf, inf) if always.

    v^2 t^2 + 2 (p . v) t + p^2 - range^2 = 0
    """
    speed_sq = vx * vx + vy * vy
    half_b = x * vx + y * vy
    c = x * x + y * y - range_m * range_m
    moving = speed_sq > 0
    discriminant = half_b * half_b - speed_sq * c
    hits = moving & (discriminant > 0)
    root = np.sqrt(np.where(hits, discriminant, 0.0))
    # The root of larger magnitude first, the other from the product of the roots: no cancellation.
    q = -(half_b + np.copysign(root, half_b))
    with np.errstate(divide="ignore", invalid="ignore"):
        one, two = q / speed_sq, c / q
    two = np.where(q == 0, 0.0, two)
    always = ~moving & (c <= 0)
    near = np.where(hits, np.minimum(one, two), np.where(always, -np.inf, np.inf))
    far = np.where(hits, np.maximum(one, two), np.where(always, np.inf, -np.inf))
    return near, far


def _leg_at(motion: Motion, rows: slice, begin: Floats, until: Floats) -> Ints:
    """The leg that covers each span between two cuts, -1 where the node is absent."""
    starts, ends = motion.start_s[rows], motion.end_s[rows]
    if len(starts) == 0:
        return np.full(len(begin), -1, dtype=np.int64)
    leg = np.searchsorted(starts, begin, side="right") - 1
    covered = (leg >= 0) & (until <= ends[np.clip(leg, 0, None)])
    return np.where(covered, leg + rows.start, -1)
