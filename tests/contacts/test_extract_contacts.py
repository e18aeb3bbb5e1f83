from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfare.contacts.extract import contact_intervals, within_range
from wayfare.mobility import Motion
from wayfare.mobility.base import motion_from_knots


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
