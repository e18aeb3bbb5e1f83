import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from wayfare.cli.contacts import contacts_app
from wayfare.contacts.store import load_plan
from wayfare.errors import InputError, ScenarioError, TraceError, UnavailableError
from wayfare.mobility.traces.sumo_run import SumoScenario

LIST = "start_s,end_s,a,b\n" + "".join(f"{10 * i},{10 * i + 4},hub,{'xyz'[i % 3]}\n" for i in range(90))
SMALL = ("--set", "rounds=100", "--set", "fleet.devices=5")


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "contacts.csv"
    file.write_text(LIST)
    return str(file)


def call(*words):
    """The output of a command. Errors are raised; only the wrapper of the command line turns them into exit code 2."""
    result = CliRunner().invoke(contacts_app, list(words), catch_exceptions=False, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_preset_is_looked_at_without_naming_a_command():
    shown = call("fashion-small", *SMALL)
    for words in (
        "fashion-small (waypoint)",
        "contacts with the server",
        "KS distance",
        "chance of a complete dense upload",
    ):
        assert words in shown


def test_no_source_is_the_embedded_default():
    assert json.loads(call("--json", *SMALL))["source"] == "fashion-small"


def test_json_is_one_object_with_every_number(trace):
    found = json.loads(call(trace, "--json"))
    assert (found["kind"], found["server"], found["device_names"]) == ("contacts", "hub", ["x", "y", "z"])
    assert (found["devices"], found["contacts"], found["duration_s"]) == (3, 90, 894.0)
    assert found["contact"]["mean_s"] == pytest.approx(4.0)
    assert found["inter_contact"]["exponential"]["verdict"] == "fails"
    assert found["verdict"].startswith("The exponential model of the theory does not hold")
    assert found["upload"]["opportunities"] == 90
    assert 0 < found["upload"]["mean_kept_share"] <= 1
    assert found["skipped_lines"] == 0


def test_a_scenario_file_with_a_trace_gives_the_plan_of_its_run(trace, tmp_path):
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(
        f'extends = "fashion-small"\nrounds = 50\n[fleet]\ndevices = 2\n[mobility]\nmodel = "trace"\nfile = "{trace}"\n'
    )
    found = json.loads(call(str(scenario), "--json"))
    assert (found["devices"], found["duration_s"], found["contacts"]) == (2, 500.0, 34)


def test_a_server_can_be_named(trace):
    assert json.loads(call(trace, "--server", "x", "--json"))["device_names"] == ["hub", "y", "z"]
    with pytest.raises(ScenarioError, match="no node of the trace"):
        call(trace, "--server", "nobody")
    with pytest.raises(ScenarioError, match="only the nodes of a trace have names"):
        call("fashion-small", "--server", "x")


def test_the_range_and_any_field_can_be_changed():
    near, far = (json.loads(call("--json", *SMALL, "--range-m", range_m)) for range_m in ("50", "200"))
    assert near["contacts"] < far["contacts"]
    assert (near["range_m"], far["range_m"]) == (50.0, 200.0)
    wide = json.loads(call("--json", *SMALL, "--set", "radio.bandwidth_hz=1e9"))
    assert wide["upload"]["dense_chance"] == 1.0
    with pytest.raises(ScenarioError, match=r"radio\.bandwith_hz"):
        call("--set", "radio.bandwith_hz=1e9")


def test_bad_lines_are_an_error_and_lenient_counts_them_in_words_and_numbers(trace, tmp_path):
    broken = tmp_path / "broken.csv"
    broken.write_text(LIST + "5,1,hub,x\nrubbish\n")
    with pytest.raises(TraceError, match="line 92: the contact ends at 1, before it starts at 5"):
        call(str(broken))
    assert json.loads(call(str(broken), "--lenient", "--json"))["skipped_lines"] == 2
    assert "2 lines skipped; the first:" in call(str(broken), "--lenient")


def test_contacts_of_devices_with_each_other_are_found_when_asked():
    alone, together = (json.loads(call("--json", *SMALL, *more)) for more in ((), ("--devices-meet",)))
    assert alone["device_contacts"] == 0
    assert together["device_contacts"] > 0
    assert alone["contacts"] == together["contacts"]


def test_everything_is_written_and_can_be_looked_at_again(trace, tmp_path):
    files = [tmp_path / name for name in ("plan.npz", "plan.one", "plan.csv", "plan.png")]
    options = ("--save", "--export-one", "--out", "--plot")
    shown = call(trace, *(str(word) for pair in zip(options, files, strict=True) for word in pair))
    assert all(f"Wrote {file}" in shown.replace("\n", "") for file in files)
    assert files[3].read_bytes().startswith(b"\x89PNG")
    assert len(load_plan(files[0])) == 90
    first = json.loads(call(trace, "--json"))
    for file, kind in zip(files[:3], ("plan", "one", "contacts"), strict=True):
        found = json.loads(call(str(file), "--json"))
        assert found["kind"] == kind
        assert found["contact"] == first["contact"]
        assert found["inter_contact"] == first["inter_contact"]


def test_a_picture_of_an_unknown_kind_is_refused(trace, tmp_path):
    with pytest.raises(InputError, match="cannot write the figure"):
        call(trace, "--plot", str(tmp_path / "plan.xyz"))


def test_speeds_show_every_model_and_draw_the_figure(tmp_path):
    figure = tmp_path / "speeds.svg"
    words = ("speeds", "--speed-mps", "10", "--speed-mps", "40", "--set", "fleet.devices=3", "--plot", str(figure))
    shown = call(*words)
    assert all(model in shown for model in ("waypoint", "walk", "direction", "gauss-markov", "manhattan"))
    assert "<svg" in figure.read_text()
    found = json.loads(call(*words, "--model", "waypoint", "--json"))
    assert [point["speed_mps"] for point in found["points"]] == [10.0, 40.0]


def test_a_source_that_is_nothing_is_refused_by_name():
    with pytest.raises(
        ScenarioError, match=r"source = 'fashion-smal': neither a preset \(.*fashion-small.*\) nor an existing file"
    ):
        call("fashion-smal")


def test_without_sumo_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("wayfare.mobility.traces.sumo_run.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"SUMO is not installed: pip install 'wayfare\[sumo\]'"):
        call("sumo")


def test_numbers_sumo_could_not_use_are_refused():
    for field, value in (("vehicles", 0), ("duration_s", -5.0), ("grid_crossings", 1), ("spacing_m", 1.0)):
        with pytest.raises(InputError, match=f"{field} = {value}: must be"):
            SumoScenario(**{field: value})


def test_the_program_ends_with_2_and_one_line_on_bad_input(tmp_path):
    file = tmp_path / "trace.one"
    file.write_text("0 CONN a b down\n")
    program = [sys.executable, "-c", "from wayfare.cli.app import main; main()", "contacts", str(file)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "line 1: a b down without up" in done.stderr
    assert "Traceback" not in done.stderr


def test_short_contacts_are_dropped_and_long_ones_split(tmp_path):
    file = tmp_path / "contacts.csv"
    file.write_text("start_s,end_s,a,b\n0,100,hub,x\n0,5,hub,y\n200,202,hub,x\n")
    words = (str(file), "--min-contact-s", "3", "--max-exchange-s", "30")
    found = json.loads(call(*words, "--json"))
    assert (found["contacts"], found["exchanges"]) == (2, 5)
    assert found["notes"] == ["1 contact with the server dropped: shorter than 3 s"]
    assert "5 (at most 30 s each)" in call(*words)
    with pytest.raises(ScenarioError, match=r"contacts\.max_exchange_s \(3\.0\) must be at least round_s"):
        call(str(file), "--max-exchange-s", "3")
