"""A fleet of two devices and four contacts, whose plan can be computed by hand: 1 kHz, signals of 1 and 3 to 1."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

import wayfare
from wayfare.contacts import Opportunities
from wayfare.contacts.statistics import PlanStatistics
from wayfare.errors import ScenarioError
from wayfare.learning.known import KNOWN
from wayfare.methods import Encounter, Method, Upload, UploadRule
from wayfare.methods.compressors import TopK
from wayfare.methods.memories import ErrorFeedback
from wayfare.methods.servers import Add
from wayfare.radio import Link
from wayfare.scenario.section import LARGEST
from wayfare.theory import planner
from wayfare.theory.ask import _norms, plan
from wayfare.theory.assumptions import assumptions_of, check_server_power, downlinks
from wayfare.theory.bounds import lemma_2_staleness, mobility_coefficient
from wayfare.theory.norms import NormModel, captured_share, typical_norms
from wayfare.theory.planner import BestSpeed, FixedWeight, Forecast, FullPower, Rehearsed
from wayfare.theory.rehearsal import Stage, energies_by_weight, rehearse
from wayfare.theory.warnings import PlanWarning, warnings_of

LINK = Link(
    bandwidth_hz=1e3, max_power_watts=0.2, parameters=50, bits_per_entry=40.0, dense_bits=1700.0, statistics_bits=100.0
)
NORMS = NormModel(step_norm_sq=2.0, growth=0.5, log_spread=0.0)
STAGE = Stage(
    meets=Opportunities(
        round=np.array([4, 5, 8, 9]),
        device=np.array([0, 1, 0, 0]),
        contact_s=np.array([0.5, 0.86, 1.0, 4.0]),
        distance_m=np.ones(4),
    ),
    gains_per_watt=np.array([5.0, 15.0, 5.0, 15.0]),
    budgets_joules=np.array([0.55, 0.15]),
    link=LINK,
    rounds=20,
    norms=NORMS,
    seed=0,
)


def test_rates_and_sums_of_a_stage() -> None:
    assert STAGE.rates_bps(0.2) == pytest.approx([1000, 2000, 1000, 2000])
    assert STAGE.rows_of(0).tolist() == [0, 2, 3]
    assert STAGE.by_device(np.array([1.0, 2.0, 3.0, 4.0])).tolist() == [8.0, 2.0]
    first = STAGE.of_first(1)
    assert (first.meets.round.tolist(), first.meets.device.tolist()) == ([4, 8, 9], [0, 0, 0])
    assert (first.gains_per_watt.tolist(), first.budgets_joules.tolist()) == ([5.0, 5.0, 15.0], [0.55])
    assert STAGE.of_first(2).meets.contact_s.tolist() == STAGE.meets.contact_s.tolist()


def test_full_power_contact_by_contact() -> None:
    found = planner._full_power(STAGE)
    assert found.median_rate_bps == pytest.approx(1500)
    # 500, 1,720, 1,000 and 8,000 bits, of which 100 are for statistics and 2,000 for all entries.
    assert found.mean_contact_bits == pytest.approx(2805)
    assert found.kept_share == pytest.approx((400 + 1620 + 900 + 2000) / 2000 / 4)
    assert (found.whole_chance, found.dense_chance) == (0.25, 0.5)
    # Everything takes 1.05 s at 2,000 bits a second, and longer than the contact elsewhere.
    assert found.energy_joules == pytest.approx(0.2 * (0.5 + 0.86 + 1.0 + 1.05))
    usable = [0.1, 0.172, 0.2, 4.0 * (2 ** (2100 / 4000) - 1) / 15]
    assert found.usable_joules == pytest.approx(sum(usable))
    # The contacts of the first device can use 0.417 J, and at full power 0.51 J.
    assert (found.devices_short, found.devices_short_at_full_power) == (1, 1)
    other = planner._full_power(replace(STAGE, budgets_joules=np.array([0.505, 0.18])))
    assert (other.devices_short, other.devices_short_at_full_power) == (0, 1)
    needed = 0.2 * np.minimum(STAGE.meets.contact_s, 2100 / STAGE.rates_bps(0.2))
    exactly = planner._full_power(replace(STAGE, budgets_joules=STAGE.by_device(needed)))
    assert exactly.devices_short_at_full_power == 0


def test_a_model_that_fits_exactly_comes_down() -> None:
    shares = [found.downlink_whole_model_share for found in downlinks(STAGE, [0.2, 0.6])]
    exactly = replace(STAGE, link=replace(LINK, dense_bits=float(STAGE.rates_bps(0.2)[2])))
    assert downlinks(exactly, [0.2])[0].downlink_whole_model_share == 0.75
    assert planner._full_power(exactly).dense_chance == 0.75
    # At 0.6 W the signals are 3 and 9 to 1: 1,000, 2,824, 2,000 and 13,288 bits.
    assert shares == [0.5, 0.75]


@dataclass(frozen=True)
class Given(UploadRule):
    """Ten entries in even rounds; in odd ones an upload that fails."""

    name = "given"

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        completes = encounter.round % 2 == 0
        return Upload(
            entries=10 if completes else 0, bits=1.0, power_watts=0.1, energy_joules=0.05, completes=completes
        )


def test_a_rehearsal_keeps_the_account_of_every_device() -> None:
    method = Method(name="given", upload=Given(), compressor=TopK(), memory=ErrorFeedback(), server=Add())
    played = rehearse(STAGE, method)
    assert played.device.tolist() == [0, 0, 0, 1]
    assert played.kept_fraction.tolist() == [0.2, 0.2, 0.0, 0.0]
    # Since round 0, since round 4, and since round 8, after which nothing got through.
    assert played.staleness_rounds.tolist() == [4.0, 4.0, 1.0, 5.0]
    assert played.completed.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert played.energy_joules.tolist() == [0.05] * 4
    assert rehearse(STAGE, method, devices=1).device.tolist() == [0, 0, 0]
    assert rehearse(STAGE, method, devices=9).device.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(("value_bits", "lost"), [(None, 0.0), (32, 0.0), (2, 0.106), (1, 0.158)])
def test_norms_grow_between_contacts_and_shrink_by_what_was_captured(value_bits: int | None, lost: float) -> None:
    seen: list[tuple[float, float, int]] = []

    class Seeing(Given):
        def decide(self, encounter: Encounter, link: Link) -> Upload:
            seen.append((encounter.update_norm_sq, encounter.met_s, encounter.contacts))
            return replace(super().decide(encounter, link), value_bits=value_bits)

    rehearse(STAGE, Method(name="s", upload=Seeing(), compressor=TopK(), memory=ErrorFeedback(), server=Add()))
    left = 1 - float(captured_share(0.2)) * (1 - lost)
    first = 2 * 2.0
    second = first * left + 2 * 2.0
    third = second * left + 2 * 1.0
    assert [norm for norm, _, _ in seen] == pytest.approx([first, second, third, 2 * math.sqrt(5)])
    assert [met for _, met, _ in seen] == pytest.approx([0.5, 1.5, 5.5, 0.86])
    assert [contacts for _, _, contacts in seen] == [1, 2, 3, 1]


def test_what_a_rehearsal_tells_of_a_fleet() -> None:
    scenario = wayfare.load("fashion-small", ["control.weight=0.5"])
    played = planner._rehearsed(scenario, STAGE, "optimal")
    assert (played.scheme, played.weight, played.devices) == ("optimal", 0.5, 2)
    # 10, 40, 22 and 50 of 50 entries at full power.
    assert played.kept_fraction == pytest.approx((10 + 40 + 22 + 50) / 50 / 4)
    assert played.staleness_rounds == pytest.approx((4 + 4 + 1 + 5) / 4)
    assert played.uploads_per_device == 2.0
    bits = np.array([10 * 40 + 100, 40 * 40 + 100, 22 * 40 + 100, 2100])
    assert played.energy_joules == pytest.approx(0.2 * (bits / [1000, 2000, 1000, 2000]).sum())
    usable = 0.1 + 0.2 + 4.0 * (2 ** (2100 / 4000) - 1) / 15
    assert played.available_joules == pytest.approx(min(usable, 0.55) + 0.15)


def test_of_a_large_fleet_the_first_devices_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_REHEARSED", 2)
    scenario = wayfare.load("fashion-small")
    played = planner._rehearsed(scenario, STAGE, "optimal")
    assert played.devices == 1
    assert played.energy_joules == pytest.approx(2 * 0.2 * (0.5 + 0.98 + 1.05))
    assert played.uploads_per_device == 3.0
    alone = replace(STAGE, meets=replace(STAGE.meets, device=np.zeros(4, np.int64)), budgets_joules=np.ones(1))
    assert planner._rehearsed(scenario, alone, "optimal").devices == 1
    assert planner._fixed_weight(scenario, STAGE).step_norm_sq == 2.0


def statistics(**changes: object) -> PlanStatistics:
    plain = {"contact": SimpleNamespace(mean_s=5.0, fit=None, count=0), "mean_wait_s": 30.0, "devices": 20}
    plain |= {"inter_contact": SimpleNamespace(mean_s=30.0, fit=None, count=0), "devices_without_contact": 0}
    return SimpleNamespace(**{**plain, "contacts_per_device": {"mean": 50.0}, **changes})  # type: ignore[return-value]


def test_the_best_speed_is_the_least_of_the_bound_over_speeds() -> None:
    scenario = wayfare.load("fashion-small", ["mobility.speed_mps=20", "round_s=10"])
    found = planner._best_speed(scenario, statistics(), STAGE)
    assert found is not None
    room = np.array([500, 1720, 1000, 8000]) / 2000

    def factor(slower: float) -> float:
        theta = lemma_2_staleness(5.0 * slower, 30.0 * slower, 10.0, counting="start")
        return float(mobility_coefficient(np.minimum(room * slower, 1.0).mean(), "sharp") * theta)

    grid = np.geomspace(1e-2, 1e2, 401)
    best = min(grid, key=factor)
    assert (found.own_speed_mps, found.own_factor) == (20.0, pytest.approx(factor(1.0)))
    assert (found.speed_mps, found.factor) == (pytest.approx(20 / best), pytest.approx(factor(best)))
    assert planner._best_speed(scenario, statistics(mean_wait_s=None), STAGE) is None
    still = wayfare.load("paper-cifar10-exponential")
    assert planner._best_speed(still, statistics(), STAGE) is None


def test_a_fixed_weight_spends_the_budget_where_one_does() -> None:
    scenario = wayfare.load("fashion-small")
    found = planner._fixed_weight(scenario, replace(STAGE, budgets_joules=np.array([0.2, 0.08])))
    assert found.weight is not None
    assert found.known
    spent = energies_by_weight(
        replace(STAGE, budgets_joules=np.array([0.2, 0.08])), np.array([found.weight]), "corrected"
    )
    assert spent.sum() == pytest.approx(0.28, rel=0.1)
    assert planner._fixed_weight(scenario, replace(STAGE, budgets_joules=np.array([50.0, 50.0]))).weight is None


FULL = FullPower(
    median_rate_bps=1.0,
    mean_contact_bits=1.0,
    kept_share=0.5,
    whole_chance=0.5,
    dense_chance=0.1,
    energy_joules=100.0,
    usable_joules=100.0,
    devices_short=0,
    devices_short_at_full_power=0,
)
PLAYED = Rehearsed(
    scheme="mads",
    weight=0.5,
    kept_fraction=0.5,
    staleness_rounds=3.0,
    energy_joules=90.0,
    available_joules=100.0,
    uploads_per_device=5.0,
    devices=20,
)
FINE = {"fit": SimpleNamespace(verdict="holds", ks_distance=0.05)}


def warnings(**changes: object) -> list[PlanWarning]:
    few = {"contact": SimpleNamespace(mean_s=5.0, count=99, **FINE), "inter_contact": SimpleNamespace(count=99, **FINE)}
    plain = {"statistics": statistics(**few), "scenario": wayfare.load("fashion-small"), "full_power": FULL}
    plain |= {
        "budget_joules": 100.0,
        "rehearsed": PLAYED,
        "fixed_weight": FixedWeight(weight=1.0, step_norm_sq=1.0, known=True),
    }
    plain |= {"best_speed": BestSpeed(speed_mps=10.0, factor=3.0, own_speed_mps=20.0, own_factor=6.0)}
    forecast: Forecast = SimpleNamespace(**{**plain, **changes})  # type: ignore[assignment]
    return warnings_of(forecast)


def kinds(**changes: object) -> list[str]:
    return [warning.kind for warning in warnings(**changes)]


def test_a_plan_at_every_limit_has_no_warning() -> None:
    assert kinds() == []
    few = {
        "contact": SimpleNamespace(mean_s=10.0, count=99, **FINE),
        "inter_contact": SimpleNamespace(count=99, **FINE),
    }
    assert kinds(statistics=statistics(**few, contacts_per_device={"mean": 5.0})) == []
    for energy_joules in (103.0, 85.0):
        assert kinds(rehearsed=replace(PLAYED, energy_joules=energy_joules)) == []


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"full_power": None}, "no contacts"),
        ({"rehearsed": None}, "no contacts"),
        ({"full_power": replace(FULL, dense_chance=0.099)}, "dense uploads"),
        (
            {"best_speed": BestSpeed(speed_mps=10.0, factor=3.0, own_speed_mps=20.0, own_factor=6.1)},
            "far from the best speed",
        ),
        ({"budget_joules": 101.0}, "energy is no limit"),
        ({"budget_joules": 101.0, "full_power": replace(FULL, devices_short=1)}, "energy limits some devices"),
        (
            {"budget_joules": 101.0, "full_power": replace(FULL, devices_short_at_full_power=1)},
            "energy limits full power alone",
        ),
        ({"rehearsed": replace(PLAYED, energy_joules=103.1)}, "V exceeds the budget"),
        ({"rehearsed": replace(PLAYED, energy_joules=84.9)}, "V leaves energy unused"),
        ({"fixed_weight": FixedWeight(weight=1.0, step_norm_sq=1.0, known=False)}, "norms are a guess"),
    ],
)
def test_each_warning_beyond_its_limit(changes: dict[str, object], kind: str) -> None:
    assert kinds(**changes) == [kind]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"full_power": replace(FULL, dense_chance=0.042)}, "into 4.2 % of the contacts"),
        ({"best_speed": BestSpeed(speed_mps=7.0, factor=3.0, own_speed_mps=20.0, own_factor=7.5)}, "2.5 times"),
        ({"budget_joules": 1234.0}, "can use 100 J, less than the budget of 1,234 J"),
        ({"rehearsed": replace(PLAYED, energy_joules=125.0)}, "V = 0.5 exceeds the budget by 25 %"),
        ({"rehearsed": replace(PLAYED, energy_joules=20.0)}, "V = 0.5 leaves 80 % of the energy unused"),
    ],
)
def test_a_warning_has_the_numbers_it_rests_on(changes: dict[str, object], said: str) -> None:
    assert said in warnings(**changes)[0].text


def test_weights_are_the_business_of_mads_alone() -> None:
    for played in (replace(PLAYED, scheme="afl"), replace(PLAYED, weight="auto")):
        assert kinds(rehearsed=replace(played, energy_joules=1.0)) == []


@pytest.mark.parametrize(
    ("question", "refused"),
    [
        ({"parameters": 1}, "parameters = 1: must be at least 2"),
        ({"speed_mps": 0.0}, "speed = 0.0: must be above 0"),
        ({"budget_joules": -1.0}, "budget_joules = -1.0: must be above 0"),
        ({"server_power_watts": [0.0]}, "server_power_watts = 0.0: must be above 0"),
    ],
)
def test_questions_without_an_answer(question: dict[str, float], refused: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        plan(**question)  # type: ignore[arg-type]
    assert refused in str(caught.value)


def test_a_question_in_numbers_is_taken_as_it_is() -> None:
    small = ["rounds=40", "fleet.devices=3", "mobility.width_m=300", "mobility.height_m=300"]
    found = plan(overrides=small, parameters=2, budget_joules=0.5, speed_mps=7.0, range_m=60.0)
    assert found.link.parameters == 2
    assert found.link.statistics_bits == 0.0
    assert found.budget_joules == pytest.approx(1.5)
    assert (found.scenario.mobility.speed_mps, found.scenario.radio.range_m) == (7.0, 60.0)
    assert found.fixed_weight is not None
    assert not found.fixed_weight.known
    own = plan(overrides=small)
    assert own.fixed_weight is not None
    assert (own.fixed_weight.known, own.fixed_weight.step_norm_sq) == (True, 8.5)
    assert own.link.parameters == 84_618


def test_what_is_free_is_said_with_its_size() -> None:
    texts = {found.kind: found.text for found in assumptions_of(replace(LINK, dense_bits=2.5e6, bandwidth_hz=3e6))}
    assert "2.5 Mbit" in texts["free_downlink"]
    assert "all 3 MHz" in texts["unshared_band"]


@pytest.mark.parametrize(
    ("dense_bits", "said"),
    [(1e9, "1,000"), (0.9996e9, "1,000"), (0.9994e9, "999"), (100.6e6, "101"), (99.5e6, "99.5"), (12345e6, "12,345")],
)
def test_a_model_has_three_digits_and_no_exponent(dense_bits: float, said: str) -> None:
    assert f"({said} Mbit)" in assumptions_of(replace(LINK, dense_bits=dense_bits))[0].text


def test_megabits_and_megahertz_are_millions() -> None:
    # Just below and above where the last digit that is printed changes.
    for dense_bits, said in ((2.5049999e6, "2.5 "), (2.5050001e6, "2.51 ")):
        assert f"({said}Mbit)" in assumptions_of(replace(LINK, dense_bits=dense_bits))[0].text
    for bandwidth_hz, said in ((1.2345649e6, "1.23456 "), (1.2345651e6, "1.23457 ")):
        assert f"all {said}MHz" in assumptions_of(replace(LINK, bandwidth_hz=bandwidth_hz))[1].text


def test_the_largest_power_of_a_server_is_taken() -> None:
    check_server_power(LARGEST)
    with pytest.raises(ScenarioError, match="at most"):
        check_server_power(LARGEST * 1.01)


def test_norms_are_those_of_the_first_network_of_a_task() -> None:
    for task in ("fashion", "cifar10", "own"):
        learning = SimpleNamespace(network="auto", task=task)
        network = KNOWN[task].networks[0] if task in KNOWN else "auto"
        assert _norms(SimpleNamespace(learning=learning), None, own_model=False) == typical_norms(network)  # type: ignore[arg-type]
