"""With the real SUMO: network, routes, simulation, floating car data."""

import json
import os

import pytest
from typer.testing import CliRunner

from wayfare.cli.contacts import contacts_app
from wayfare.errors import InputError, RunError, UnavailableError
from wayfare.mobility.traces import read_recording
from wayfare.mobility.traces.sumo_run import SumoScenario, run_sumo, sumo_home

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def _needs_sumo():
    try:
        sumo_home()
    except UnavailableError as error:
        # In continuous integration a missing part is a failure.
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))


def test_the_fleet_drives_all_the_time_and_the_seed_decides_how(tmp_path):
    scenario = SumoScenario(vehicles=12, duration_s=120, grid_crossings=4, spacing_m=150)
    recordings = [
        read_recording(run_sumo(scenario, tmp_path / str(place), seed)) for place, seed in enumerate((1, 1, 2))
    ]
    one, same, other = recordings
    assert one.names == tuple(str(vehicle) for vehicle in range(12))
    assert one.duration_s == 119.0
    present_s = one.content.end_s - one.content.start_s
    assert present_s.sum() > 0.9 * 12 * 119
    assert one.content.x_m.tolist() == same.content.x_m.tolist()
    assert one.content.x_m.tolist() != other.content.x_m.tolist()


def test_a_network_of_ones_own_is_driven_on(tmp_path):
    run_sumo(SumoScenario(vehicles=1, duration_s=5, grid_crossings=3), tmp_path, 0)
    network = tmp_path / "grid.net.xml"
    recording = read_recording(run_sumo(SumoScenario(vehicles=5, duration_s=30, net_file=network), tmp_path / "b", 0))
    assert len(recording.names) == 5


def test_a_file_that_is_no_network_is_refused(tmp_path):
    file = tmp_path / "net.xml"
    with pytest.raises(InputError, match="no such file"):
        run_sumo(SumoScenario(net_file=file), tmp_path, 0)
    file.write_text("<net><edge id='a'")
    with pytest.raises(InputError, match="not a SUMO network"):
        run_sumo(SumoScenario(net_file=file), tmp_path, 0)
    file.write_text("<net/>")
    with pytest.raises(InputError, match="no street"):
        run_sumo(SumoScenario(net_file=file), tmp_path, 0)
    edge = "<edge id='{0}'><lane id='{0}_0' length='10'/></edge>"
    file.write_text(f"<net>{edge.format('a')}{edge.format('b')}<connection from='a' to='b'/></net>")
    with pytest.raises(RunError, match="sumo failed: "):
        run_sumo(SumoScenario(net_file=file), tmp_path, 0)


def test_the_command_simulates_looks_and_keeps_the_trace(tmp_path):
    kept = tmp_path / "kept.xml"
    words = ["sumo", "--grid", "4", "--vehicles", "10", "--duration", "60", "--fcd", str(kept), "--json"]
    result = CliRunner().invoke(contacts_app, words, catch_exceptions=False)
    found = json.loads(result.stdout)
    assert (found["kind"], found["devices"], found["source"]) == ("sumo-fcd", 9, "SUMO on 4 x 4 crossings")
    assert len(read_recording(kept).names) == 10
