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
    assert printed.get().count(f"trace      {text}") == 1
    assert any(text in note for note in results_section(results)["notes"])
    assert text in markdown(results, [])
    (trace,) = results_json(results)["traces"]
    assert (trace["server"], trace["used_s"], trace["contacts_dropped"]) == ("bus", 200.0, 2)
    assert run_json(results.runs[0])["trace"] == trace
