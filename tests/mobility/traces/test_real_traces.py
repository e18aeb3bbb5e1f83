"""Real files, where available: WAYFARE_TRACES, or shared/data/mobility beside the checkout."""

import os
from pathlib import Path

import pytest

import wayfare
from wayfare.contacts import draw_plan, opportunities
from wayfare.contacts.source import plan_from_source
from wayfare.errors import ScenarioError
from wayfare.mobility.traces import read_recording

FOLDER = Path(os.environ.get("WAYFARE_TRACES") or Path(__file__).parents[4] / "shared" / "data" / "mobility")
TAXIS, HAGGLE = "cabspotting_2008-05-20.tar.xz", "haggle_intel.one.tsv"
ZURICH, SUMO = "zurich_unterstrass.ns2.mob", "sumo_grid_fcd.xml.xz"
RUNS = {
    TAXIS: ("radio.range_m=300", "mobility.box_m=[-2500,-2500,2500,2500]", "mobility.start_s=36000"),
    ZURICH: ("radio.range_m=300", "mobility.repeat=true"),
    SUMO: ("mobility.repeat=true",),
}

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no real traces at hand (WAYFARE_TRACES)")


@pytest.mark.parametrize(
    ("name", "kind", "nodes", "duration_s"),
    [
        (TAXIS, "gps", 112, 86_153),
        (HAGGLE, "one", 9, 359_190),
        (ZURICH, "ns2", 99, 300.01),
        (SUMO, "sumo-fcd", 30, 599),
    ],
)
def test_every_real_file_imports_without_a_bad_line(name, kind, nodes, duration_s):
    recording = read_recording(FOLDER / name)
    assert (recording.format, len(recording.names), recording.skipped) == (kind, nodes, 0)
    assert recording.duration_s == pytest.approx(duration_s)


@pytest.mark.parametrize("name", RUNS)
def test_twenty_devices_of_the_embedded_default_meet_the_server(name):
    overrides = ["mobility.model=trace", f"mobility.file={FOLDER / name}", *RUNS[name]]
    scenario = wayfare.load("fashion-small", overrides)
    plan = draw_plan(scenario, 0)
    assert (plan.devices, plan.duration_s) == (20, scenario.duration_s)
    meets = opportunities(plan, scenario.round_s, scenario.rounds)
    assert len(meets) >= 20
    assert len(set(meets.device.tolist())) >= 10


def test_nine_nodes_are_too_few_for_twenty_devices_and_the_message_says_so():
    scenario = wayfare.load("fashion-small", ["mobility.model=trace", f"mobility.file={FOLDER / HAGGLE}"])
    with pytest.raises(ScenarioError, match=r"fleet\.devices = 20: the trace has only 8 devices besides the server"):
        draw_plan(scenario, 0)


def test_the_trace_of_vehicles_on_a_grid_is_looked_at_whole():
    found = plan_from_source(str(FOLDER / SUMO), seed=0, range_m=200.0)
    assert (found.plan.devices, found.kind) == (29, "sumo-fcd")
    assert len(found.plan) > 50
