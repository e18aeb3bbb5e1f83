"""Reflection at the borders of a rectangle: motion in the plane, folded back into the rectangle."""

from __future__ import annotations

import numpy as np

from wayfare.arrays import Floats
from wayfare.mobility.base import Knots


def fold(time_s: Floats, x_m: Floats, y_m: Floats, width_m: float, height_m: float) -> Knots:
    """Knots of the reflected motion. The plane is tiled with mirror images; every crossed line gets a knot."""
    x_crossings_s, y_crossings_s = _crossings_s(time_s, x_m, width_m), _crossings_s(time_s, y_m, height_m)
    knots_s = np.unique(np.concatenate([time_s, x_crossings_s, y_crossings_s]))
    return (
        knots_s,
        _mirror(np.interp(knots_s, time_s, x_m), width_m),
        _mirror(np.interp(knots_s, time_s, y_m), height_m),
    )


def _crossings_s(time_s: Floats, along_m: Floats, side_m: float) -> Floats:
    """The times when a coordinate crosses a multiple of the side."""
    tile = np.floor(along_m / side_m)
    counts = np.abs(np.diff(tile)).astype(np.int64)
    leg = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(leg)) - np.repeat(np.cumsum(counts) - counts, counts)
    # The first line upwards is the next tile's lower edge; downwards it is the own tile's.
    line_m = np.where(tile[leg + 1] > tile[leg], tile[leg] + 1 + nth, tile[leg] - nth) * side_m
    share = (line_m - along_m[leg]) / (along_m[leg + 1] - along_m[leg])
    crossings_s: Floats = time_s[leg] + share * (time_s[leg + 1] - time_s[leg])
    return crossings_s


def _mirror(along_m: Floats, side_m: float) -> Floats:
    """The triangle wave of period 2 side that is the identity on [0, side]."""
    folded: Floats = side_m - np.abs(np.mod(along_m, 2 * side_m) - side_m)
    return folded
