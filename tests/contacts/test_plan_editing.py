import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contacts.plans import plan_of

from wayfare.contacts.plan import merge
from wayfare.errors import InputError
from wayfare.mobility import SERVER


def plan(rows, **settings):
    """Rows of (device, peer, start, end); the distance is the start."""
    ordered = sorted(rows, key=lambda row: (row[0], row[2]))
    return plan_of(*((*row, row[2]) for row in ordered), **settings)


def rows(of):
    columns = (of.device, of.peer, of.start_s, of.end_s)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_window_cuts_contacts_at_its_ends_and_becomes_time_0():
    part = plan([(0, SERVER, 0, 10), (0, SERVER, 15, 35), (1, 2, 30, 90), (2, SERVER, 40, 50)]).between(5, 40)
    assert rows(part) == [(0, SERVER, 0, 5), (0, SERVER, 10, 30), (1, 2, 25, 35)]
    assert part.duration_s == 35
    assert part.distance_m.tolist() == [0, 15, 30]


@pytest.mark.parametrize("window", [(-1, 5), (5, 5), (5, 101), (float("nan"), 5)])
def test_a_window_outside_the_plan_is_refused(window):
    with pytest.raises(InputError, match="is not inside the plan of 100 s"):
        plan([(0, SERVER, 0, 10)]).between(*window)


def test_merging_unites_contacts_of_a_pair_that_overlap_or_touch():
    one = plan([(0, SERVER, 0, 10), (1, SERVER, 0, 10), (0, 1, 0, 5)])
    other = plan([(0, SERVER, 8, 30), (0, SERVER, 30, 31), (1, SERVER, 20, 25)], duration_s=200.0)
    both = merge([one, other])
    assert rows(both) == [(0, SERVER, 0, 31), (0, 1, 0, 5), (1, SERVER, 0, 10), (1, SERVER, 20, 25)]
    assert both.duration_s == 200
    # The longest part of the united contact began at 8.
    assert both.distance_m[0] == 8


def test_plans_of_different_fleets_are_not_merged():
    with pytest.raises(InputError, match="3, 4 devices"):
        merge([plan([]), plan([], devices=4)])
    with pytest.raises(InputError, match="none devices"):
        merge([])


def test_an_empty_plan_merges():
    assert rows(merge([plan([]), plan([])])) == []
    assert rows(plan([]).repeated(250.0)) == []


def test_one_plan_after_another_joins_the_contact_at_the_seam():
    first = plan([(0, SERVER, 90, 100)])
    after = first.followed_by(plan([(0, SERVER, 0, 3), (1, SERVER, 50, 60)]))
    assert rows(after) == [(0, SERVER, 90, 103), (1, SERVER, 150, 160)]
    assert after.duration_s == 200


def test_a_plan_is_played_again_until_the_time_is_over():
    again = plan([(0, SERVER, 10, 20)]).repeated(215.0)
    assert rows(again) == [(0, SERVER, 10, 20), (0, SERVER, 110, 120), (0, SERVER, 210, 215)]
    assert again.duration_s == 215
    assert rows(plan([(0, SERVER, 10, 20)]).repeated(15.0)) == [(0, SERVER, 10, 15)]


spans = st.tuples(st.integers(0, 2), st.sampled_from([SERVER]), st.integers(0, 90), st.integers(1, 10)).map(
    lambda row: (row[0], row[1], row[2], row[2] + row[3])
)


@settings(max_examples=60, deadline=None)
@given(st.lists(spans, max_size=20), st.lists(spans, max_size=20))
def test_a_merged_plan_is_in_contact_exactly_when_one_of_its_parts_is(one, other):
    instants_s = np.arange(100) + 0.5

    def in_contact(some, device):
        mine = np.array([row[2:] for row in some if row[0] == device]).reshape(-1, 2)
        return ((mine[:, :1] <= instants_s) & (instants_s <= mine[:, 1:])).any(axis=0)

    both = merge([merge([plan(one)]), plan(other)])
    for device in range(3):
        assert (in_contact(rows(both), device) == in_contact(one, device) | in_contact(other, device)).all()
    same = (np.diff(both.device) == 0) if len(both) else np.empty(0, dtype=bool)
    assert (both.start_s[1:][same] > both.end_s[:-1][same]).all()
