"""Schemes that send whole models and start no upload that cannot finish."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import SMALL
from tests.simulator.test_simulator import Notes

import wayfare
from wayfare.device import Checks
from wayfare.methods import Encounter, make_method
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.simulator import ContactEvent, Simulation
from wayfare.world import World, draw_world

DENSE = ["afl", "fedasync", "fedasync:hinge", "fedmobile", "fedmobile:billed"]
RULES = ["", ":paced", ":unlimited"]
LINK = Link(bandwidth_hz=15e3, max_power_watts=0.2, parameters=84_618, bits_per_entry=48.37, dense_bits=84_618 * 32.0)


def encounters(count: int) -> list[Encounter]:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(count):
        contact_s, budget_joules = float(rng.exponential(8.0)), float(rng.uniform(1, 30))
        found.append(
            Encounter(
                contact_s=contact_s,
                gain_per_watt=float(10 ** rng.uniform(2, 8)),
                staleness_rounds=int(rng.integers(1, 60)),
                update_norm_sq=1.0,
                backlog_joules=0.0,
                spent_joules=budget_joules * float(rng.choice([0.0, rng.random(), 0.999, 1.0])),
                budget_joules=budget_joules,
                round=int(rng.integers(1, 1000)),
                rounds=1000,
                met_s=contact_s + float(rng.exponential(200)),
            )
        )
    return found


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", DENSE)
def test_an_upload_that_cannot_finish_is_not_started(name: str, rule: str) -> None:
    plain, fitting = (make_method(f"{name}{choice}{rule}", Scenario()) for choice in ("", ":fitting"))
    finished = skipped = 0
    for encounter in encounters(400):
        upload, without = fitting.upload.decide(encounter, LINK), plain.upload.decide(encounter, LINK)
        if upload.completes:
            assert upload == without
            assert upload.airtime_s <= encounter.contact_s * (1 + 1e-9)
        else:
            assert not without.completes
            assert upload.energy_joules == upload.power_watts == upload.bits == upload.entries == 0
            skipped += without.energy_joules > 0
        finished += upload.completes
    assert finished > 20
    assert skipped > 20


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", DENSE)
def test_with_exact_forecasts_no_upload_fails(name: str, rule: str) -> None:
    world = draw_world(wayfare.load("fashion-small", [*SMALL, "rounds=80", "fleet.energy_total_joules=10"]), 0)
    failed = {}
    for choice in ("", ":fitting"):
        notes = Notes()
        scheme = make_method(f"{name}{choice}{rule}", world.scenario)
        Simulation(world, scheme, notes, checks=Checks(paranoid="fedasync" not in name)).run()
        failed[choice] = [event for event in notes.contacts if not event.completed and event.energy_joules > 0]
        assert any(event.completed and event.entries for event in notes.contacts)
    assert failed[""]
    assert not failed[":fitting"]


def test_a_wrong_forecast_makes_a_fitting_scheme_fail_and_no_other_decide_otherwise() -> None:
    exact, wrong = (
        draw_world(wayfare.load("fashion-small", [*SMALL, "rounds=80", f"contacts.forecast_error={error}"]), 0)
        for error in (0.0, 0.5)
    )

    def contacts(world: World, name: str) -> list[ContactEvent]:
        notes = Notes()
        Simulation(world, make_method(name, world.scenario), notes).run()
        return notes.contacts

    assert contacts(exact, "afl:unlimited") == contacts(wrong, "afl:unlimited")
    misjudged = contacts(wrong, "afl:fitting:unlimited")
    assert any(not event.completed and event.energy_joules > 0 for event in misjudged)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("afl:fitting", "afl:fitting"),
        ("afl:paced:fitting", "afl:fitting:paced"),
        ("fedasync:fitting:hinge:paced", "fedasync:hinge:fitting:paced"),
        ("fedmobile:fitting:billed", "fedmobile:billed:fitting"),
        ("afl:greedy", "afl"),
    ],
)
def test_choices_come_in_any_order_and_a_scheme_has_one_name(given: str, name: str) -> None:
    assert make_method(given, Scenario()).name == name
