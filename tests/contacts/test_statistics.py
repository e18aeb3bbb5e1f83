import numpy as np
import pytest
from scipy import stats
from tests.contacts.plans import plan_of

import wayfare
from wayfare.contacts import draw_plan
from wayfare.contacts.speeds import contact_times_by_speed, speed_models
from wayfare.contacts.statistics import exponential_fit, plan_statistics, verdict_sentence
from wayfare.errors import ScenarioError
from wayfare.mobility import SERVER


def plan(rows, **settings):
    """Contacts with the server: rows of (device, start, end)."""
    return plan_of(*((device, SERVER, start_s, end_s, 0.0) for device, start_s, end_s in rows), **settings)


def test_counts_and_times_of_a_plan_written_by_hand():
    found = plan_statistics(plan([(0, 0, 10), (0, 20, 24), (0, 60, 70), (1, 95, 100)]))
    assert (found.contacts, found.devices_without_contact) == (4, 1)
    assert found.time_in_contact_share == pytest.approx(29 / 300)
    assert found.contacts_per_device["mean"] == pytest.approx(4 / 3)
    # Contacts under way at the start and at the end are cut.
    assert found.contact.times_s.tolist() == [4, 10]
    assert found.contact.cut == 2
    assert found.inter_contact.times_s.tolist() == [10, 36]
    # After the last contact of device 0, before the first of device 1, all the time of device 2.
    assert found.inter_contact.cut == 3
    assert "Too few contacts to test" in verdict_sentence(found)
    # 271 s without contact, in which three contacts begin.
    assert found.mean_wait_s == pytest.approx(271 / 3)


def test_the_mean_wait_is_right_where_whole_times_are_the_short_ones():
    scenario = wayfare.load("paper-cifar10-exponential", ["rounds=20", "fleet.devices=2000"])
    found = plan_statistics(draw_plan(scenario, 1))
    assert found.inter_contact.mean_s < 60.0
    assert found.mean_wait_s == pytest.approx(100.0, rel=0.05)


def test_a_plan_without_contacts_has_statistics_too():
    found = plan_statistics(plan([]))
    assert (found.contacts, found.contact.mean_s, found.inter_contact.fit) == (0, None, None)
    assert found.mean_wait_s is None
    assert found.inter_contact.cut == 3
    assert "Too few" in verdict_sentence(found)


def test_overlaps_of_a_plan_written_by_hand():
    # Two of the three devices from 5 to 8, all three from 8 to 10; contacts that touch do not overlap.
    found = plan_statistics(plan([(0, 0, 10), (1, 5, 20), (1, 50, 60), (2, 8, 10), (2, 60, 70)]))
    contact_s = 10 + 15 + 10 + 2 + 10
    assert found.mean_devices_in_contact == pytest.approx(contact_s / (20 + 20))
    assert found.overlapping_contact_time_share == pytest.approx((2 * 3 + 3 * 2) / contact_s)
    alone = plan_statistics(plan([(0, 0, 10), (1, 10, 20)]))
    assert (alone.mean_devices_in_contact, alone.overlapping_contact_time_share) == (1.0, 0.0)
    nobody = plan_statistics(plan([]))
    assert (nobody.mean_devices_in_contact, nobody.overlapping_contact_time_share) == (None, None)


def union_s(spells):
    length_s, until_s = 0.0, -np.inf
    for start_s, end_s in sorted(spells):
        length_s += max(end_s - max(start_s, until_s), 0.0)
        until_s = max(until_s, end_s)
    return length_s


@pytest.mark.parametrize("seed", range(3))
def test_overlaps_are_those_of_all_pairs_of_contacts(seed):
    scenario = wayfare.load("paper-cifar10-waypoint", ["rounds=60", "fleet.devices=30"])
    drawn = draw_plan(scenario, seed, devices_meet=True)
    served = drawn.with_server()
    spells = list(zip(served.start_s.tolist(), served.end_s.tolist(), strict=True))
    shared_s = 0.0
    for own, (start_s, end_s) in enumerate(spells):
        others = ((max(a, start_s), min(b, end_s)) for other, (a, b) in enumerate(spells) if other != own)
        shared_s += union_s((a, b) for a, b in others if a < b)
    contact_s = sum(end_s - start_s for start_s, end_s in spells)
    found = plan_statistics(drawn)
    assert len(spells) > 50
    assert 0 < shared_s < contact_s
    assert found.mean_devices_in_contact == pytest.approx(contact_s / union_s(spells), rel=1e-9)
    assert found.overlapping_contact_time_share == pytest.approx(shared_s / contact_s, rel=1e-9)


@pytest.mark.parametrize("shape", [0.6, 1.0, 3.0])
def test_the_distance_is_that_of_scipy(shape):
    times_s = stats.gamma(shape, scale=7.0).rvs(500, random_state=np.random.default_rng(5))
    fit = exponential_fit(times_s)
    assert fit.mean_s == pytest.approx(times_s.mean())
    assert fit.ks_distance == pytest.approx(stats.kstest(times_s, "expon", args=(0, times_s.mean())).statistic)
    assert fit.verdict == ("holds" if shape == 1 else "roughly" if shape < 1 else "fails")


def test_exponential_samples_are_rejected_one_time_in_twenty():
    rng = np.random.default_rng(0)
    rejected = [exponential_fit(rng.exponential(3.0, 60)).rejected_at_5_percent for _ in range(2000)]
    assert np.mean(rejected) == pytest.approx(0.05, abs=0.02)


def test_the_exponential_model_holds_for_exponential_contacts_and_its_means_come_back():
    scenario = wayfare.load("paper-cifar10-exponential", ["rounds=2000"])
    found = plan_statistics(draw_plan(scenario, 1))
    assert found.contact.mean_s == pytest.approx(4.0, rel=0.05)
    assert found.inter_contact.mean_s == pytest.approx(100.0, rel=0.05)
    assert found.time_in_contact_share == pytest.approx(4 / 104, rel=0.05)
    assert verdict_sentence(found).startswith("The exponential model of the theory holds (")


def test_contact_times_of_the_random_waypoint_are_not_exponential():
    found = plan_statistics(draw_plan(wayfare.load("fashion-small"), 0))
    assert "does not hold for contact times" in verdict_sentence(found)
    assert found.inter_contact.fit is not None
    assert found.inter_contact.fit.verdict == "holds"


def test_times_fall_like_one_over_speed_for_every_model():
    scenario = wayfare.load("fashion-small", ["fleet.devices=8"])
    points = list(contact_times_by_speed(scenario, speeds_mps=(5.0, 20.0), seed=0))
    assert {point.model for point in points} == set(speed_models())
    assert {"waypoint", "walk", "direction", "gauss-markov", "manhattan"} <= set(speed_models())
    for slow, fast in zip(points[::2], points[1::2], strict=True):
        assert slow.model == fast.model
        assert slow.contact_m / fast.contact_m == pytest.approx(1.0, abs=0.25), slow.model
        assert slow.inter_contact_m / fast.inter_contact_m == pytest.approx(1.0, abs=0.4), slow.model


def test_the_random_waypoint_of_the_paper_has_its_known_constants():
    scenario = wayfare.load("fashion-small", ["mobility.pause_max_s=0", "fleet.devices=20"])
    [point] = contact_times_by_speed(scenario, speeds_mps=(20.0,), models=("waypoint",), seed=1)
    assert point.contact_m == pytest.approx(132, rel=0.08)
    assert point.inter_contact_m == pytest.approx(3000, rel=0.08)


def test_a_model_without_speed_and_a_speed_of_0_are_refused():
    scenario = wayfare.load("fashion-small")
    with pytest.raises(ScenarioError, match="model = 'exponential': has no speed"):
        list(contact_times_by_speed(scenario, models=("exponential",), seed=0))
    with pytest.raises(ScenarioError, match="must be above 0"):
        list(contact_times_by_speed(scenario, speeds_mps=(0.0,), seed=0))
