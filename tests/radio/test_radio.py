from __future__ import annotations

import math

import numpy as np
import pytest

import wayfare
from wayfare.contacts import Opportunities, PeerOpportunities
from wayfare.radio import Link, gains_per_watt, peer_gains_per_watt
from wayfare.radio.pathloss import line_of_sight_probability, path_loss_db
from wayfare.streams import Stream, generator, pair_number
from wayfare.units import db_to_ratio, dbm_to_watts

LINK = Link(bandwidth_hz=1e6, max_power_watts=0.2, parameters=6_568_650, bits_per_entry=54.647, dense_bits=210.2e6)


def test_path_loss_follows_the_standard() -> None:
    loss = path_loss_db(np.array([100.0, 100.0, 0.2]), np.array([True, False, True]), 3.5e9)
    near = 32.4 + 20 * math.log10(3.5)
    assert loss == pytest.approx([near + 42.0, near + 63.8, near], rel=1e-12)
    assert line_of_sight_probability(np.array([1.0, 18.0, 100.0])) == pytest.approx(
        [1.0, 1.0, 0.18 * (1 - math.exp(-100 / 36)) + math.exp(-100 / 36)], rel=1e-12
    )


def test_within_a_metre_the_loss_is_that_of_a_metre() -> None:
    los = np.array([False, False, False])
    loss = path_loss_db(np.array([0.0, 1.0, 2.0]), los, 1e9)
    assert loss == pytest.approx([32.4, 32.4, 32.4 + 31.9 * math.log10(2.0)], rel=1e-12)
    assert line_of_sight_probability(np.array([0.0, 0.5])) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("is_peer", [False, True])
def test_a_gain_is_loss_shadowing_and_noise_in_decibels(is_peer: bool) -> None:
    """Chance belongs to the device or to the pair."""
    rounds, device, peer = np.array([7, 2, 5, 3, 9, 4]), np.array([1, 0, 1, 0, 1, 0]), np.array([2, 1, 2, 1, 2, 2])
    distance_m, once_s = np.array([3.0, 80.0, 200.0, 120.0, 60.0, 90.0]), np.ones(6)
    radio = wayfare.load("paper-cifar10-waypoint").radio
    if is_peer:
        pairs = PeerOpportunities(round=rounds, device=device, peer=peer, contact_s=once_s, distance_m=distance_m)
        found = peer_gains_per_watt(pairs, radio, seed=3)
        groups = [(pair_number(0, 1), [1, 3]), (pair_number(0, 2), [5]), (pair_number(1, 2), [2, 0, 4])]
        streams = Stream.PEER_LINE_OF_SIGHT, Stream.PEER_SHADOWING
    else:
        meets = Opportunities(round=rounds, device=device, contact_s=once_s, distance_m=distance_m)
        found = gains_per_watt(meets, radio, seed=3)
        groups = [(0, [1, 3, 5]), (1, [0, 2, 4])]
        streams = Stream.LINE_OF_SIGHT, Stream.SHADOWING
    noise_db = 10 * math.log10(radio.bandwidth_hz) + radio.noise_dbm_per_hz - 30.0
    for key, rows in groups:
        sight = generator(3, streams[0], key).random(len(rows))
        shadow = generator(3, streams[1], key).standard_normal(len(rows))
        for row, seen, deviation in zip(rows, sight, shadow, strict=True):
            los = seen < line_of_sight_probability(distance_m[row : row + 1])
            loss_db = path_loss_db(distance_m[row : row + 1], los, radio.carrier_hz)[0]
            loss_db += deviation * (radio.shadowing_los_db if los[0] else radio.shadowing_nlos_db)
            assert 10 * math.log10(found[row]) == pytest.approx(-loss_db - noise_db, rel=1e-9)


def test_nobody_meets_nobody() -> None:
    none, nothing = np.empty(0, np.int64), np.empty(0)
    radio = wayfare.load("paper-cifar10-waypoint").radio
    meets = PeerOpportunities(round=none, device=none, peer=none, contact_s=nothing, distance_m=nothing)
    assert len(peer_gains_per_watt(meets, radio, seed=0)) == 0


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
    assert LINK.energy_joules(5.0, 0.0, 1e4) == 0.0
    # Nothing costs nothing, even where nothing gets through.
    assert LINK.energy_joules(0.0, 0.1, 0.0) == 0.0
    assert LINK.energy_joules(1.0, 1.0, 1e4) == pytest.approx(1 / (1e6 * math.log2(10_001)))
    assert LINK.statistics_bits == 0.0
