"""Small plans whose opportunities, statistics and forecasts can be written down."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tests.contacts.plans import plan_of

import wayfare
from wayfare.contacts import Opportunities, forecast_s, opportunities, speeds, trace_use
from wayfare.contacts.plan import peer_opportunities
from wayfare.contacts.source import plan_from_source
from wayfare.contacts.speeds import SPEEDS_MPS, SpeedPoint, contact_times_by_speed
from wayfare.contacts.statistics import (
    Distribution,
    ExponentialFit,
    distribution,
    exponential_fit,
    overall_verdict,
    plan_statistics,
    verdict_sentence,
)
from wayfare.mobility import SERVER
from wayfare.streams import Stream, generator


def test_contacts_count_in_the_round_in_which_they_start() -> None:
    drawn = plan_of(
        (0, SERVER, 0.0, 3.0, 11.0),
        (0, SERVER, 9.9, 30.0, 12.0),
        (0, SERVER, 10.0, 11.0, 13.0),
        (1, SERVER, 5.0, 6.0, 14.0),
        (1, SERVER, 39.0, 45.0, 15.0),
        (1, SERVER, 40.0, 45.0, 16.0),
        (1, 2, 12.0, 14.0, 17.0),
        (1, 2, 16.0, 17.0, 18.0),
        (0, 2, 12.0, 13.5, 19.0),
    )
    found = opportunities(drawn, 10.0, 4)
    assert found.round.tolist() == [1, 1, 2, 4]
    assert found.device.tolist() == [0, 1, 0, 1]
    assert found.contact_s == pytest.approx([3.0 + 20.1, 1.0, 1.0, 6.0])
    # The longest contact of a group says where it is.
    assert found.distance_m.tolist() == [12.0, 14.0, 13.0, 15.0]
    assert len(found) == 4
    peers = peer_opportunities(drawn, 10.0, 4)
    assert (peers.round.tolist(), peers.device.tolist(), peers.peer.tolist()) == ([2, 2], [0, 1], [2, 2])
    assert (peers.contact_s.tolist(), peers.distance_m.tolist()) == ([1.5, 3.0], [19.0, 17.0])
    assert len(opportunities(plan_of(), 10.0, 4)) == len(peer_opportunities(plan_of(), 10.0, 4)) == 0


def test_a_forecast_is_off_by_a_lognormal_factor_of_its_device() -> None:
    meets = Opportunities(
        round=np.arange(1, 6), device=np.array([1, 0, 1, 1, 0]), contact_s=np.arange(1.0, 6.0), distance_m=np.ones(5)
    )
    spread = math.sqrt(math.log(1 + 0.25))
    for device, rows in ((0, [1, 4]), (1, [0, 2, 3])):
        drawn = generator(7, Stream.CONTACT_FORECAST, device).standard_normal(len(rows))
        expected = meets.contact_s[rows] * np.exp(spread * drawn - spread**2 / 2)
        assert forecast_s(meets, 0.5, 7)[rows] == pytest.approx(expected)
    assert forecast_s(meets, 0.0, 7) is meets.contact_s


def test_contacts_that_touch_the_ends_of_a_plan_are_cut() -> None:
    found = plan_statistics(
        plan_of(
            (0, SERVER, 0.0, 10.0, 1.0),
            (0, SERVER, 1.5, 100.0, 1.0),
            (1, 2, 3.0, 4.0, 1.0),
            (1, SERVER, 2.0, 99.0, 1.0),
        )
    )
    assert (found.contacts, found.device_contacts, found.devices_without_contact, found.devices) == (3, 1, 1, 3)
    assert (found.contact.count, found.contact.cut) == (1, 2)
    # Device 0 never waits at an end of the plan, device 1 at both, device 2 all the time.
    assert found.inter_contact.cut == 3
    assert found.contacts_per_device == pytest.approx(
        {"mean": 1.0, "p5": 0.1, "p25": 0.5, "p50": 1.0, "p75": 1.5, "p95": 1.9}
    )


def test_samples_are_judged_by_the_modified_statistic_of_stephens() -> None:
    rng = np.random.default_rng(0)
    verdicts = set()
    for count in (5, 10, 30, 100):
        for _ in range(60):
            times_s = rng.gamma(rng.uniform(0.5, 2.0), size=count)
            fit = exponential_fit(times_s)
            theirs = stats.kstest(times_s, "expon", args=(0, times_s.mean())).statistic
            modified = (theirs - 0.2 / count) * (math.sqrt(count) + 0.26 + 0.5 / math.sqrt(count))
            assert fit.ks_distance == pytest.approx(theirs)
            assert fit.rejected_at_5_percent == (modified > 1.094)
            if count < 20:
                assert fit.verdict == "too few"
                continue
            is_near = fit.ks_distance <= 0.1 or (not fit.rejected_at_5_percent and fit.ks_distance <= 0.2)
            assert fit.verdict == ("holds" if is_near else "roughly" if fit.ks_distance <= 0.2 else "fails")
            verdicts.add(fit.verdict)
    assert verdicts == {"holds", "roughly", "fails"}


@pytest.mark.parametrize(
    ("power", "verdict", "rejected"),
    [(1.0, "holds", False), (1.25, "holds", True), (1.5, "roughly", True), (2.5, "fails", True)],
)
def test_times_further_and_further_from_exponential(power: float, verdict: str, rejected: bool) -> None:
    times_s = (-np.log1p(-(np.arange(400) + 0.5) / 400)) ** power
    fit = exponential_fit(times_s)
    assert (fit.verdict, fit.rejected_at_5_percent) == (verdict, rejected)
    assert exponential_fit(times_s[:20]).verdict != "too few"
    assert exponential_fit(times_s[:19]).verdict == "too few"


def fitted(verdict: str, distance: float = 0.5) -> Distribution:
    fit = ExponentialFit(mean_s=1.0, ks_distance=distance, rejected_at_5_percent=True, verdict=verdict)  # type: ignore[arg-type]
    return Distribution(count=30, cut=0, mean_s=1.0, quantiles_s={}, fit=fit, times_s=np.ones(1))


@pytest.mark.parametrize(
    ("contact", "inter_contact", "verdict", "failing"),
    [
        ("holds", "holds", "holds", ()),
        ("holds", "roughly", "roughly", ()),
        ("fails", "roughly", "fails", ("contact",)),
        ("fails", "fails", "fails", ("contact", "inter-contact")),
        ("too few", "fails", "too few", ()),
    ],
)
def test_the_worse_of_two_verdicts_is_the_verdict(
    contact: str, inter_contact: str, verdict: str, failing: tuple[str, ...]
) -> None:
    found = replace(plan_statistics(plan_of()), contact=fitted(contact), inter_contact=fitted(inter_contact))
    assert overall_verdict(found) == (verdict, failing)
    words = {"holds": "theory holds (", "roughly": "holds roughly", "fails": "does not hold", "too few": "Too few"}
    assert words[verdict] in verdict_sentence(found)


def test_a_distribution_of_no_times_has_no_mean() -> None:
    nothing = distribution(np.empty(0), cut=2)
    assert (nothing.count, nothing.cut, nothing.mean_s, nothing.quantiles_s, nothing.fit) == (0, 2, None, {}, None)
    some = distribution(np.array([3.0, 1.0]), cut=0)
    assert (some.mean_s, some.quantiles_s["p50"], some.times_s.tolist()) == (2.0, 2.0, [1.0, 3.0])


def test_products_of_times_and_speed() -> None:
    point = SpeedPoint(model="walk", speed_mps=4.0, contacts=1, contact_s=3.0, inter_contact_s=20.0)
    assert (point.contact_m, point.inter_contact_m) == (12.0, 80.0)
    nothing = SpeedPoint(model="walk", speed_mps=4.0, contacts=0, contact_s=None, inter_contact_s=None)
    assert (nothing.contact_m, nothing.inter_contact_m) == (None, None)
    assert SPEEDS_MPS == (1.0, 2.0, 5.0, 10.0, 20.0, 40.0)


def test_every_device_goes_200_km_at_every_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(speeds, "draw_plan", lambda scenario, seed: [drawn.append(scenario), plan_of()][1])
    scenario = wayfare.load("fashion-small", ["round_s=10"])
    points = list(contact_times_by_speed(scenario, speeds_mps=(2.0, 5e4), models=("gauss-markov",), seed=0))
    assert [used.rounds for used in drawn] == [10_000, 1]
    assert [used.mobility.speed_mps for used in drawn] == [2.0, 5e4]
    # Deviations of a speed go along with it.
    ratios = {
        name: getattr(drawn[1].mobility, name) / getattr(drawn[0].mobility, name)
        for name in type(drawn[0].mobility).model_fields
        if name.endswith("_mps")
    }
    assert list(ratios.values()) == pytest.approx([25_000] * len(ratios))
    assert len(ratios) > 1
    assert [point.contacts for point in points] == [0, 0]


CONTACTS = "start_s,end_s,a,b\n0,8,bus,a\n30,39,bus,b\n50,58,bus,c\n70,79,a,bus\n110,118,a,b\n900,905,a,bus\n"


def test_a_trace_is_looked_at_whole_and_as_long_as_it_lasts(tmp_path: Path) -> None:
    file = tmp_path / "town.csv"
    file.write_text(CONTACTS)
    found = plan_from_source(str(file), seed=0, server="bus", range_m=70.0)
    assert (found.name, found.server, found.skipped, found.notes) == ("town.csv", "bus", 0, ())
    assert (found.scenario.fleet.devices, found.scenario.rounds, found.scenario.radio.range_m) == (3, 91, 70.0)
    assert sorted(found.devices) == ["a", "b", "c"]
    assert (len(found.plan), len(found.plan.with_server())) == (6, 5)
    file.write_text(CONTACTS + "rubbish\n")
    lenient = plan_from_source(str(file), seed=0, server="bus", lenient=True)
    assert lenient.skipped == 1
    assert lenient.notes[0].startswith("1 lines skipped; the first: ")
    settings = ["mobility.model=trace", f"mobility.file={file}", "mobility.lenient=true", "mobility.server=bus"]
    scenario = wayfare.load("fashion-small", [*settings, "mobility.start_s=20", "rounds=5", "fleet.devices=2"])
    use = trace_use(scenario)
    assert use is not None
    assert (use.server, use.devices, use.nodes, use.start_s, use.used_s) == ("bus", 2, 4, 20.0, 50.0)
    assert (use.duration_s, use.repeated, use.lines_skipped, use.file) == (905.0, False, 1, str(file))
    assert use.contacts_used + use.contacts_dropped == 5


def test_a_preset_is_drawn_as_a_run_of_it_would_be() -> None:
    found = plan_from_source("fashion-small", seed=3, overrides=["rounds=50"])
    assert (found.name, found.kind, found.devices, found.server) == ("fashion-small", "waypoint", (), None)
    assert np.all(found.plan.peer == SERVER)
    meeting = plan_from_source("fashion-small", seed=3, overrides=["rounds=50"], devices_meet=True)
    assert len(meeting.plan) > len(found.plan) == len(meeting.plan.with_server())
