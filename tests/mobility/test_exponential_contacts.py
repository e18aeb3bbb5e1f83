from __future__ import annotations

import numpy as np
import pytest

from wayfare.contacts import draw_plan
from wayfare.errors import ScenarioError
from wayfare.mobility import SERVER, Meetings
from wayfare.mobility.exponential import Exponential
from wayfare.scenario import load
from wayfare.scenario.mobility import ExponentialMobility


def _draw(devices: int, duration_s: float, seed: int = 0, **means: object) -> Meetings:
    return Exponential(ExponentialMobility(**means)).draw(devices, duration_s, seed)


@pytest.mark.parametrize(("c", "gap"), [(4.0, 100.0), (50.0, 20.0), (1.0, 1.0)])
def test_counts_and_lengths_are_those_of_the_stationary_renewal_process(c, gap):
    """E[contacts] = (T + c)/(c + g), Var ~ T (c^2 + g^2)/(c + g)^3, share of time in contact = c/(c + g)."""
    devices, duration_s = 300, 400 * (c + gap)
    meetings = _draw(devices, duration_s, contact_s=c, inter_contact_s=gap)
    mean_count = (duration_s + c) / (c + gap)
    deviation = np.sqrt(duration_s * (c**2 + gap**2) / (c + gap) ** 3)
    counts = np.bincount(meetings.device, minlength=devices)
    assert counts.mean() == pytest.approx(mean_count, abs=4 * deviation / np.sqrt(devices))
    assert counts.std() == pytest.approx(deviation, rel=0.2)
    whole = meetings.end_s < duration_s
    lengths_s = (meetings.end_s - meetings.start_s)[whole]
    assert lengths_s.mean() == pytest.approx(c, rel=4 / np.sqrt(len(lengths_s)))
    share = (meetings.end_s - meetings.start_s).sum() / (devices * duration_s)
    # Var of the time in contact of one device over T: 2 T (c g)^2 / (c + g)^3.
    spread = np.sqrt(2 * (c * gap) ** 2 / (c + gap) ** 3 / duration_s / devices)
    assert share == pytest.approx(c / (c + gap), abs=4 * spread)


def test_gaps_between_contacts_are_exponential_with_their_mean():
    meetings = _draw(200, 40_000.0, contact_s=4.0, inter_contact_s=100.0)
    same = meetings.device[1:] == meetings.device[:-1]
    gaps_s = (meetings.start_s[1:] - meetings.end_s[:-1])[same]
    assert gaps_s.mean() == pytest.approx(100.0, rel=4 / np.sqrt(len(gaps_s)))
    assert np.mean(gaps_s > 100.0) == pytest.approx(np.exp(-1), abs=4 * np.sqrt(0.25 / len(gaps_s)))


def test_devices_are_in_contact_at_time_0_as_often_as_at_any_time():
    meetings = _draw(4000, 10.0, contact_s=30.0, inter_contact_s=70.0)
    assert np.mean(np.isin(np.arange(4000), meetings.device[meetings.start_s == 0.0])) == pytest.approx(0.3, abs=0.03)


def test_every_device_may_have_means_of_its_own():
    contact_s, gap_s = (1.0, 4.0, 16.0), (400.0, 100.0, 30.0)
    meetings = _draw(3, 1_000_000.0, contact_s=contact_s, inter_contact_s=gap_s)
    for device in range(3):
        rows = meetings.device == device
        lengths_s = (meetings.end_s - meetings.start_s)[rows]
        assert lengths_s.mean() == pytest.approx(contact_s[device], rel=4 / np.sqrt(rows.sum()))
        assert rows.sum() == pytest.approx(1_000_000.0 / (contact_s[device] + gap_s[device]), rel=0.07)


def test_a_list_with_equal_means_draws_what_the_number_draws():
    one, listed = _draw(3, 5000.0, contact_s=4.0), _draw(3, 5000.0, contact_s=(4.0, 4.0, 4.0))
    np.testing.assert_array_equal(one.start_s, listed.start_s)


def test_a_longer_run_begins_with_the_contacts_of_a_shorter_one():
    short, long = _draw(3, 30_000.0), _draw(3, 90_000.0)
    for device in range(3):
        few, many = short.start_s[short.device == device], long.start_s[long.device == device]
        np.testing.assert_array_equal(few, many[: len(few)])


def test_contacts_depend_on_the_seed_and_not_on_the_fleet():
    small, large, other = _draw(2, 9000.0), _draw(5, 9000.0), _draw(2, 9000.0, seed=1)
    np.testing.assert_array_equal(small.start_s, large.start_s[large.device < 2])
    assert not np.array_equal(small.start_s[:5], other.start_s[:5])
    assert set(small.peer) == {SERVER}


@pytest.mark.parametrize("field", ["contact_s", "inter_contact_s"])
def test_a_list_of_the_wrong_length_names_field_value_and_rule(field):
    scenario = load("paper-cifar10-exponential", [f"mobility.{field}=[3, 5]", "fleet.devices=3"])
    with pytest.raises(ScenarioError) as caught:
        draw_plan(scenario, 0)
    assert str(caught.value) == f"mobility.{field} = [3.0, 5.0]: must have one entry for each of the 3 devices, not 2"


@pytest.mark.parametrize("value", ["0", "-1", "[]", "[4, 0]", "[4, -1]", "true", "long", '["a"]', "[[4]]"])
def test_means_that_are_no_positive_numbers_are_refused(value):
    with pytest.raises(ScenarioError, match=r"^mobility\.contact_s = .*: must be a number above 0, or a list"):
        load("paper-cifar10-exponential", [f"mobility.contact_s={value}"])
