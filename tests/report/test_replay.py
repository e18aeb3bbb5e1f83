from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wayfare import mobility
from wayfare.arrays import Floats
from wayfare.contacts import draw_plan, opportunities
from wayfare.mobility import Motion
from wayfare.mobility.base import motion_from_knots
from wayfare.records import RunRecord, read_run
from wayfare.report import replay
from wayfare.report.replay import Knots, knots_of, replay_json, straightened
from wayfare.scenario import load


def places_m(knots: Knots, node: int, times_s: Floats) -> Floats:
    """Where the knots have a node, as the page reads them."""
    mine = knots.take(knots.node == node)
    found = np.full((len(times_s), 2), np.nan)
    for row, time_s in enumerate(times_s):
        place = int(np.searchsorted(mine.time_s, time_s, side="right")) - 1
        if place < 0:
            continue
        here, ahead = (np.array([mine.x_m[at], mine.y_m[at]]) for at in (place, min(place + 1, len(mine.node) - 1)))
        span_s = mine.time_s[min(place + 1, len(mine.node) - 1)] - mine.time_s[place]
        found[row] = here
        if np.isfinite(ahead).all() and span_s > 0:
            found[row] = here + (time_s - mine.time_s[place]) / span_s * (ahead - here)
    return found


@pytest.mark.parametrize("model", ["waypoint", "walk", "direction", "gauss-markov", "manhattan"])
def test_knots_are_the_motion(model: str) -> None:
    scenario = load("fashion-small", [f"mobility.model={model}", "rounds=60", "fleet.devices=4"])
    motion = mobility.from_spec(scenario.mobility, 100.0).draw(4, 600.0, 1)
    assert isinstance(motion, Motion)
    times_s = np.linspace(0, 599.9, 173)
    for node in range(5):
        assert np.allclose(places_m(knots_of(motion), node, times_s), motion.positions_m(node, times_s), atol=2e-3)


def test_absences_and_jumps_are_kept() -> None:
    def legs(start_s: list[float], end_s: list[float], x_m: list[float]) -> Motion:
        zeros = np.zeros(len(start_s))
        return Motion(
            nodes=1,
            node=np.zeros(len(start_s), dtype=np.int64),
            start_s=np.array(start_s),
            end_s=np.array(end_s),
            x_m=np.array(x_m),
            y_m=zeros,
            vx_mps=zeros + 1,
            vy_mps=zeros,
        )

    motion = legs([0, 10, 30], [10, 20, 40], [0, 100, 200])
    found = places_m(knots_of(motion), 0, np.array([5.0, 15.0, 25.0, 35.0, 45.0]))
    assert np.allclose(found[:, 0], [5, 105, np.nan, 205, np.nan], equal_nan=True)


def test_straight_ways_lose_their_knots_and_bends_keep_them() -> None:
    time_s = np.arange(0.0, 1001.0)
    bent = np.where(time_s < 500, time_s, 1000 - time_s)
    knots = knots_of(motion_from_knots([(time_s, bent, 0 * time_s), (time_s, 0 * time_s, bent)]))
    thin = straightened(knots, 10, 0.01)
    assert len(thin.node) <= 12
    for node in (0, 1):
        assert np.allclose(places_m(thin, node, time_s[:-1]), places_m(knots, node, time_s[:-1]), atol=0.2)


def test_a_world_that_changed_is_not_shown(comparison: Path) -> None:
    record = read_run(next(comparison.glob("runs/mads-seed0-*")))
    assert "unavailable" not in replay_json([record])
    other = replace(record, scenario=record.scenario.model_copy(update={"rounds": 40}))
    assert "differs from the recorded one" in replay_json([other])["unavailable"]


def test_a_world_too_large_for_the_page_is_cut_in_time(comparison: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = read_run(next(comparison.glob("runs/mads-seed0-*")))
    whole = replay_json([record])
    assert whole["until_s"] == whole["duration_s"] == 600
    monkeypatch.setattr(replay, "_MOST_KNOTS", 60)
    part = replay_json([record])
    assert 0 < part["until_s"] < 600
    starts_s, all_s = (unpacked(one["contacts"]["start_s"], "<f4") for one in (part, whole))
    assert np.array_equal(starts_s, all_s[all_s < part["until_s"]])
    monkeypatch.setattr(replay, "_MOST_OUTCOMES", 5)
    assert len(unpacked(replay_json([record])["contacts"]["start_s"], "<f4")) <= 5


def test_the_page_of_five_hundred_devices_stays_under_fifteen_megabytes(comparison: Path) -> None:
    pytest.importorskip("plotly")
    from wayfare.report.page import plotly_script

    records = [fleet_of_500(read_run(next(comparison.glob("runs/mads-seed0-*"))))] * 6
    content = replay_json(records)
    assert content["devices"] == 500
    assert content["until_s"] > 3600
    everything_else = 1_500_000
    assert len(json.dumps(content)) + len(plotly_script().encode()) + everything_else < 15_000_000


def fleet_of_500(record: RunRecord) -> RunRecord:
    """A run with the contacts of 500 devices over eleven hours, and outcomes made up."""
    scenario = load("fashion-small", ["fleet.devices=500", "rounds=4000"])
    meets = opportunities(draw_plan(scenario, 0), scenario.round_s, scenario.rounds)
    ones = np.ones(len(meets))
    contacts = dict.fromkeys(record.contacts, ones) | {
        "round": meets.round.astype(np.float64),
        "device": meets.device.astype(np.float64),
    }
    return replace(record, scenario=scenario, contacts=contacts)


def unpacked(packed: dict[str, Any], kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["base64"]), dtype=kind)
