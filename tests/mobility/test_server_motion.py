from __future__ import annotations

import numpy as np
import pytest

from wayfare.errors import ScenarioError
from wayfare.mobility import Motion, from_spec
from wayfare.scenario import load
from wayfare.scenario.mobility import FixedServer, RouteServer, WalkMobility, WaypointMobility

SQUARE = ((100.0, 100.0), (300.0, 100.0), (300.0, 300.0), (100.0, 300.0))


def _server_m(spec: WaypointMobility | WalkMobility, times_s: list[float], duration_s: float = 500.0) -> np.ndarray:
    motion = from_spec(spec, 100.0).draw(2, duration_s, 5)
    assert isinstance(motion, Motion)
    return motion.positions_m(2, np.array(times_s))


def test_a_fixed_server_stands_in_the_middle_unless_told_where():
    middle = WaypointMobility(width_m=800.0, height_m=600.0, server=FixedServer())
    np.testing.assert_array_equal(_server_m(middle, [0.0, 250.0, 500.0]), [[400.0, 300.0]] * 3)
    told = WalkMobility(server=FixedServer(x_m=0.0, y_m=70.0))
    np.testing.assert_array_equal(_server_m(told, [0.0, 500.0]), [[0.0, 70.0]] * 2)


def test_a_closed_route_returns_to_its_first_waypoint_and_stops_at_each():
    spec = WaypointMobility(server=RouteServer(waypoints_m=SQUARE, speed_mps=10.0, stop_s=5.0))
    # 5 s at each corner, 20 s along each side: a round of 100 s.
    places_m = _server_m(spec, [0.0, 5.0, 15.0, 25.0, 30.0, 92.5, 100.0, 215.0])
    expected = [(100, 100), (100, 100), (200, 100), (300, 100), (300, 100), (100, 175), (100, 100), (200, 100)]
    np.testing.assert_allclose(places_m, expected, atol=1e-9)


def test_a_ping_pong_route_goes_back_the_way_it_came():
    spec = WaypointMobility(server=RouteServer(waypoints_m=SQUARE[:3], speed_mps=10.0, loop="ping-pong"))
    places_m = _server_m(spec, [0.0, 20.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0])
    expected = [(100, 100), (300, 100), (300, 300), (300, 200), (300, 100), (200, 100), (100, 100), (200, 100)]
    np.testing.assert_allclose(places_m, expected, atol=1e-9)


def test_a_route_of_two_waypoints_goes_back_and_forth_either_way():
    for loop in ("closed", "ping-pong"):
        route = RouteServer(waypoints_m=SQUARE[:2], speed_mps=10.0, stop_s=1.0, loop=loop)
        places_m = _server_m(WaypointMobility(server=route), [0.5, 11.0, 21.5, 32.0, 42.5])
        np.testing.assert_allclose(places_m[:, 0], [100.0, 200.0, 300.0, 200.0, 100.0], atol=1e-9)


def test_a_run_shorter_than_the_first_leg_of_a_route_is_cut_there():
    spec = WaypointMobility(server=RouteServer(waypoints_m=SQUARE, speed_mps=1.0))
    np.testing.assert_allclose(_server_m(spec, [0.0, 7.0], duration_s=7.0), [(100.0, 100.0), (107.0, 100.0)])


def test_devices_move_alike_whatever_the_server_does():
    moving = from_spec(WaypointMobility(), 100.0).draw(3, 500.0, 5)
    standing = from_spec(WaypointMobility(server=FixedServer()), 100.0).draw(3, 500.0, 5)
    assert isinstance(moving, Motion)
    assert isinstance(standing, Motion)
    np.testing.assert_array_equal(moving.x_m[moving.node < 3], standing.x_m[standing.node < 3])


def test_overrides_choose_the_server():
    fixed = load("fashion-small", ["mobility.server.kind=fixed", "mobility.server.x_m=10"])
    assert fixed.mobility.server == FixedServer(x_m=10.0)
    route = load(
        "fashion-small",
        [
            "mobility.server.kind=route",
            "mobility.server.waypoints_m=[[0, 0], [9, 9]]",
            "mobility.server.loop=ping-pong",
        ],
    )
    assert route.mobility.server == RouteServer(waypoints_m=((0.0, 0.0), (9.0, 9.0)), loop="ping-pong")


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (["kind=fixed", "x_m=2000"], "must lie inside width_m x height_m"),
        (["kind=route", "waypoints_m=[[0, 0], [0, 1001]]"], "must lie inside width_m x height_m"),
        (["kind=route", "waypoints_m=[[0, 0], [0, 0]]"], "consecutive waypoints must differ"),
        (["kind=route", "waypoints_m=[[0, 0]]"], "at least 2 items"),
        (["kind=route", "waypoints_m=[[0, 0], [1, 1], [0, 0]]"], "the last waypoint of a closed route must differ"),
        (["kind=route", "waypoints_m=[[0, 0], [1, 1]]", "speed_mps=0"], "greater than 0"),
        (["kind=route", "waypoints_m=[[0, 0], [1, 1]]", "stop_s=-1"], "greater than or equal to 0"),
        (["kind=flying"], "must be one of moving, fixed, route"),
    ],
)
def test_a_server_that_breaks_a_rule_is_refused(overrides, rule):
    with pytest.raises(ScenarioError, match=rule):
        load("fashion-small", [f"mobility.server.{override}" for override in overrides])


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (["model=waypoint", "speed_mps=0"], "greater than 0"),
        (["model=waypoint", "width_m=-1"], "greater than 0"),
        (["model=waypoint", "speed_spread=1"], "less than 1"),
        (["model=walk", "leg_s=0"], "greater than 0"),
        (["model=walk", "leg_s=3", "leg_m=3"], "must not both be given"),
        (["model=direction", "pause_max_s=-1"], "greater than or equal to 0"),
        (["model=gauss-markov", "memory=1.5"], "less than or equal to 1"),
        (["model=gauss-markov", "step_s=0"], "greater than 0"),
        (["model=manhattan", "block_m=300"], r"width_m \(1000.0\) must be a whole number of blocks"),
        (["model=manhattan", "block_m=2000"], "must be a whole number of blocks"),
        (["model=manhattan", "left=0.7", "right=0.7"], "must not sum to more than 1"),
        (["model=trace", "file=a.xml", "box_m=[5, 0, 1, 9]"], "x_min < x_max"),
        (["model=teleport"], "must be one of exponential, waypoint, walk, direction, gauss-markov, manhattan, trace"),
    ],
)
def test_a_model_that_breaks_a_rule_is_refused(overrides, rule):
    with pytest.raises(ScenarioError, match=rule):
        load("fashion-small", [f"mobility.{override}" for override in overrides])
