"""Forecast lengths of contacts."""

from __future__ import annotations

import math

import numpy as np

from wayfare.arrays import Floats
from wayfare.contacts.plan import Opportunities
from wayfare.streams import Stream, generator


def forecast_s(meets: Opportunities, relative_error: float, seed: int) -> Floats:
    """The forecast length of every contact: its true length times a log-normal factor of mean 1.

    The factor is exp(s z - s^2 / 2) with s^2 = ln(1 + error^2); its standard deviation is the relative error.
    """
    if relative_error == 0:
        return meets.contact_s
    spread = math.sqrt(math.log1p(relative_error**2))
    drawn = np.empty(len(meets))
    for device in np.unique(meets.device):
        rows = np.flatnonzero(meets.device == device)
        drawn[rows] = generator(seed, Stream.CONTACT_FORECAST, int(device)).standard_normal(len(rows))
    return np.asarray(meets.contact_s * np.exp(spread * drawn - spread**2 / 2))
