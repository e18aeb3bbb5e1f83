"""Fleets that are rehearsed: many weights at a time against one alone, and what is said of a fleet."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import wayfare
from wayfare.contacts import Opportunities
from wayfare.contacts.source import SourcedPlan, plan_from_source
from wayfare.methods import make_method
from wayfare.radio import Link
from wayfare.theory import planner
from wayfare.theory.norms import NormModel
from wayfare.theory.planner import forecast
from wayfare.theory.rehearsal import Rehearsal, Stage, energies_by_weight, rehearse
from wayfare.theory.staleness import staleness_moments

LINK = Link(
    bandwidth_hz=1e3, max_power_watts=0.2, parameters=50, bits_per_entry=40.0, dense_bits=1700.0, statistics_bits=100.0
)
ROUNDS = 60


def fleet(seed: int, devices: int = 4) -> Stage:
    """Devices of which the second never meets the server, and the others often or now and then."""
    rng = np.random.default_rng(seed)
    shares = [0.5, 0.0, 0.15, 0.3]
    rows = sorted((r, n) for n in range(devices) for r in range(1, ROUNDS + 1) if rng.random() < shares[n])
    round_, device = np.array(rows).T
    return Stage(
        meets=Opportunities(
            round=round_,
            device=device,
            contact_s=rng.exponential(0.5, len(rows)),
            distance_m=np.ones(len(rows)),
        ),
        gains_per_watt=rng.exponential(10.0, len(rows)),
        budgets_joules=np.array([0.5, 0.3, 0.05, 0.9])[:devices],
        link=LINK,
        rounds=ROUNDS,
        norms=NormModel(step_norm_sq=2.0, growth=0.7, log_spread=0.4),
        seed=seed,
    )


@pytest.mark.parametrize("variant", ["corrected", "printed"])
@pytest.mark.parametrize("seed", [0, 1])
def test_many_weights_at_a_time_are_each_weight_alone(seed: int, variant: str) -> None:
    stage, weights = fleet(seed), np.array([1e-4, 1e-3, 1e-2, 1.0])
    found = energies_by_weight(stage, weights, variant)  # type: ignore[arg-type]
    assert found.shape == (4, 4)
    assert not found[:, 1].any()
    assert len(np.unique(found[:, 0])) == 4
    for weight, energy_joules in zip(weights, found, strict=True):
        scenario = wayfare.load("fashion-small", [f"control.weight={weight}", f"control.variant={variant}"])
        played = rehearse(stage, make_method("mads", scenario))
        alone = np.bincount(played.device, played.energy_joules, 4)
        np.testing.assert_allclose(energy_joules, alone, rtol=1e-9, err_msg=str(weight))


def test_a_fleet_without_contacts_spends_nothing() -> None:
    stage = fleet(0)
    nobody = replace(stage.meets, **{name: np.zeros(0, int) for name in ("round", "device", "contact_s", "distance_m")})
    empty = replace(stage, meets=nobody, gains_per_watt=np.zeros(0))
    assert energies_by_weight(empty, np.array([1.0, 2.0]), "corrected").tolist() == [[0.0] * 4] * 2


def test_a_fixed_weight_is_found_up_to_the_ends_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, stage = wayfare.load("fashion-small"), fleet(0)
    monkeypatch.setattr(planner, "_WEIGHTS", np.array([1.0, 4.0, 16.0]))
    monkeypatch.setattr(planner, "energies_by_weight", lambda *_: np.array([[1.0, 0.0], [2.0, 1.0], [2.0, 3.0]]))

    def weight(budget_joules: float) -> float | None:
        budgets_joules = np.array([budget_joules / 2, 0.0, budget_joules / 2, 0.0])
        return planner._fixed_weight(scenario, replace(stage, budgets_joules=budgets_joules)).weight

    assert [weight(1.0), weight(3.0), weight(5.0)] == pytest.approx([1.0, 4.0, 16.0])
    # Halfway between two energies lies the geometric mean of their weights.
    assert weight(4.0) == pytest.approx(8.0)
    assert (weight(0.99), weight(5.01)) == (None, None)


@pytest.fixture(scope="module")
def found() -> SourcedPlan:
    small = ["rounds=60", "fleet.devices=3", "mobility.width_m=300", "mobility.height_m=300"]
    return plan_from_source("fashion-small", seed=0, overrides=small, range_m=None)


def test_closed_forms_of_a_plan_are_those_of_its_mean_times(found: SourcedPlan) -> None:
    norms = NormModel(step_norm_sq=2.0)
    seen = forecast(found, parameters=50_000, statistics=0, norms=norms, scheme="optimal", seed=0)
    assert seen.theory is not None
    moments = staleness_moments(
        seen.statistics.contact.mean_s, seen.statistics.mean_wait_s, found.scenario.round_s, "start"
    )
    assert seen.theory.contacts_per_device == pytest.approx(60 * float(moments.contact_round_share))
    assert seen.theory.staleness_rounds == pytest.approx(float(moments.at_contact_mean))


@pytest.mark.parametrize(
    ("scheme", "weight", "same"), [("mads", "auto", True), ("mads", "0.01", False), ("optimal", "auto", False)]
)
def test_mads_that_finds_its_weight_is_rehearsed_once(
    scheme: str, weight: str, same: bool, found: SourcedPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = found.scenario.control.model_copy(update={"weight": weight if weight == "auto" else float(weight)})
    plan = replace(found, scenario=found.scenario.model_copy(update={"control": control}))
    names: list[tuple[str, object]] = []

    def noted(scenario: wayfare.Scenario, stage: Stage, name: str) -> str:
        names.append((name, scenario.control.weight))
        return f"{name} {scenario.control.weight}"

    monkeypatch.setattr(planner, "_rehearsed", noted)
    seen = forecast(plan, parameters=50, statistics=0, norms=NormModel(step_norm_sq=1.0), scheme=scheme, seed=0)
    assert seen.recommended == "mads auto"  # type: ignore[comparison-overlap]
    assert len(names) == (1 if same else 2)
    assert names[0] == (scheme, control.weight)


def test_an_upload_counts_when_it_completes_and_brings_something(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, stage = wayfare.load("fashion-small"), fleet(0)

    def told(*rows: tuple[float, ...]) -> planner.Rehearsed:
        device, *others = np.array(rows).reshape(-1, 5).T
        monkeypatch.setattr(planner, "rehearse", lambda *_, **__: Rehearsal(device.astype(int), *others))
        return planner._rehearsed(scenario, stage, "optimal")

    # Complete and not empty, complete and empty, cut short, and cut short without an entry.
    played = told((0, 0.5, 3, 0.1, 1), (0, 0.0, 5, 0.2, 1), (2, 0.25, 1, 0.3, 0), (2, 0.0, 3, 0.4, 0))
    assert (played.uploads_per_device, played.devices) == (0.25, 4)
    assert (played.kept_fraction, played.staleness_rounds) == (0.1875, 3.0)
    assert played.energy_joules == pytest.approx(1.0)
    one = told((0, 0.5, 3, 0.1, 1))
    assert (one.kept_fraction, one.staleness_rounds) == (0.5, 3.0)
    none = told()
    assert (none.kept_fraction, none.staleness_rounds, none.uploads_per_device, none.energy_joules) == (0, 0, 0, 0)


def test_contacts_too_short_for_statistics_keep_nothing() -> None:
    stage = fleet(0)
    short = replace(stage, meets=replace(stage.meets, contact_s=np.full(len(stage.meets), 1e-6)))
    assert planner._full_power(short).kept_share == 0.0
    assert planner._full_power(short).devices_short == 0
    usable = stage.by_device(planner._usable_joules(stage))
    assert planner._full_power(replace(stage, budgets_joules=usable)).devices_short == 0
    assert planner._full_power(replace(stage, budgets_joules=usable * 0.99)).devices_short == 3


@pytest.mark.parametrize("times_s", [(None, 30.0), (5.0, None), (None, None)])
def test_closed_forms_need_both_mean_times(times_s: tuple[float | None, float | None]) -> None:
    contact_s, wait_s = times_s
    contacts = SimpleNamespace(contact=SimpleNamespace(mean_s=contact_s), mean_wait_s=wait_s)
    scenario = wayfare.load("fashion-small")
    assert planner._by_theory(scenario, contacts, fleet(0)) is None  # type: ignore[arg-type]
    assert planner._best_speed(scenario, contacts, fleet(0)) is None  # type: ignore[arg-type]
