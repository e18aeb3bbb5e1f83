"""The planner: rehearsals against real runs, closed forms against drawn contacts, warnings where they are due."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import wayfare
from wayfare.codec import make_link
from wayfare.contacts import draw_plan, opportunities
from wayfare.contacts.source import plan_from_source
from wayfare.control.budgets import draw_budgets
from wayfare.errors import RunFolderError, ScenarioError
from wayfare.methods import make_method
from wayfare.radio import gains_per_watt
from wayfare.records import summarise_run
from wayfare.scenario import Scenario
from wayfare.theory.ask import plan
from wayfare.theory.norms import NormModel, captured_share, norms_of_run, typical_norms
from wayfare.theory.planner import Forecast, forecast
from wayfare.theory.rehearsal import Stage, energies_by_weight, rehearse
from wayfare.theory.warnings import warnings_of

MLP = 84_618
RESNET = 6_568_650


def stage(scenario: Scenario, parameters: int, norms: NormModel, seed: int = 0) -> Stage:
    meets = opportunities(draw_plan(scenario, seed), scenario.round_s, scenario.rounds)
    return Stage(
        meets=meets,
        gains_per_watt=gains_per_watt(meets, scenario.radio, seed),
        budgets_joules=draw_budgets(scenario.fleet, seed),
        link=make_link(scenario, parameters),
        rounds=scenario.rounds,
        norms=norms,
        seed=seed,
    )


def planned(*overrides: str, source: str = "fashion-small", parameters: int = MLP, scheme: str = "mads") -> Forecast:
    found = plan_from_source(source, seed=0, overrides=overrides)
    norms = typical_norms("mlp" if parameters == MLP else "resnet9")
    return forecast(found, parameters=parameters, statistics=0, norms=norms, scheme=scheme, seed=0)


def texts(found: Forecast) -> list[str]:
    return [warning.text for warning in warnings_of(found)]


@pytest.mark.parametrize("weight", ["5e-3", "auto"])
def test_a_plan_agrees_with_a_run_of_another_seed_within_a_tenth(weight: str, tmp_path: Path) -> None:
    overrides = ["rounds=500", "fleet.energy_total_joules=250", f"control.weight={weight}"]
    run = summarise_run(wayfare.run(wayfare.load("fashion-small", overrides), "mads", seed=3, out=tmp_path))
    played = planned(*overrides).rehearsed
    assert played is not None
    assert played.kept_fraction == pytest.approx(run.kept_fraction, rel=0.1)
    assert played.staleness_rounds == pytest.approx(run.staleness_rounds, rel=0.1)
    assert played.energy_joules == pytest.approx(run.energy_joules, rel=0.1)


@pytest.mark.parametrize("scheme", ["optimal", "afl-spar", "afl-spar:paced", "afl"])
def test_schemes_that_do_not_look_at_norms_are_rehearsed_exactly(scheme: str, small: Scenario, tmp_path: Path) -> None:
    record = wayfare.run(small, scheme, seed=1, out=tmp_path)
    played = rehearse(stage(small, record.parameters, typical_norms("mlp"), seed=1), make_method(scheme, small))
    assert played.energy_joules.sum() == pytest.approx(record.contacts["energy_joules"].sum(), rel=1e-9)
    assert played.kept_fraction.mean() * record.parameters == pytest.approx(record.contacts["entries"].mean(), rel=1e-9)
    assert played.staleness_rounds.mean() == pytest.approx(record.contacts["staleness_rounds"].mean(), rel=1e-9)


def test_the_papers_full_power_run_is_rehearsed_to_the_joule() -> None:
    """3,255 J, k/s .282, 120 uploads, staleness 16.5: CIFAR-10 with ResNet-9 on a GPU (docs/results/workloads.md)."""
    played = planned("rounds=2000", source="paper-cifar10-waypoint", parameters=RESNET, scheme="optimal").rehearsed
    assert played is not None
    assert played.energy_joules == pytest.approx(3255, abs=1.0)
    assert played.kept_fraction == pytest.approx(0.282, abs=0.001)
    assert played.uploads_per_device == pytest.approx(120, abs=0.5)
    assert played.staleness_rounds == pytest.approx(16.5, abs=0.1)


def test_many_weights_at_once_equal_one_after_another() -> None:
    scenario = wayfare.load("fashion-small", ["rounds=200", "fleet.energy_total_joules=100"])
    ready = stage(scenario, MLP, typical_norms("mlp"))
    weights = np.array([1e-4, 5e-3, 1.0])
    together = energies_by_weight(ready, weights, "corrected")
    for weight, energies in zip(weights, together, strict=True):
        weighted = wayfare.load("fashion-small", [f"control.weight={weight}"])
        alone = rehearse(ready, make_method("mads", weighted))
        assert energies == pytest.approx(np.bincount(alone.device, alone.energy_joules, len(energies)), rel=1e-9)


def test_the_recommended_number_spends_the_budget() -> None:
    found = planned()
    assert found.fixed_weight is not None
    assert found.fixed_weight.weight is not None
    again = planned(f"control.weight={found.fixed_weight.weight}")
    assert again.rehearsed is not None
    assert again.rehearsed.energy_joules == pytest.approx(found.budget_joules, rel=0.02)


def test_the_weight_that_finds_itself_is_rehearsed_beside_the_scenarios_own() -> None:
    found = planned()
    assert found.rehearsed is not None
    assert found.recommended is not None
    assert found.rehearsed.weight == 5e-3
    assert found.recommended.weight == "auto"
    assert 0.92 <= found.recommended.energy_joules / found.recommended.available_joules <= 1.0


def test_closed_forms_agree_with_exponential_contacts() -> None:
    """Where the theory's assumption holds, its numbers are those of the drawn plan."""
    found = planned(source="paper-cifar10-exponential", parameters=RESNET, scheme="optimal")
    assert found.theory is not None
    assert found.full_power is not None
    assert found.rehearsed is not None
    assert found.theory.kept_share == pytest.approx(found.full_power.kept_share, rel=0.03)
    assert found.theory.staleness_rounds == pytest.approx(found.rehearsed.staleness_rounds, rel=0.03)
    assert not any("exponential" in warning for warning in texts(found))


def test_the_best_speed_of_the_papers_setting_lies_where_its_experiments_have_it() -> None:
    found = planned(source="paper-cifar10-waypoint", parameters=RESNET, scheme="optimal")
    assert found.best_speed is not None
    assert 6 <= found.best_speed.speed_mps <= 30
    assert found.best_speed.factor <= found.best_speed.own_factor


def test_a_large_fleet_is_rehearsed_in_part_and_its_energy_scaled() -> None:
    found = planned("rounds=300", "fleet.devices=600", "fleet.energy_total_joules=1e4", scheme="optimal")
    assert found.rehearsed is not None
    assert found.full_power is not None
    assert found.rehearsed.devices < 600
    assert found.rehearsed.energy_joules == pytest.approx(found.full_power.energy_joules, rel=0.04)


def test_the_downlink_share_is_that_of_contacts_counted_one_by_one() -> None:
    powers_watts = (0.05, 0.2, 1.0, 5.0)
    found = plan("paper-cifar10-waypoint", ["rounds=500"], server_power_watts=powers_watts)
    meets = opportunities(draw_plan(found.scenario, 0), 10.0, 500)
    gains = gains_per_watt(meets, found.scenario.radio, 0)
    # 6,568,650 parameters, 2 x 2,240 statistics of batch normalisation, 32 bits each.
    down_bits = (RESNET + 4480) * 32
    for power_watts, down in zip(powers_watts, found.downlinks, strict=True):
        fits = 0
        for contact_s, gain in zip(meets.contact_s, gains, strict=True):
            fits += contact_s * 1e6 * math.log2(1 + power_watts * gain) >= down_bits
        assert down.server_power_watts == power_watts
        assert 0 < fits < len(meets)
        assert down.downlink_whole_model_share == fits / len(meets)


@pytest.mark.parametrize("power_watts", [0.0, -1.0, math.nan, math.inf])
def test_a_server_power_without_a_rate_is_rejected(power_watts: float) -> None:
    with pytest.raises(ScenarioError, match=r"server_power_watts = .*: must be above 0"):
        plan(server_power_watts=[1.0, power_watts])


class TestWarnings:
    def test_contact_times_that_are_not_exponential(self) -> None:
        assert any("does not hold for contact times" in warning for warning in texts(planned()))

    def test_a_weight_that_exceeds_the_budget_or_leaves_it(self) -> None:
        assert any("exceeds the budget" in warning for warning in texts(planned("control.weight=1.0")))
        assert any("unused" in warning for warning in texts(planned("control.weight=1e-7")))
        automatic = planned("control.weight=auto")
        assert not any("budget by" in warning or "unused" in warning for warning in texts(automatic))

    def test_more_energy_than_contacts_can_use(self) -> None:
        assert any("energy is not a limit" in warning for warning in texts(planned("fleet.energy_total_joules=1e5")))

        # Full power is another matter.
        (energy,) = [text for text in texts(planned("mobility.speed_mps=5")) if "energy is not a limit" in text]
        assert re.search(r"At full power \d+ of 20 devices would run out", energy)

    def test_a_fleet_with_energy_to_spare_may_have_devices_without(self) -> None:
        found = planned("rounds=300")
        assert found.full_power is not None
        assert found.recommended is not None
        # Devices cannot lend each other energy: what they have or can use is less than what all contacts can use.
        assert found.recommended.available_joules < 0.95 * found.full_power.usable_joules
        assert found.full_power.usable_joules < 0.95 * found.budget_joules
        (energy,) = [text for text in texts(found) if "Contacts can use" in text]
        short = found.full_power.devices_short
        assert 0 < short < 20
        assert f"But {short} of 20 devices have contacts that can use more than their budget" in energy

    def test_a_speed_far_from_the_best(self) -> None:
        assert any("times its minimum" in warning for warning in texts(planned("mobility.speed_mps=1.0")))

    def test_nobody_meets_the_server(self) -> None:
        lonely = planned("rounds=1", "fleet.devices=1", "mobility.width_m=1e6", "mobility.height_m=1e6")
        assert lonely.rehearsed is None
        assert texts(lonely) == ["No device ever meets the server, so nothing can be learned together."]

    def test_norms_that_are_a_guess(self) -> None:
        found = plan_from_source("fashion-small", seed=0)
        guessed = forecast(found, parameters=6_000_000, statistics=0, norms=typical_norms("mine"), seed=0)
        assert any("a guess" in warning for warning in texts(guessed))


def test_norms_are_fitted_to_a_run(tmp_path: Path, small: Scenario) -> None:
    record = wayfare.run(small, "mads", seed=0, out=tmp_path)
    fitted = norms_of_run(record)
    contacts = record.contacts
    typical = fitted.next_norm_sq(0.0, np.median(contacts["staleness_rounds"]), 1.0)
    assert np.median(contacts["update_norm_sq"]) == pytest.approx(float(typical), rel=1.0)
    with pytest.raises(RunFolderError, match="two contacts"):
        norms_of_run(replace(record, contacts={name: column[:1] for name, column in contacts.items()}))


def test_captured_share_is_that_of_exponential_magnitudes() -> None:
    rng = np.random.default_rng(0)
    magnitudes = -np.sort(-rng.exponential(size=200_000))
    energy = np.cumsum(magnitudes**2) / np.sum(magnitudes**2)
    for fraction in (0.01, 0.1, 0.4, 0.9):
        assert captured_share(fraction) == pytest.approx(energy[int(fraction * 200_000) - 1], rel=0.02)
    assert captured_share(0.0) == pytest.approx(0.0, abs=1e-100)
    assert captured_share(1.0) == 1.0


def test_a_plan_says_that_it_takes_forecasts_as_right() -> None:
    settings = ("rounds=100", "learning.hidden=[8]")
    assert not any("forecast_error" in line for line in texts(planned(*settings)))
    lines = texts(planned(*settings, "contacts.forecast_error=0.5"))
    assert any("contacts.forecast_error = 0.5" in line for line in lines)
