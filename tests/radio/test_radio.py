from __future__ import annotations

import math

import numpy as np
import pytest

import wayfare
from wayfare.contacts import Opportunities
from wayfare.radio import Link, gains_per_watt
from wayfare.radio.pathloss import line_of_sight_probability, path_loss_db
from wayfare.units import db_to_ratio, dbm_to_watts

LINK = Link(bandwidth_hz=1e6, max_power_watts=0.2, parameters=6_568_650, bits_per_entry=54.647, dense_bits=210.2e6)


def test_path_loss_follows_the_standard() -> None:
    loss = path_loss_db(np.array([100.0, 100.0, 0.2]), np.array([True, False, True]), 3.5e9)
    near = 32.4 + 20 * math.log10(3.5)
    assert loss == pytest.approx([near + 42.0, near + 63.8, near])
    assert line_of_sight_probability(np.array([1.0, 18.0, 100.0])) == pytest.approx(
        [1.0, 1.0, 0.18 * (1 - math.exp(-100 / 36)) + math.exp(-100 / 36)]
    )


def test_decibels() -> None:
    assert db_to_ratio(30.0) == pytest.approx(1000)
    assert dbm_to_watts(23.0) == pytest.approx(0.19952623)


def test_a_disc_of_100_metres_has_the_signal_of_the_paper() -> None:
    count = 200_000
    distance_m = 100 * np.sqrt(np.random.default_rng(0).random(count))
    meets = Opportunities(
        round=np.arange(1, count + 1), device=np.zeros(count, np.int64), contact_s=np.ones(count), distance_m=distance_m
    )
    radio = wayfare.load("paper-cifar10-waypoint").radio
    signal_db = 10 * np.log10(radio.max_power_watts * gains_per_watt(meets, radio, seed=0))
    assert np.percentile(signal_db, [5, 50, 95]) == pytest.approx([22, 45, 67], abs=1.0)
    rate_mbps = np.log2(1 + 10 ** (signal_db / 10))
    assert np.percentile(rate_mbps, [5, 50, 95]) == pytest.approx([7.4, 14.9, 22.1], abs=0.2)
    assert line_of_sight_probability(distance_m).mean() == pytest.approx(0.43, abs=0.01)


def test_rate_and_energy_agree_with_each_other() -> None:
    rate = LINK.rate_bps(0.1, 1e4)
    assert rate == pytest.approx(1e6 * math.log2(1001))
    assert LINK.energy_joules(3 * rate, 0.1, 1e4) == pytest.approx(0.3)
    assert LINK.energy_joules(0.0, 0.1, 1e4) == 0.0
    assert LINK.energy_joules(0.0, 0.0, 1e4) == 0.0
