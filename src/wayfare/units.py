"""Conversion of decibels. Wayfare computes in SI units; only inputs are in decibels."""

from __future__ import annotations

from typing import overload

import numpy as np

from wayfare.arrays import Floats


@overload
def db_to_ratio(db: float) -> float: ...
@overload
def db_to_ratio(db: Floats) -> Floats: ...
def db_to_ratio(db: float | Floats) -> float | Floats:
    """10^(x/10)."""
    ratio = np.power(10.0, np.asarray(db, dtype=np.float64) / 10.0)
    return ratio if isinstance(db, np.ndarray) else float(ratio)


def dbm_to_watts(dbm: float) -> float:
    """10^((x - 30)/10)."""
    return db_to_ratio(dbm - 30.0)
