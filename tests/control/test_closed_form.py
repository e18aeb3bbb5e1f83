"""The closed forms against brute force and a numerical optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

from wayfare.control.closed_form import full_update_power_watts, kept_entries, objective, optimal_power_watts


def random_contacts(count: int) -> dict[str, Any]:
    """Contacts over many orders of magnitude; some without a backlog, some very short."""
    rng = np.random.default_rng(11)
    contacts: dict[str, Any] = {
        "contact_s": rng.exponential(4.0, count),
        "gain_per_watt": 10 ** rng.uniform(0, 9, count),
        "staleness_rounds": rng.integers(1, 200, count),
        "update_norm_sq": 10 ** rng.uniform(-2, 4, count),
        "backlog_joules": np.where(rng.random(count) < 0.1, 0.0, 10 ** rng.uniform(-4, 3, count)),
        "weight": 10 ** rng.uniform(-6, 0, count),
        "bandwidth_hz": 10 ** rng.uniform(4, 7, count),
        "parameters": rng.integers(10_000, 10_000_000, count),
    }
    contacts["bits_per_entry"] = 32 + np.log2(contacts["parameters"])
    return contacts


def numerical_optimum(contact: dict[str, Any], cap: float) -> float:
    """The zero of the derivative of P3 on [0, cap], or the end where its sign does not change."""

    def slope(power: float) -> float:
        value = 3 * contact["weight"] * contact["staleness_rounds"] * contact["update_norm_sq"] * contact["contact_s"]
        rate = contact["bandwidth_hz"] * contact["gain_per_watt"] / (1 + power * contact["gain_per_watt"]) / np.log(2)
        gain = value * rate / (contact["parameters"] * contact["bits_per_entry"])
        return float(contact["contact_s"] * contact["backlog_joules"] - gain)

    if slope(0.0) >= 0:
        return 0.0
    if slope(cap) <= 0:
        return cap
    return float(brentq(slope, 0.0, cap, xtol=1e-300, rtol=1e-14, maxiter=1000))


def test_closed_form_equals_a_numerical_optimiser_on_two_thousand_random_contacts() -> None:
    contacts = random_contacts(2000)
    radio = ("contact_s", "gain_per_watt", "bandwidth_hz", "parameters", "bits_per_entry")
    caps = full_update_power_watts(**{key: contacts[key] for key in radio}, max_power_watts=0.2)
    powers = optimal_power_watts(**contacts, max_power_watts=0.2)
    expected = [
        numerical_optimum({key: values[row] for key, values in contacts.items()}, caps[row]) for row in range(2000)
    ]
    np.testing.assert_allclose(powers, expected, rtol=1e-9, atol=1e-12)
    # All three kinds of answer occur: nothing, the cap, and something between.
    assert (powers == 0).sum() > 100
    assert (powers == caps).sum() > 100
    assert ((powers > 0) & (powers < caps)).sum() > 100


@pytest.mark.parametrize("backlog_joules", [0.0, 1e-3, 1.0, 50.0, 1e9])
def test_closed_form_power_beats_every_power_on_a_grid(backlog_joules: float) -> None:
    contacts = random_contacts(200) | {"backlog_joules": backlog_joules}
    radio = ("contact_s", "gain_per_watt", "bandwidth_hz", "parameters", "bits_per_entry")
    caps = full_update_power_watts(**{key: contacts[key] for key in radio}, max_power_watts=0.2)
    best = objective(optimal_power_watts(**contacts, max_power_watts=0.2), **contacts)
    for share in np.linspace(0, 1, 401):
        assert np.all(best <= objective(share * caps, **contacts) * (1 + np.sign(best) * 1e-12) + 1e-12)


def test_printed_form_is_the_correct_form_with_the_weight_times_ln_2() -> None:
    contacts = random_contacts(500)
    printed = optimal_power_watts(**contacts, max_power_watts=0.2, variant="printed")
    scaled = contacts | {"weight": contacts["weight"] * np.log(2)}
    np.testing.assert_allclose(printed, optimal_power_watts(**scaled, max_power_watts=0.2), rtol=1e-12, atol=1e-15)


def test_scalars_and_arrays_give_the_same_powers() -> None:
    contacts = random_contacts(50)
    powers = optimal_power_watts(**contacts, max_power_watts=0.2)
    for row in range(50):
        one = optimal_power_watts(**{key: values[row] for key, values in contacts.items()}, max_power_watts=0.2)
        assert float(one) == powers[row]


RADIO = {"bandwidth_hz": 1e6, "parameters": 6_568_650, "bits_per_entry": 54.647}


def test_the_shortest_contacts_do_not_overflow() -> None:
    for contact_s in (0.0, 1e-300, 1e-9, 0.01, 0.34, 0.36):
        cap = full_update_power_watts(contact_s=contact_s, gain_per_watt=1e5, max_power_watts=0.2, **RADIO)
        assert float(cap) == 0.2


def test_a_contact_long_enough_for_everything_sends_exactly_everything() -> None:
    rng = np.random.default_rng(5)
    for contact_s in rng.uniform(30, 3000, 300):
        where = {"contact_s": contact_s, "gain_per_watt": 10 ** rng.uniform(2, 8)}
        cap = full_update_power_watts(**where, max_power_watts=1e300, **RADIO)
        assert int(kept_entries(cap, **where, **RADIO)) == RADIO["parameters"]


@pytest.mark.parametrize(
    "nothing", [{"contact_s": 0.0}, {"weight": 0.0}, {"update_norm_sq": 0.0}, {"gain_per_watt": 0.0}]
)
def test_nothing_to_gain_means_no_power(nothing: dict[str, float]) -> None:
    contact = {"contact_s": 4.0, "gain_per_watt": 1e5, "staleness_rounds": 10, "update_norm_sq": 1e3, "weight": 1e-3}
    for backlog_joules in (0.0, 5.0):
        power = optimal_power_watts(**(contact | nothing), backlog_joules=backlog_joules, max_power_watts=0.2, **RADIO)
        assert float(power) == 0.0
    assert int(kept_entries(0.0, contact_s=4.0, gain_per_watt=1e5, **RADIO)) == 0


def test_weak_signals_and_short_contacts_get_power_too() -> None:
    weak = {"contact_s": 4.0, "gain_per_watt": 0.5, "staleness_rounds": 10, "update_norm_sq": 1e3, "weight": 1e-3}
    power = optimal_power_watts(**weak, backlog_joules=0.0, max_power_watts=0.2, **RADIO)
    assert float(power) == 0.2
    # 100 bits in a tenth of a second of 1 kHz take a signal of 1 to 1.
    short = {"contact_s": 0.1, "gain_per_watt": 10.0, "bandwidth_hz": 1e3, "parameters": 10, "bits_per_entry": 10.0}
    assert float(full_update_power_watts(**short, max_power_watts=0.2)) == pytest.approx(0.1)
