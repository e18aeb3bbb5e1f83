"""Contacts against a fine grid of time, and the spatial index against looking at every pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.contacts import near, slabs
from wayfare.contacts.draw import draw_plan, plan_from_motion, plans_from_motion
from wayfare.contacts.extract import contact_intervals, within_range
from wayfare.contacts.pairs import pair_contacts
from wayfare.contacts.plan import ContactPlan
from wayfare.mobility import SERVER, Motion, from_spec
from wayfare.mobility.base import motion_from_knots
from wayfare.scenario import load
from wayfare.scenario.mobility import (
    DirectionMobility,
    FixedServer,
    GaussMarkovMobility,
    ManhattanMobility,
    WalkMobility,
    WaypointMobility,
)


def random_motion(seed: int, nodes: int, legs: int, side_m: float, absent: float, corner_m: float = 0.0) -> Motion:
    """Nodes with legs of uneven length, pauses, jumps over absences, and some that share a place or a time."""
    rng = np.random.default_rng(seed)
    knots = []
    for _ in range(nodes):
        count = int(rng.integers(1, legs + 1)) + 1
        # Whole seconds now and then, so that legs of different nodes begin at the same instant.
        time_s = np.unique(np.where(rng.random(count) < 0.3, rng.integers(0, 60, count), rng.uniform(0, 60, count)))
        time_s = time_s if len(time_s) > 1 else np.array([0.0, 60.0])
        place_m = corner_m + side_m * rng.random((len(time_s), 2))
        pause = np.flatnonzero(rng.random(len(time_s) - 1) < 0.25)
        place_m[pause + 1] = place_m[pause]
        knots.append((time_s, place_m[:, 0], place_m[:, 1]))
    motion = motion_from_knots(knots)
    stays = rng.random(len(motion.node)) >= absent
    return Motion(
        nodes=nodes,
        **{
            name: getattr(motion, name)[stays]
            for name in ("node", "start_s", "end_s", "x_m", "y_m", "vx_mps", "vy_mps")
        },
    )


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    legs=st.integers(1, 12),
    range_m=st.sampled_from([1.0, 20.0, 60.0, 150.0]),
    absent=st.sampled_from([0.0, 0.3]),
)
def test_contacts_are_those_of_a_fine_time_grid(seed, legs, range_m, absent):
    motion = random_motion(seed, nodes=2, legs=legs, side_m=100.0, absent=absent)
    start_s, end_s = contact_intervals(motion, 0, 1, range_m)
    assert np.all(start_s < end_s)
    assert np.all(start_s[1:] > end_s[:-1])
    grid_s = np.linspace(0.0, 60.0, 4001)
    apart_m = motion.positions_m(0, grid_s) - motion.positions_m(1, grid_s)
    distance_m = np.hypot(apart_m[:, 0], apart_m[:, 1])
    inside = np.any((start_s[:, None] <= grid_s) & (grid_s <= end_s[:, None]), axis=0)
    # On the very edge of the range, and where a leg begins or ends, rounding may decide either way.
    edges_s = np.concatenate([motion.start_s, motion.end_s])
    clear = np.abs(distance_m - range_m) > 1e-6
    clear &= np.all(np.abs(grid_s[:, None] - edges_s) > 1e-9, axis=1)
    np.testing.assert_array_equal(inside[clear], distance_m[clear] < range_m)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), range_m=st.sampled_from([5.0, 40.0, 90.0]))
def test_a_contact_begins_and_ends_at_the_range_or_where_a_node_comes_or_goes(seed, range_m):
    motion = random_motion(seed, nodes=2, legs=10, side_m=100.0, absent=0.2)
    start_s, end_s = contact_intervals(motion, 0, 1, range_m)
    edges_s = np.concatenate([motion.start_s, motion.end_s])
    for instant_s in np.concatenate([start_s, end_s]):
        apart_m = motion.positions_m(0, np.array([instant_s])) - motion.positions_m(1, np.array([instant_s]))
        at_range = abs(np.hypot(*apart_m[0]) - range_m) < 1e-6
        assert at_range or np.min(np.abs(edges_s - instant_s)) < 1e-9


def test_a_contact_over_many_legs_is_one_contact():
    zigzag = np.arange(0.0, 11.0), np.arange(0.0, 11.0), np.tile([0.0, 3.0], 6)[:11]
    motion = motion_from_knots([zigzag, (np.array([0.0, 10.0]), np.array([5.0, 5.0]), np.array([0.0, 0.0]))])
    start_s, end_s = contact_intervals(motion, 0, 1, 50.0)
    np.testing.assert_array_equal(start_s, [0.0])
    np.testing.assert_array_equal(end_s, [10.0])


def test_an_absence_parts_a_contact():
    still = np.array([0.0, 10.0]), np.zeros(2), np.zeros(2)
    motion = motion_from_knots([still, (np.array([0.0, 4.0, 6.0, 10.0]), np.ones(4), np.ones(4))])
    here = np.array([True, True, False, True])
    motion = Motion(
        nodes=2,
        **{
            name: getattr(motion, name)[here] for name in ("node", "start_s", "end_s", "x_m", "y_m", "vx_mps", "vy_mps")
        },
    )
    start_s, end_s = contact_intervals(motion, 0, 1, 5.0)
    np.testing.assert_array_equal(start_s, [0.0, 6.0])
    np.testing.assert_array_equal(end_s, [4.0, 10.0])


def test_nodes_at_rest_are_always_or_never_within_range():
    x = np.array([3.0, 30.0])
    near, far = within_range(x, np.zeros(2), np.zeros(2), np.zeros(2), 10.0)
    np.testing.assert_array_equal(near, [-np.inf, np.inf])
    np.testing.assert_array_equal(far, [np.inf, -np.inf])


def test_a_contact_far_ahead_keeps_its_digits():
    near, far = within_range(np.array([-1e7]), np.array([60.0]), np.array([20.0]), np.array([0.0]), 100.0)
    np.testing.assert_allclose([near[0], far[0]], [(1e7 - 80) / 20, (1e7 + 80) / 20], rtol=1e-12)


def assert_equals_brute_force(motion: Motion, range_m: float, *, all_pairs: bool) -> int:
    """Every pair in the order of the index, every contact to the last bit."""
    one, other, starts, ends = [], [], [], []
    for i in range(motion.nodes - 1):
        for j in range(i + 1, motion.nodes) if all_pairs else [motion.nodes - 1]:
            start_s, end_s = contact_intervals(motion, i, j, range_m)
            starts.append(start_s)
            ends.append(end_s)
            one += [i] * len(start_s)
            other += [j] * len(start_s)
    found = list(pair_contacts(motion, range_m, all_pairs=all_pairs))
    np.testing.assert_array_equal(np.concatenate([part.one for part in found]), one)
    np.testing.assert_array_equal(np.concatenate([part.other for part in found]), other)
    np.testing.assert_array_equal(np.concatenate([part.start_s for part in found]), np.concatenate(starts))
    np.testing.assert_array_equal(np.concatenate([part.end_s for part in found]), np.concatenate(ends))
    return len(one)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    nodes=st.integers(2, 9),
    legs=st.integers(1, 15),
    side_m=st.sampled_from([50.0, 400.0, 20_000.0]),
    range_m=st.sampled_from([0.5, 20.0, 150.0]),
    absent=st.sampled_from([0.0, 0.3, 0.9]),
    corner_m=st.sampled_from([0.0, -3e3, 5e6]),
    all_pairs=st.booleans(),
)
def test_the_index_finds_exactly_what_brute_force_finds(
    seed, nodes, legs, side_m, range_m, absent, corner_m, all_pairs
):
    motion = random_motion(seed, nodes, legs, side_m, absent, corner_m)
    if len(motion.node):
        assert_equals_brute_force(motion, range_m, all_pairs=all_pairs)


@pytest.mark.parametrize(
    "spec",
    [
        WaypointMobility(width_m=4000.0, height_m=4000.0),
        WalkMobility(width_m=4000.0, height_m=3000.0, server=FixedServer()),
        DirectionMobility(width_m=2000.0, height_m=5000.0),
        GaussMarkovMobility(width_m=4000.0, height_m=4000.0, step_s=1.0),
        ManhattanMobility(width_m=4000.0, height_m=4000.0),
    ],
    ids=lambda spec: spec.model,
)
def test_the_index_is_exact_for_every_model_over_many_cells(spec):
    motion = from_spec(spec, 100.0).draw(45, 1200.0, 2)
    assert assert_equals_brute_force(motion, 100.0, all_pairs=True) > 300
    assert_equals_brute_force(motion, 100.0, all_pairs=False)


def test_only_near_pairs_are_looked_at():
    motion = from_spec(WaypointMobility(width_m=30_000.0, height_m=30_000.0), 100.0).draw(300, 1000.0, 1)
    assert isinstance(motion, Motion)
    table = slabs.cut(motion, 100.0)
    looked_at = sum(len(part.one) for part in near.all_pairs(table, motion.nodes, 100.0))
    assert looked_at < 0.05 * table.windows * 300 * 301 / 2


def test_batches_of_any_size_give_the_same(monkeypatch):
    motion = from_spec(WaypointMobility(), 100.0).draw(12, 1500.0, 3)
    assert isinstance(motion, Motion)
    whole = plan_from_motion(motion, 100.0, 1500.0, 3, devices_meet=True)
    monkeypatch.setattr("wayfare.contacts.near._BATCH", 100)
    monkeypatch.setattr("wayfare.contacts.pairs._TESTED", 60)
    monkeypatch.setattr("wayfare.contacts.pairs._SOLVED", 5)
    parts = list(plans_from_motion(motion, 100.0, 1500.0, 3, devices_meet=True))
    assert len(parts) > 3
    for name in ("device", "peer", "start_s", "end_s", "distance_m"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(whole, name))


def _plan(devices: int, duration_s: float, *, devices_meet: bool = True, seed: int = 4) -> ContactPlan:
    motion = from_spec(WaypointMobility(width_m=600.0, height_m=600.0), 100.0).draw(devices, duration_s, seed)
    assert isinstance(motion, Motion)
    return plan_from_motion(motion, 100.0, duration_s, seed, devices_meet=devices_meet)


def _same(one: ContactPlan, other: ContactPlan) -> None:
    for name in ("device", "peer", "start_s", "end_s", "distance_m"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_plan_is_sorted_by_device_and_start_and_names_the_larger_device_as_peer():
    plan = _plan(9, 2000.0)
    np.testing.assert_array_equal(np.lexsort((plan.start_s, plan.device)), np.arange(len(plan)))
    between = plan.peer != SERVER
    assert 0 < between.sum() < len(plan)
    assert np.all(plan.peer[between] > plan.device[between])
    assert plan.peer.max() == 8


def test_contacts_with_the_server_are_the_same_whether_devices_meet_or_not():
    _same(_plan(9, 2000.0).with_server(), _plan(9, 2000.0, devices_meet=False))


def test_a_larger_fleet_leaves_contacts_and_distances_of_the_others_alone():
    small, large = _plan(5, 2000.0), _plan(11, 2000.0)
    _same(small, large.take((large.device < 5) & (large.peer < 5)))


def test_a_longer_run_leaves_earlier_contacts_and_distances_alone():
    short, long = _plan(6, 1000.0), _plan(6, 3000.0)
    early = short.take(short.end_s < 999.0)
    same = long.take(long.end_s < 999.0)
    np.testing.assert_array_equal(early.peer, same.peer)
    np.testing.assert_allclose(early.start_s, same.start_s, atol=1e-7)
    np.testing.assert_allclose(early.distance_m, same.distance_m, atol=1e-5)


def test_devices_draw_their_distances_like_the_server():
    motion = from_spec(WaypointMobility(pause_max_s=0.0), 100.0).draw(60, 4000.0, 6)
    assert isinstance(motion, Motion)
    plan = plan_from_motion(motion, 100.0, 4000.0, 6, devices_meet=True)
    assert plan.distance_m.max() <= 100.0 + 1e-6
    server, between = plan.distance_m[plan.peer == SERVER], plan.distance_m[plan.peer != SERVER]
    assert between.mean() == pytest.approx(server.mean(), abs=4 * server.std() / np.sqrt(len(server)))


def test_a_distance_is_that_of_the_two_nodes_at_an_instant_of_the_contact():
    motion = from_spec(WaypointMobility(width_m=600.0, height_m=600.0), 100.0).draw(4, 1000.0, 4)
    assert isinstance(motion, Motion)
    plan = plan_from_motion(motion, 100.0, 1000.0, 4, devices_meet=True)
    for row in range(0, len(plan), 7):
        peer = 4 if plan.peer[row] == SERVER else int(plan.peer[row])
        times_s = np.linspace(plan.start_s[row], plan.end_s[row], 4001)
        apart_m = motion.positions_m(int(plan.device[row]), times_s) - motion.positions_m(peer, times_s)
        assert np.abs(np.hypot(apart_m[:, 0], apart_m[:, 1]) - plan.distance_m[row]).min() < 0.1


def test_nodes_that_never_meet_and_nodes_that_never_part():
    far = np.array([0.0, 50.0]), np.array([9000.0, 9000.0]), np.zeros(2)
    still = np.array([0.0, 50.0]), np.zeros(2), np.zeros(2)
    motion = motion_from_knots([still, still, far])
    plan = plan_from_motion(motion, 100.0, 50.0, 0, devices_meet=True)
    np.testing.assert_array_equal(plan.peer, [1])
    np.testing.assert_array_equal([plan.start_s[0], plan.end_s[0], plan.distance_m[0]], [0.0, 50.0, 0.0])
    assert len(plan_from_motion(motion, 100.0, 50.0, 0)) == 0


def test_a_motion_without_legs_has_no_contacts():
    motion = random_motion(1, nodes=3, legs=4, side_m=10.0, absent=1.0)
    assert len(plan_from_motion(motion, 100.0, 60.0, 0, devices_meet=True)) == 0


def test_a_scenario_draws_contacts_between_devices_only_when_asked():
    scenario = load("fashion-small", ["rounds=50", "fleet.devices=6"])
    assert set(draw_plan(scenario, 0).peer) == {SERVER}
    assert len(draw_plan(scenario, 0, devices_meet=True)) > 3 * len(draw_plan(scenario, 0))


def test_parts_put_together_in_blocks_make_the_same_plan(monkeypatch):
    whole = _plan(9, 2000.0)
    monkeypatch.setattr("wayfare.contacts.near._BATCH", 50)
    monkeypatch.setattr("wayfare.contacts.draw._LARGE", 200)
    _same(whole, _plan(9, 2000.0))
