"""A server that stands beside the road of a trace, in metres or in degrees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import wayfare
from wayfare.contacts import draw_plan, trace_use
from wayfare.contacts.source import plan_from_source
from wayfare.errors import ScenarioError
from wayfare.mobility import Motion
from wayfare.mobility.traces import Trace
from wayfare.mobility.traces.recording import EARTH_RADIUS_M
from wayfare.records import read_run
from wayfare.report.caveats import trace_text
from wayfare.report.replay import replay_json
from wayfare.scenario import Scenario, load, parse
from wayfare.scenario.dump import to_toml
from wayfare.scenario.mobility import NodeServer, RoadsideUnit, TraceMobility

# Two cars at 10 m/s that pass a unit at x = 500 m at d = 30 and 40 m: contacts of 2 sqrt(100^2 - d^2) / 10 s.
METRES = "time,id,x,y\n" + "".join(f"{t},north,{10 * t},30\n{t},south,{1000 - 10 * t},-40\n" for t in range(0, 101, 10))
LENGTHS_S = [2 * np.sqrt(100.0**2 - d_m**2) / 10 for d_m in (30.0, 40.0)]


def degrees_list() -> str:
    """The same two cars around latitude 60, where a degree of longitude is half as long."""
    metre = np.degrees(1 / EARTH_RADIUS_M)
    rows = ["time,id,lat,lon"]
    for t in range(0, 101, 10):
        rows.append(f"{t},north,{60 + 30 * metre:.12f},{20 + (10 * t - 500) * metre / np.cos(np.radians(60)):.12f}")
        rows.append(f"{t},south,{60 - 40 * metre:.12f},{20 + (500 - 10 * t) * metre / np.cos(np.radians(60)):.12f}")
    return "\n".join(rows)


def with_unit(file: Path, text: str, *position: str) -> Scenario:
    file.write_text(text)
    unit = [f"mobility.server.{setting}" for setting in ("kind=fixed", *position)]
    trace = ["mobility.model=trace", f"mobility.file={file}", *unit]
    return load("fashion-small", ["rounds=10", "fleet.devices=2", "learning.hidden=[4]", *trace])


def lengths_s(scenario: Scenario) -> list[float]:
    plan = draw_plan(scenario, 0)
    return list((plan.end_s - plan.start_s)[np.argsort(plan.device)])


def test_a_unit_in_metres_has_the_contacts_of_its_geometry(tmp_path: Path) -> None:
    scenario = with_unit(tmp_path / "m.csv", METRES, "x_m=500", "y_m=0")
    assert lengths_s(scenario) == pytest.approx(LENGTHS_S)
    plan = draw_plan(scenario, 0)
    assert (plan.start_s + plan.end_s) / 2 == pytest.approx([50.0, 50.0])


def test_a_unit_in_degrees_has_the_same_contacts(tmp_path: Path) -> None:
    scenario = with_unit(tmp_path / "d.csv", degrees_list(), "latitude_deg=60", "longitude_deg=20")
    assert lengths_s(scenario) == pytest.approx(LENGTHS_S, rel=1e-5)


def test_degrees_are_projected_across_the_date_line(tmp_path: Path) -> None:
    text = "time,id,lat,lon\n" + "".join(
        f"{t},{name},0,{(180 + (t - 50 + shift) * 1e-4 + 180) % 360 - 180:.9f}\n"
        for t in range(0, 101, 10)
        for name, shift in (("a", 0), ("b", 1))
    )
    scenario = with_unit(tmp_path / "line.csv", text, "latitude_deg=0", "longitude_deg=-180")
    recording = Trace(scenario.mobility).recording()
    assert isinstance(recording.content, Motion)
    assert abs(recording.content.x_m[recording.content.legs_of(2)]).max() < 20


def test_every_vehicle_of_the_trace_is_a_device_and_the_note_says_where_the_unit_stands(tmp_path: Path) -> None:
    use = trace_use(with_unit(tmp_path / "m.csv", METRES, "x_m=500", "y_m=0"))
    assert use is not None
    assert (use.server, use.devices, use.nodes, use.contacts_used) == ("fixed at 500.0, 0.0 m", 2, 3, 2)
    assert "server fixed at 500.0, 0.0 m, 2 of 2 other nodes" in trace_text(use)
    degrees = trace_use(with_unit(tmp_path / "d.csv", degrees_list(), "latitude_deg=60", "longitude_deg=20.00001"))
    assert degrees is not None
    assert degrees.server == "fixed at latitude 60.0, longitude 20.00001"


def test_a_repeated_trace_and_a_box_keep_the_unit(tmp_path: Path) -> None:
    scenario = with_unit(tmp_path / "m.csv", METRES, "x_m=500", "y_m=0")
    boxed = {"repeat": True, "box_m": (0.0, 10.0, 1000.0, 100.0)}
    scenario = scenario.model_copy(update={"rounds": 30, "mobility": scenario.mobility.model_copy(update=boxed)})
    plan = draw_plan(scenario, 0)
    # The southern car is outside the box; the unit itself stands outside and is heard all the same.
    assert plan.device.tolist() == [0, 0, 0]
    assert (plan.start_s + plan.end_s) / 2 == pytest.approx([50.0, 150.0, 250.0])


def test_contacts_and_plans_take_the_same_settings(tmp_path: Path) -> None:
    with_unit(tmp_path / "m.csv", METRES, "x_m=500", "y_m=0")
    overrides = ["mobility.server.kind=fixed", "mobility.server.x_m=500", "mobility.server.y_m=0"]
    found = plan_from_source(str(tmp_path / "m.csv"), seed=0, overrides=overrides)
    assert (found.server, found.devices, len(found.plan)) == ("fixed at 500.0, 0.0 m", ("north", "south"), 2)


def test_runs_and_the_map_have_the_unit(tmp_path: Path) -> None:
    scenario = with_unit(tmp_path / "m.csv", METRES, "x_m=500", "y_m=200")
    scenario = parse({**scenario.model_dump(mode="json"), "radio": {"range_m": 250.0}})
    world = replay_json([read_run(wayfare.run(scenario, "mads", out=tmp_path / "runs").folder)])
    assert world["names"] == ["north", "south"]
    # The map reaches up to the unit, which is further north than any car.
    assert world["motion"]["bottom_m"] + world["motion"]["height_m"] == 200.0


def test_a_name_is_a_server_of_kind_node() -> None:
    named = TraceMobility(file="x", server="bus")  # type: ignore[arg-type]
    assert named.server == NodeServer(name="bus")
    assert TraceMobility(file="x").server == NodeServer(name="auto")


def test_a_scenario_file_holds_the_unit(tmp_path: Path) -> None:
    scenario = with_unit(tmp_path / "m.csv", METRES, "x_m=500", "y_m=0")
    (tmp_path / "again.toml").write_text(to_toml(scenario))
    again = load(tmp_path / "again.toml")
    assert again == scenario
    assert again.mobility.server == RoadsideUnit(x_m=500.0, y_m=0.0)


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ((), r"mobility\.server = .*: needs either x_m and y_m, or latitude_deg and longitude_deg"),
        (("x_m=1",), r"mobility\.server = .*: needs either x_m and y_m, or latitude_deg and longitude_deg"),
        (
            ("x_m=1", "y_m=1", "latitude_deg=1"),
            r"mobility\.server = .*: needs either x_m and y_m, or latitude_deg and longitude_deg",
        ),
        (("latitude_deg=91", "longitude_deg=0"), r"mobility\.server\.latitude_deg = 91: .*less than or equal to 90"),
        (("z_m=1",), r"mobility\.server\.z_m = 1: unknown key; known keys: kind, x_m, y_m, latitude_deg"),
    ],
)
def test_half_a_position_is_refused(tmp_path: Path, position: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        with_unit(tmp_path / "m.csv", METRES, *position)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("5", r"mobility\.server = 5: must be the name of a node in quotes"),
        ("{kind='route'}", r"mobility\.server\.kind = 'route': must be one of node, fixed"),
        ("''", r"mobility\.server\.name = '': .*at least 1 character"),
    ],
)
def test_other_servers_are_refused(server: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load("fashion-small", ["mobility.model=trace", "mobility.file=x", f"mobility.server={server}"])


def test_degrees_on_a_trace_in_metres_are_refused(tmp_path: Path) -> None:
    scenario = with_unit(tmp_path / "m.csv", METRES, "latitude_deg=60", "longitude_deg=20")
    with pytest.raises(
        ScenarioError, match=r"mobility\.server\.latitude_deg = 60\.0: the positions of .*m\.csv are metres"
    ):
        draw_plan(scenario, 0)


def test_a_contact_list_has_no_place_for_a_unit(tmp_path: Path) -> None:
    scenario = with_unit(tmp_path / "c.csv", "start_s,end_s,a,b\n0,100,x,y\n", "x_m=0", "y_m=0")
    with pytest.raises(ScenarioError, match=r"mobility\.server\.kind = 'fixed': .*c\.csv is a list of contacts"):
        draw_plan(scenario, 0)
