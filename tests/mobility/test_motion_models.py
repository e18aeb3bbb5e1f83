"""One table of models of motion; every one passes the same tests."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp, kstest

from wayfare.contacts import plan_from_motion
from wayfare.mobility import Motion, from_spec
from wayfare.mobility.direction import Direction
from wayfare.mobility.manhattan import Manhattan
from wayfare.scenario.mobility import (
    DirectionMobility,
    GaussMarkovMobility,
    LegMobility,
    ManhattanMobility,
    SpatialMobility,
    WalkMobility,
    WaypointMobility,
)

MODELS = {
    "waypoint": WaypointMobility(),
    "waypoint, long pauses": WaypointMobility(width_m=300.0, height_m=120.0, speed_mps=5.0, pause_max_s=60.0),
    "waypoint, one speed": WaypointMobility(speed_spread=0.0, pause_max_s=0.0),
    "walk": WalkMobility(),
    "walk by distance": WalkMobility(width_m=400.0, height_m=900.0, leg_m=700.0, pause_max_s=20.0),
    "direction": DirectionMobility(),
    "direction, long pauses": DirectionMobility(width_m=300.0, height_m=700.0, pause_max_s=40.0),
    "gauss-markov": GaussMarkovMobility(),
    "gauss-markov, fast and forgetful": GaussMarkovMobility(width_m=200.0, height_m=100.0, memory=0.0, step_s=12.0),
    "gauss-markov, never forgets": GaussMarkovMobility(memory=1.0),
    "manhattan": ManhattanMobility(),
    "manhattan, uneven turns": ManhattanMobility(width_m=600.0, left=0.1, right=0.6, pause_max_s=8.0),
    "manhattan, no turns": ManhattanMobility(left=0.0, right=0.0),
    "manhattan, one block": ManhattanMobility(width_m=100.0, height_m=100.0),
}
every_model = pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS.keys())


def _draw(spec: SpatialMobility, devices: int, duration_s: float, seed: int = 1) -> Motion:
    motion = from_spec(spec, 100.0).draw(devices, duration_s, seed)  # type: ignore[arg-type]
    assert isinstance(motion, Motion)
    return motion


def _places_m(motion: Motion, time_s: float) -> np.ndarray:
    return np.concatenate([motion.positions_m(node, np.array([time_s])) for node in range(motion.nodes)])


def _speeds_mps(motion: Motion, time_s: float) -> np.ndarray:
    rows = (motion.start_s <= time_s) & (motion.end_s > time_s)
    # Rounded: where there is one speed only, the last digits would decide.
    return np.hypot(motion.vx_mps[rows], motion.vy_mps[rows]).round(6)


@every_model
def test_nodes_stay_in_the_area(spec):
    motion = _draw(spec, 5, 3000.0)
    span_s = motion.end_s - motion.start_s
    for x_m, y_m in (
        (motion.x_m, motion.y_m),
        (motion.x_m + motion.vx_mps * span_s, motion.y_m + motion.vy_mps * span_s),
    ):
        assert x_m.min() >= -1e-9
        assert x_m.max() <= spec.width_m + 1e-9
        assert y_m.min() >= -1e-9
        assert y_m.max() <= spec.height_m + 1e-9


@every_model
def test_motion_is_continuous_and_fills_the_whole_duration(spec):
    motion = _draw(spec, 4, 2000.0)
    for node in range(motion.nodes):
        rows = motion.legs_of(node)
        start_s, end_s = motion.start_s[rows], motion.end_s[rows]
        assert start_s[0] == 0.0
        assert end_s[-1] == 2000.0
        np.testing.assert_array_equal(start_s[1:], end_s[:-1])
        for at_m, speed_mps in ((motion.x_m[rows], motion.vx_mps[rows]), (motion.y_m[rows], motion.vy_mps[rows])):
            np.testing.assert_allclose((at_m + speed_mps * (end_s - start_s))[:-1], at_m[1:], atol=1e-8)


@every_model
def test_speeds_are_those_of_the_section(spec):
    motion = _draw(spec, 30, 3000.0)
    # A leg of a microsecond has a speed that is mostly rounding.
    whole = motion.end_s - motion.start_s > 1e-3
    speed_mps = np.hypot(motion.vx_mps, motion.vy_mps)[whole]
    moving = speed_mps[speed_mps > 1e-9]
    if isinstance(spec, LegMobility):
        low, high = spec.speed_bounds_mps
        assert moving.min() >= low * (1 - 1e-6)
        assert moving.max() <= high * (1 + 1e-6)
        assert (len(moving) < len(speed_mps)) == (spec.pause_max_s > 0)
    elif spec.memory < 1:
        weight = (motion.end_s - motion.start_s)[whole]
        assert np.average(speed_mps, weights=weight) == pytest.approx(spec.speed_mps, abs=0.5)
        assert np.sqrt(np.cov(speed_mps, aweights=weight)) == pytest.approx(spec.speed_deviation_mps, rel=0.1)


@every_model
def test_a_longer_run_begins_with_the_motion_of_a_shorter_one(spec):
    short, long = _draw(spec, 3, 700.0), _draw(spec, 3, 2500.0)
    times_s = np.linspace(0.0, 700.0, 501)
    for node in range(short.nodes):
        # To the bit: a run goes on from where a shorter one ended only if every contact was the same.
        np.testing.assert_array_equal(short.positions_m(node, times_s), long.positions_m(node, times_s))


@every_model
def test_motion_of_a_node_does_not_depend_on_the_size_of_the_fleet(spec):
    small, large = _draw(spec, 3, 900.0), _draw(spec, 8, 900.0)
    times_s = np.linspace(0.0, 900.0, 301)
    for one, other in ((0, 0), (2, 2), (3, 8)):
        np.testing.assert_array_equal(small.positions_m(one, times_s), large.positions_m(other, times_s))


@every_model
def test_motion_depends_on_the_seed_and_on_nothing_else(spec):
    first, again, other = _draw(spec, 3, 500.0, seed=7), _draw(spec, 3, 500.0, seed=7), _draw(spec, 3, 500.0, seed=8)
    np.testing.assert_array_equal(first.x_m, again.x_m)
    assert not np.array_equal(_places_m(first, 0.0), _places_m(other, 0.0))
    assert len({tuple(place) for place in _places_m(first, 100.0)}) == first.nodes


@every_model
def test_the_start_is_stationary(spec):
    motion = _draw(spec, 2500, 400.0, seed=3)
    early, late = _places_m(motion, 0.0), _places_m(motion, 399.0)
    for axis in (0, 1):
        assert ks_2samp(early[:, axis], late[:, axis]).pvalue > 1e-3
    assert ks_2samp(_speeds_mps(motion, 0.0), _speeds_mps(motion, 399.0)).pvalue > 1e-3


@pytest.mark.parametrize("name", ["walk", "walk by distance", "gauss-markov", "gauss-markov, fast and forgetful"])
def test_reflected_models_are_uniform_in_the_area(name):
    spec = MODELS[name]
    places_m = _places_m(_draw(spec, 2500, 300.0, seed=4), 250.0)
    assert kstest(places_m[:, 0] / spec.width_m, "uniform").pvalue > 1e-3
    assert kstest(places_m[:, 1] / spec.height_m, "uniform").pvalue > 1e-3


def test_random_direction_turns_only_at_the_border():
    spec = DirectionMobility(pause_max_s=0.0)
    motion = _draw(spec, 3, 2000.0)
    for node in range(motion.nodes):
        rows = motion.legs_of(node)
        x_m, y_m = motion.x_m[rows][1:], motion.y_m[rows][1:]
        gap_m = np.minimum.reduce([x_m, spec.width_m - x_m, y_m, spec.height_m - y_m])
        np.testing.assert_allclose(gap_m, 0.0, atol=1e-9)


def test_manhattan_nodes_keep_to_the_streets_and_turn_as_often_as_asked():
    spec = ManhattanMobility(width_m=5000.0, height_m=5000.0, left=0.1, right=0.3, speed_spread=0.0)
    motion = _draw(spec, 40, 4000.0)
    off_x = np.abs(motion.x_m - 100.0 * np.rint(motion.x_m / 100.0))
    off_y = np.abs(motion.y_m - 100.0 * np.rint(motion.y_m / 100.0))
    assert np.minimum(off_x, off_y).max() < 1e-6
    assert np.minimum(np.abs(motion.vx_mps), np.abs(motion.vy_mps)).max() < 1e-6
    same = motion.node[1:] == motion.node[:-1]
    inner = (np.abs(motion.x_m[1:] - 2500.0) < 2450.0) & (np.abs(motion.y_m[1:] - 2500.0) < 2450.0)
    turn = np.sign(motion.vx_mps[:-1] * motion.vy_mps[1:] - motion.vy_mps[:-1] * motion.vx_mps[1:]).round(6)
    turn = turn[same & inner] * (np.abs(turn[same & inner]) > 0.5)
    assert np.mean(turn == 1) == pytest.approx(0.1, abs=0.01)
    assert np.mean(turn == -1) == pytest.approx(0.3, abs=0.015)


def test_only_models_without_a_known_stationary_state_warm_up():
    assert Direction(DirectionMobility()).warm_up_s > 0
    assert Manhattan(ManhattanMobility()).warm_up_s == 0
    assert Manhattan(ManhattanMobility(left=0.3, right=0.1)).warm_up_s > 0


@pytest.mark.parametrize("speed_mps", [5.0, 20.0])
def test_waypoint_contacts_last_132_m_and_come_every_3000_m(speed_mps):
    spec = WaypointMobility(speed_mps=speed_mps, pause_max_s=0.0)
    duration_s = 200_000.0 / speed_mps
    plan = plan_from_motion(_draw(spec, 40, duration_s), 100.0, duration_s, 1, devices_meet=True)
    pairs = 41 * 40 / 2
    in_contact_s = float((plan.end_s - plan.start_s).sum())
    assert in_contact_s / len(plan) * speed_mps == pytest.approx(132.0, rel=0.05)
    assert (pairs * duration_s - in_contact_s) / len(plan) * speed_mps == pytest.approx(3000.0, rel=0.05)
    assert in_contact_s / (pairs * duration_s) == pytest.approx(0.042, rel=0.05)
