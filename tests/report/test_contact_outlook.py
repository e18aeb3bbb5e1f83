import numpy as np
import pytest

import wayfare
from wayfare.contacts import ContactPlan, draw_plan, opportunities
from wayfare.contacts.speeds import SpeedPoint
from wayfare.contacts.statistics import plan_statistics
from wayfare.errors import InputError
from wayfare.learning.known import vector_sizes
from wayfare.mobility import SERVER
from wayfare.radio import gains_per_watt
from wayfare.report.contact_figures import plot_contacts, plot_speeds
from wayfare.report.contact_summary import upload_outlook


def test_the_outlook_of_the_papers_fleet_is_the_known_one():
    # Mean k/s and chance of a whole upload, sparse and dense, without pause: .27, .018 and .073 at 20 m/s.
    scenario = wayfare.load("paper-cifar10-waypoint", ["mobility.pause_max_s=0"])
    assert vector_sizes(scenario.learning)[0] == 6_568_650
    found = upload_outlook(draw_plan(scenario, 0), scenario, vector_sizes(scenario.learning)[0], 0)
    assert found.dense_bits == pytest.approx(210.2e6, rel=1e-3)
    assert found.bits_per_entry == pytest.approx(54.647, abs=1e-3)
    assert found.mean_kept_share == pytest.approx(0.27, abs=0.02)
    assert found.whole_sparse_chance == pytest.approx(0.018, abs=0.008)
    assert found.dense_chance == pytest.approx(0.073, abs=0.02)


def test_the_outlook_is_the_mean_over_opportunities_one_by_one():
    scenario = wayfare.load("fashion-small", ["rounds=50"])
    plan, s, u = draw_plan(scenario, 2), 1000, 32
    meets = opportunities(plan, scenario.round_s, scenario.rounds)
    shares = []
    for contact_s, gain in zip(meets.contact_s, gains_per_watt(meets, scenario.radio, 2), strict=True):
        capacity = contact_s * scenario.radio.bandwidth_hz * np.log2(1 + scenario.radio.max_power_watts * gain)
        shares.append(min(capacity / (s * (u + np.log2(s))), 1.0))
    assert upload_outlook(plan, scenario, s, 2).mean_kept_share == pytest.approx(np.mean(shares))


def test_a_plan_without_contacts_has_an_outlook_and_a_picture(tmp_path):
    nobody = np.empty(0)
    numbers = nobody.astype(np.int64)
    plan = ContactPlan(
        devices=2, duration_s=9.0, device=numbers, peer=numbers, start_s=nobody, end_s=nobody, distance_m=nobody
    )
    outlook = upload_outlook(plan, wayfare.load("fashion-small"), 1000, 0)
    assert (outlook.opportunities, outlook.mean_kept_share, outlook.dense_chance) == (0, None, None)
    plot_contacts(plan, plan_statistics(plan), tmp_path / "empty.png", title="nothing")
    plot_speeds([], tmp_path / "speeds.png", title="nothing")
    assert (tmp_path / "empty.png").stat().st_size > 1000


@pytest.mark.parametrize(("contact_s", "missing"), [(None, "contact"), (4.0, "time between two contacts")])
def test_speeds_without_any_time_to_draw_are_named(tmp_path, contact_s, missing):
    points = [
        SpeedPoint(model="waypoint", speed_mps=speed_mps, contacts=0, contact_s=contact_s, inter_contact_s=None)
        for speed_mps in (5.0, 20.0)
    ]
    with pytest.raises(InputError, match=f"there was no complete {missing} at 5, 20 m/s"):
        plot_speeds(points, tmp_path / "speeds.png", title="nothing")


def test_a_fleet_too_large_for_a_page_shows_its_busiest_devices(tmp_path):
    rng = np.random.default_rng(0)
    start_s = np.sort(rng.uniform(0, 9e4, 500))
    device = np.sort(rng.integers(0, 100, 500))
    plan = ContactPlan(
        devices=100,
        duration_s=1e5,
        device=device,
        peer=np.full(500, SERVER),
        start_s=start_s,
        end_s=start_s + 5.0,
        distance_m=start_s * 0,
    )
    names = [f"a-very-long-name-{n}" for n in range(100)]
    plot_contacts(plan, plan_statistics(plan), tmp_path / "large.png", title="large", names=names)
    assert (tmp_path / "large.png").stat().st_size > 1000
