"""One channel draw per contact: line of sight, shadowing and the resulting gain."""

from __future__ import annotations

import numpy as np

from wayfare.arrays import Floats
from wayfare.contacts import Opportunities, PeerOpportunities
from wayfare.radio.pathloss import line_of_sight_probability, path_loss_db
from wayfare.scenario.model import Radio
from wayfare.streams import Stream, generator, pair_number
from wayfare.units import db_to_ratio, dbm_to_watts


def gains_per_watt(meets: Opportunities, radio: Radio, seed: int) -> Floats:
    """|h|^2 / (B N0) of every contact, per watt: the signal-to-noise ratio at one watt."""
    sight, shadow = np.empty(len(meets)), np.empty(len(meets))
    for device in np.unique(meets.device):
        rows = np.flatnonzero(meets.device == device)
        sight[rows] = generator(seed, Stream.LINE_OF_SIGHT, int(device)).random(len(rows))
        shadow[rows] = generator(seed, Stream.SHADOWING, int(device)).standard_normal(len(rows))
    return _gains(meets.distance_m, sight, shadow, radio)


def peer_gains_per_watt(meets: PeerOpportunities, radio: Radio, seed: int) -> Floats:
    """The gains between devices, equal in both directions. Each pair has its own streams."""
    sight, shadow = np.empty(len(meets)), np.empty(len(meets))
    order = np.lexsort((meets.round, meets.peer, meets.device))
    pairs = np.stack([meets.device[order], meets.peer[order]])
    begins = np.flatnonzero(np.append(True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0))[: len(order)])
    for rows in np.split(order, begins[1:]) if len(order) else []:
        pair = pair_number(int(meets.device[rows[0]]), int(meets.peer[rows[0]]))
        sight[rows] = generator(seed, Stream.PEER_LINE_OF_SIGHT, pair).random(len(rows))
        shadow[rows] = generator(seed, Stream.PEER_SHADOWING, pair).standard_normal(len(rows))
    return _gains(meets.distance_m, sight, shadow, radio)


def _gains(distance_m: Floats, sight: Floats, shadow: Floats, radio: Radio) -> Floats:
    line_of_sight = sight < line_of_sight_probability(distance_m)
    loss_db = path_loss_db(distance_m, line_of_sight, radio.carrier_hz)
    loss_db = loss_db + shadow * np.where(line_of_sight, radio.shadowing_los_db, radio.shadowing_nlos_db)
    return db_to_ratio(-loss_db) / (radio.bandwidth_hz * dbm_to_watts(radio.noise_dbm_per_hz))
