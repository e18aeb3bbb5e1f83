"""Results on a trace say which trace, which server, how much of its time and how many of its contacts were used."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tests.conftest import SMALL

import wayfare
from wayfare.contacts import trace_use
from wayfare.records import run_json
from wayfare.report.markdown import markdown
from wayfare.report.sections import results_section
from wayfare.report.study_json import results_json
from wayfare.report.tables import comparison_table
from wayfare.scenario import Scenario
from wayfare.studies.results import read_results

# Three vehicles meet the bus; the third only once, and the last contact comes after the run.
CONTACTS = (
    *((0.0, 8.0, "bus", "a"), (30.0, 39.0, "bus", "b"), (50.0, 58.0, "bus", "c"), (70.0, 79.0, "a", "bus")),
    *((90.0, 98.0, "b", "bus"), (110.0, 118.0, "a", "b"), (900.0, 910.0, "a", "bus")),
)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    file = tmp_path_factory.mktemp("trace") / "town.csv"
    lines = (f"{start},{end},{one},{other}" for start, end, one, other in CONTACTS)
    file.write_text("\n".join(["start_s,end_s,a,b", *lines]) + "\n")
    others = [setting for setting in SMALL if not setting.startswith(("mobility", "fleet", "rounds"))]
    trace = ["mobility.model=trace", f"mobility.file={file}", "mobility.server=bus"]
    return wayfare.load("fashion-small", [*others, *trace, "rounds=20", "fleet.devices=2"])


def test_used_and_dropped_contacts_add_up_to_those_of_the_server(scenario: Scenario) -> None:
    use = trace_use(scenario)
    assert use is not None
    assert (use.server, use.devices, use.nodes) == ("bus", 2, 4)
    assert (use.used_s, use.duration_s) == (200.0, 910.0)
    assert (use.contacts_used, use.contacts_dropped) == (4, 2)
    assert not use.repeated


def test_a_trace_that_is_repeated_counts_each_contact_once(scenario: Scenario) -> None:
    mobility = scenario.mobility.model_copy(update={"repeat": True})
    use = trace_use(scenario.model_copy(update={"mobility": mobility, "rounds": 200}))
    assert use is not None
    assert use.repeated
    assert (use.contacts_used, use.contacts_dropped, use.used_s) == (5, 1, 910.0)


def test_drawn_mobility_has_no_trace(small: Scenario) -> None:
    assert trace_use(small) is None


def test_tables_pages_and_json_name_the_trace(scenario: Scenario, tmp_path: Path) -> None:
    results = read_results(wayfare.compare(scenario, ["mads", "afl"], seeds=1, jobs=1, out=tmp_path).folder)
    text = (
        "town.csv (contacts), server bus, 2 of 3 other nodes; 200 of 910 s from 0 s on; "
        "4 contacts used, 2 dropped (other nodes or times)"
    )
    console = Console(width=200, file=StringIO())
    with console.capture() as printed:
        console.print(comparison_table(results.schemes, results.runs, width=200))
    assert printed.get().count(text) == 1
    assert any(text in note for note in results_section(results)["notes"])
    assert text in markdown(results, [])
    (trace,) = results_json(results)["traces"]
    assert (trace["server"], trace["used_s"], trace["contacts_dropped"]) == ("bus", 200.0, 2)
    assert run_json(results.runs[0])["trace"] == trace


def passing(format_: str) -> str:
    """A bus stands at (0, 0); `a` and `b` pass it during a run of 100 s, and `c` passes it a minute later."""
    steps = [
        (t, {"bus": 0.0, "a": 10 * t - 300.0, "b": 500.0 - 10 * t, "c": 10 * t - 1600.0}) for t in range(0, 201, 5)
    ]
    if format_ == "positions":
        return "\n".join(["time,id,x,y", *(f"{t},{name},{x_m},0" for t, at in steps for name, x_m in at.items())])
    lines = ["<fcd-export>"]
    for t, at in steps:
        inside = (f'<vehicle id="{name}" x="{x_m}" y="0" speed="10"/>' for name, x_m in at.items())
        lines += [f'<timestep time="{t}">', *inside, "</timestep>"]
    return "\n".join([*lines, "</fcd-export>"])


@pytest.mark.parametrize(("format_", "suffix"), [("positions", "csv"), ("sumo", "xml")])
def test_a_comparison_on_positions_names_the_trace_too(format_: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"road.{suffix}"
    file.write_text(passing(format_))
    others = [setting for setting in SMALL if not setting.startswith(("mobility", "fleet", "rounds"))]
    trace = ["mobility.model=trace", f"mobility.file={file}", "mobility.server=bus"]
    scenario = wayfare.load("fashion-small", [*others, *trace, "rounds=10", "fleet.devices=2"])
    table = str(wayfare.compare(scenario, ["mads", "afl"], seeds=1, jobs=1, out=tmp_path / "runs"))
    text = " ".join(table.split())
    assert f"road.{suffix}" in text
    assert "server bus, 2 of 3 other nodes; 100 of 200 s from 0 s on" in text
    assert "2 contacts used, 1 dropped (other nodes or times)" in text
