"""Scenarios that no computer could run are rejected at once, by name."""

from __future__ import annotations

import pytest

import wayfare
from wayfare.contacts import draw_plan
from wayfare.errors import ScenarioError


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (["rounds=100000000000"], "rounds"),
        (["fleet.devices=100000000"], "fleet.devices"),
        (["learning.hidden=[100000000000]"], r"learning\.hidden\.0"),
        (["learning.batch_size=100000000000"], r"learning\.batch_size"),
        (["round_s=1e300"], "round_s"),
        (["round_s=1e15"], "mobility"),
        (["mobility.speed_mps=1e300"], r"mobility\.speed_mps"),
        (["mobility.speed_mps=1e-300"], r"mobility\.speed_mps"),
        (["mobility.width_m=1e-300"], r"mobility\.width_m"),
        (["mobility.width_m=1e200"], r"mobility\.width_m"),
        (["mobility.width_m=1e-3", "mobility.height_m=1e-3", "mobility.pause_max_s=0"], "mobility"),
        (["mobility.model=exponential", "mobility.contact_s=1e-12"], r"mobility\.contact_s"),
        (["mobility.model=exponential", "mobility.contact_s=1e-9", "mobility.inter_contact_s=1e-9"], "mobility"),
        (["mobility.model=gauss-markov", "mobility.step_s=1e-9"], "mobility"),
        (["mobility.model=manhattan", "mobility.block_m=1e-6"], "mobility"),
        (["mobility.model=walk", "mobility.leg_s=1e-9", "mobility.pause_max_s=0"], "mobility"),
        (["mobility.model=walk", "mobility.leg_m=1e-9", "mobility.pause_max_s=0"], "mobility"),
        (["mobility.server.kind=route", "mobility.server.waypoints_m=[[0,0],[1e-9,0]]"], "mobility"),
        (["radio.range_m=1e300"], r"radio\.range_m"),
        (["radio.noise_dbm_per_hz=-1e300"], r"radio\.noise_dbm_per_hz"),
        (["radio.shadowing_los_db=1e300"], r"radio\.shadowing_los_db"),
        (["control.weight=1e300"], r"control\.weight"),
    ],
)
def test_absurd_numbers_are_refused_by_name(overrides: list[str], field: str) -> None:
    with pytest.raises(ScenarioError, match=rf"^{field} = "):
        draw_plan(wayfare.load("fashion-small", overrides), 0)


@pytest.mark.parametrize(
    "overrides",
    [
        ["mobility.width_m=1e15"],
        ["mobility.width_m=1e-9", "mobility.height_m=1e-9"],
        ["radio.range_m=1e15"],
        ["radio.range_m=1e-9"],
        ["mobility.pause_max_s=1e15"],
        ["mobility.model=gauss-markov", "mobility.speed_deviation_mps=1e4"],
    ],
)
def test_numbers_at_the_bounds_are_drawn(overrides: list[str]) -> None:
    assert draw_plan(wayfare.load("fashion-small", ["rounds=50", *overrides]), 0).devices == 20
