"""Upload rules that ask for it see where the device is and how fast, as the mobility model has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import wayfare
from tests.conftest import SMALL
from tests.simulator.goldens import Records
from wayfare import mobility
from wayfare.methods import Encounter, Upload, UploadRule, make_method, send_top_k
from wayfare.mobility import Motion
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.simulator import Simulation
from wayfare.world import World, draw_world

MODELS = ["waypoint", "walk", "direction", "gauss-markov", "manhattan"]


@dataclass(frozen=True)
class Looking(UploadRule):
    """Remembers what it saw."""

    seen: list[Encounter] = field(default_factory=list, compare=False)
    name = "looking"
    needs_position = True

    def decide(self, encounter: Encounter, link: Link) -> Upload:
        self.seen.append(encounter)
        return send_top_k(encounter, link, link.max_power_watts)


@dataclass(frozen=True)
class NotLooking(Looking):
    name = "not-looking"
    needs_position = False


def seen_by(rule: Looking, scenario: Scenario) -> list[Encounter]:
    Simulation(draw_world(scenario, 0), make_method(rule, scenario), Records()).run()
    return rule.seen


def motion_of(world: World) -> Motion:
    scenario = world.scenario
    model = mobility.from_spec(scenario.mobility, scenario.radio.range_m)
    motion = model.draw(scenario.fleet.devices, scenario.duration_s, world.seed)
    assert isinstance(motion, Motion)
    return motion


@pytest.mark.parametrize("model", MODELS)
def test_a_contact_begins_at_the_edge_of_the_range(model: str) -> None:
    """Motion is continuous, so a contact that begins after the start of a run begins there, or just inside it."""
    scenario = wayfare.load("fashion-small", [*SMALL, f"mobility.model={model}"])
    world = draw_world(scenario, 0)
    motion, plan = motion_of(world), world.plan.with_server()
    for row in range(len(world.meets)):
        device, round_ = int(world.meets.device[row]), int(world.meets.round[row])
        starts = plan.start_s[plan.device == device]
        begin_s = np.array([starts[starts >= (round_ - 1) * scenario.round_s][0]])
        (here_m, _), server_m = world.whereabouts(row), motion.positions_m(scenario.fleet.devices, begin_s)[0]
        assert here_m == tuple(motion.positions_m(device, begin_s)[0])
        away_m = float(np.hypot(*(np.array(here_m) - server_m)))
        assert away_m <= scenario.radio.range_m + 1e-6
        if begin_s > 0:
            assert away_m == pytest.approx(scenario.radio.range_m, abs=1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_a_speed_is_the_way_of_a_short_time(model: str) -> None:
    scenario = wayfare.load("fashion-small", [*SMALL, f"mobility.model={model}"])
    motion = motion_of(draw_world(scenario, 0))
    time_s = np.random.default_rng(0).uniform(0, scenario.duration_s - 1, 200)
    step_s = 1e-4
    for node in range(motion.nodes):
        way_m = motion.positions_m(node, time_s + step_s) - motion.positions_m(node, time_s)
        speeds_mps = motion.speeds_mps(node, time_s)
        straight = speeds_mps == motion.speeds_mps(node, time_s + step_s)
        assert straight.sum() > 190
        assert np.hypot(*way_m.T)[straight] / step_s == pytest.approx(speeds_mps[straight], abs=1e-4)


def test_a_rule_that_asks_for_it_sees_position_and_speed() -> None:
    scenario = wayfare.load("fashion-small", list(SMALL))
    world, seen = draw_world(scenario, 0), seen_by(Looking(), scenario)
    assert len(seen) == len(world.meets)
    for row, encounter in enumerate(seen):
        assert (encounter.device, encounter.round) == (world.meets.device[row], world.meets.round[row])
        assert (encounter.position_m, encounter.speed_mps) == world.whereabouts(row)
        assert encounter.speed_mps is not None
        assert 0 <= encounter.speed_mps <= 30.0


def test_a_rule_that_does_not_ask_for_it_sees_none() -> None:
    seen = seen_by(NotLooking(), wayfare.load("fashion-small", list(SMALL)))
    assert seen
    assert all(encounter.position_m is None and encounter.speed_mps is None for encounter in seen)


def test_contacts_without_motion_have_neither() -> None:
    scenario = wayfare.load("fashion-small", [*SMALL, "mobility.model=exponential"])
    seen = seen_by(Looking(), scenario)
    assert seen
    assert all(encounter.position_m is None and encounter.speed_mps is None for encounter in seen)


def test_a_device_of_a_trace_is_where_the_trace_says(tmp_path: Path) -> None:
    trace = tmp_path / "passing.tcl"
    places = [f"$node_({node}) set {axis}_ {at_m}" for node, axis, at_m in ((0, "X", -500), (0, "Y", 0), (1, "X", 0))]
    passes = '$ns_ at 0 "$node_(0) setdest 1500 0 10"'
    trace.write_text("\n".join([*places, "$node_(1) set Y_ 0", passes]), encoding="utf-8")
    settings = [
        "rounds=20",
        "fleet.devices=1",
        "mobility.model=trace",
        f'mobility.file="{trace}"',
        'mobility.server="1"',
    ]
    scenario = wayfare.load("fashion-small", settings)
    (only,) = seen_by(Looking(), scenario)
    assert only.position_m == pytest.approx((-scenario.radio.range_m, 0.0))
    assert only.speed_mps == pytest.approx(10.0)
