"""Path loss of 3GPP TR 38.901, Tables 7.4.1-1 and 7.4.2-1, UMi street canyon, as in the paper."""

from __future__ import annotations

import numpy as np

from wayfare.arrays import Floats


def line_of_sight_probability(distance_m: Floats) -> Floats:
    """P_LOS = min(18/d, 1) (1 - exp(-d/36)) + exp(-d/36), with d in metres (at least 1)."""
    d = np.maximum(distance_m, 1.0)
    return np.minimum(18.0 / d, 1.0) * (1.0 - np.exp(-d / 36.0)) + np.exp(-d / 36.0)


def path_loss_db(distance_m: Floats, line_of_sight: np.ndarray, carrier_hz: float) -> Floats:
    """PL = 32.4 + {21 | 31.9} log10 d + 20 log10 f in dB, with d in metres (at least 1) and f in GHz."""
    slope = np.where(line_of_sight, 21.0, 31.9)
    return np.asarray(32.4 + slope * np.log10(np.maximum(distance_m, 1.0)) + 20.0 * np.log10(carrier_hz / 1e9))
