"""Exact contact intervals of two nodes.

Motion is piecewise linear, so the squared distance of two nodes is quadratic in time on every common leg. Contacts
start and end at its roots, without time steps.
"""

from __future__ import annotations

import numpy as np

from wayfare.arrays import Floats, Ints
from wayfare.mobility import Motion


def contact_intervals(motion: Motion, one: int, other: int, range_m: float) -> tuple[Floats, Floats]:
    """Starts and ends of all times when two nodes are within range, in order."""
    a, b = motion.legs_of(one), motion.legs_of(other)
    cuts = np.union1d(
        np.concatenate([motion.start_s[a], motion.end_s[a]]), np.concatenate([motion.start_s[b], motion.end_s[b]])
    )
    leg_a, leg_b = _leg_at(motion, a, cuts[:-1], cuts[1:]), _leg_at(motion, b, cuts[:-1], cuts[1:])
    both = (leg_a >= 0) & (leg_b >= 0)
    start_s, end_s, _ = meet_on_legs(motion, leg_a[both], leg_b[both], range_m)
    # A contact over several legs comes in pieces that share an instant; the shared cut is exact.
    if len(start_s) == 0:
        return start_s, end_s
    apart = start_s[1:] > end_s[:-1]
    return start_s[np.append(True, apart)], end_s[np.append(apart, True)]


def meet_on_legs(motion: Motion, one: Ints, other: Ints, range_m: float) -> tuple[Floats, Floats, Ints]:
    """Starts and ends of contacts on given pairs of legs, and the index of the pair of each.

    Solves |p + v t| <= range, with relative position p and velocity v from the time when both legs have started.
    """
    since_one, since_other = motion.start_s.take(one), motion.start_s.take(other)
    begin = np.maximum(since_one, since_other)
    np.subtract(begin, since_one, out=since_one)
    np.subtract(begin, since_other, out=since_other)
    until = motion.end_s.take(one)
    np.minimum(until, motion.end_s.take(other), out=until)
    x, vx = _relative(motion.x_m, motion.vx_mps, one, other, since_one, since_other)
    y, vy = _relative(motion.y_m, motion.vy_mps, one, other, since_one, since_other)
    # Most pairs of legs stay out of range: skip their roots.
    half_b = x * vx
    half_b += y * vy
    c = x * x
    c += y * y
    c -= range_m * range_m
    speed_sq = vx * vx
    speed_sq += vy * vy
    speed_sq *= c
    hopeful = half_b * half_b > speed_sq
    hopeful &= half_b < 0
    hopeful |= c <= 0
    hopeful &= until > begin
    rows = np.flatnonzero(hopeful)
    begin = begin.take(rows)
    near, far = within_range(x.take(rows), y.take(rows), vx.take(rows), vy.take(rows), range_m)
    start_s = begin + np.maximum(near, 0.0)
    end_s = np.minimum(begin + far, until.take(rows))
    met = np.flatnonzero(end_s > start_s)
    return start_s.take(met), end_s.take(met), rows.take(met)


def _relative(
    along_m: Floats, speed_mps: Floats, one: Ints, other: Ints, since_one: Floats, since_other: Floats
) -> tuple[Floats, Floats]:
    """Position and velocity of the second node relative to the first, along one axis."""
    speed_one: Floats = speed_mps.take(one)
    speed: Floats = speed_mps.take(other)
    apart_m: Floats = along_m.take(other)
    apart_m += speed * since_other
    apart_m -= along_m.take(one)
    apart_m -= speed_one * since_one
    speed -= speed_one
    return apart_m, speed


def within_range(x: Floats, y: Floats, vx: Floats, vy: Floats, range_m: float) -> tuple[Floats, Floats]:
    """The roots of |(x, y) + (vx, vy) t| = range; (inf, -inf) if never within range, (-inf, inf) if always.

    v^2 t^2 + 2 (p . v) t + p^2 - range^2 = 0
    """
    speed_sq = vx * vx + vy * vy
    half_b = x * vx + y * vy
    c = x * x + y * y - range_m * range_m
    moving = speed_sq > 0
    discriminant = half_b * half_b - speed_sq * c
    hits = moving & (discriminant > 0)
    root = np.sqrt(np.where(hits, discriminant, 0.0))
    # Compute the root of larger magnitude, then the other from their product, to avoid cancellation.
    q = -(half_b + np.copysign(root, half_b))
    with np.errstate(divide="ignore", invalid="ignore"):
        one, two = q / speed_sq, c / q
    two = np.where(q == 0, 0.0, two)
    always = ~moving & (c <= 0)
    near = np.where(hits, np.minimum(one, two), np.where(always, -np.inf, np.inf))
    far = np.where(hits, np.maximum(one, two), np.where(always, np.inf, -np.inf))
    return near, far


def _leg_at(motion: Motion, rows: slice, begin: Floats, until: Floats) -> Ints:
    """The leg that covers each span between two cuts; -1 if the node is absent."""
    starts, ends = motion.start_s[rows], motion.end_s[rows]
    if len(starts) == 0:
        return np.full(len(begin), -1, dtype=np.int64)
    leg = np.searchsorted(starts, begin, side="right") - 1
    covered = (leg >= 0) & (until <= ends[np.clip(leg, 0, None)])
    return np.where(covered, leg + rows.start, -1)
