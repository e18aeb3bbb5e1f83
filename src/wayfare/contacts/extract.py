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
    leg_a, leg_b = _leg_at(motion, a, cuts[:-1], cuts[1:]), _leg_at(motion, b, cuts[:-1], cuts[1:])
    both = (leg_a >= 0) & (leg_b >= 0)
    start_s, end_s, _ = meet_on_legs(motion, leg_a[both], leg_b[both], range_m)
    # A contact that spans several legs comes in pieces that share an instant; the shared cut is exact.
    if len(start_s) == 0:
        return start_s, end_s
    apart = start_s[1:] > end_s[:-1]
    return start_s[np.append(True, apart)], end_s[np.append(apart, True)]


def meet_on_legs(motion: Motion, one: Ints, other: Ints, range_m: float) -> tuple[Floats, Floats, Ints]:
    """When two nodes on given legs are within range: starts, ends, and for which of the pairs of legs.

    |p + v t| <= range, with p and v the relative place and velocity from the moment on when both legs are under way.
    """
    start_one, start_other = motion.start_s.take(one), motion.start_s.take(other)
    begin = np.maximum(start_one, start_other)
    until = np.minimum(motion.end_s.take(one), motion.end_s.take(other))
    vx_one, vy_one = motion.vx_mps.take(one), motion.vy_mps.take(one)
    vx, vy = motion.vx_mps.take(other), motion.vy_mps.take(other)
    since_one, since_other = begin - start_one, begin - start_other
    x = motion.x_m.take(other) + vx * since_other - motion.x_m.take(one) - vx_one * since_one
    y = motion.y_m.take(other) + vy * since_other - motion.y_m.take(one) - vy_one * since_one
    vx -= vx_one
    vy -= vy_one
    # Most pairs of legs are out of range and stay so: no need of their roots.
    half_b = x * vx + y * vy
    c = x * x + y * y - range_m * range_m
    hopeful = (c <= 0) | ((half_b < 0) & (half_b * half_b > (vx * vx + vy * vy) * c))
    rows = np.flatnonzero(hopeful & (until > begin))
    begin = begin.take(rows)
    near, far = within_range(x.take(rows), y.take(rows), vx.take(rows), vy.take(rows), range_m)
    start_s = begin + np.maximum(near, 0.0)
    end_s = np.minimum(begin + far, until.take(rows))
    met = np.flatnonzero(end_s > start_s)
    return start_s.take(met), end_s.take(met), rows.take(met)


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
