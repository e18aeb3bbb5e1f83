"""One channel draw for each upload opportunity: line of sight, shadowing, and so a gain."""

from __future__ import annotations

import numpy as np

from wayfare.arrays import Floats
from wayfare.contacts import Opportunities
from wayfare.radio.pathloss import line_of_sight_probability, path_loss_db
from wayfare.scenario.model import Radio
from wayfare.streams import Stream, generator
from wayfare.units import db_to_ratio, dbm_to_watts


def gains_per_watt(meets: Opportunities, radio: Radio, seed: int) -> Floats:
    """|h|^2 / (B N0) of every opportunity: the signal-to-noise ratio at one watt."""
    sight, shadow = np.empty(len(meets)), np.empty(len(meets))
    for device in np.unique(meets.device):
        rows = np.flatnonzero(meets.device == device)
        sight[rows] = generator(seed, Stream.LINE_OF_SIGHT, int(device)).random(len(rows))
        shadow[rows] = generator(seed, Stream.SHADOWING, int(device)).standard_normal(len(rows))
    line_of_sight = sight < line_of_sight_probability(meets.distance_m)
    loss_db = path_loss_db(meets.distance_m, line_of_sight, radio.carrier_hz)
    loss_db = loss_db + shadow * np.where(line_of_sight, radio.shadowing_los_db, radio.shadowing_nlos_db)
    return db_to_ratio(-loss_db) / (radio.bandwidth_hz * dbm_to_watts(radio.noise_dbm_per_hz))
