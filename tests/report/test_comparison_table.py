"""The table of a comparison never cuts a number or a name, even in a narrow window."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import wayfare
from wayfare.records import find_runs, read_run
from wayfare.report.tables import comparison_table
from wayfare.scenario import Scenario
from wayfare.studies import summarise


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.conftest import SMALL

    scenario: Scenario = wayfare.load("fashion-small", [*SMALL, "rounds=20", "learning.evaluate_every_rounds=10"])
    folder = tmp_path_factory.mktemp("runs")
    wayfare.compare(scenario, ["mads", "afl:fitting:paced", "fedmobile:billed:fitting:paced"], seeds=2, out=folder)
    return folder


@pytest.mark.parametrize("width", [40, 60, 70, 80, 100, 160])
def test_numbers_and_names_are_whole_or_their_column_is_left_out(width: int, folder: Path) -> None:
    records = [read_run(each) for each in find_runs(folder)]
    schemes = [
        replace(scheme, staleness_rounds_mean=20_212.0, score_ci95=0.5123, energy_joules_mean=1_234_567.0)
        for scheme in summarise(records)
    ]
    console = Console(width=width, file=StringIO())
    with console.capture() as printed:
        console.print(comparison_table(schemes, records, width=width))
    text = printed.get()
    table, _, notes = text.partition("\n\naccuracy")
    words = table.split()
    assert {"MADS", "FedMobile"} <= set(words)
    for choice in ("paced", "billed", "fitting"):
        assert choice in words
    left_out = notes.partition("omitted")[2].partition(":")[0]
    assert words.count("20212") == (0 if "age" in left_out else 3)
    assert words.count("1,234,567!") == (0 if "energy J" in left_out else 3)
    assert bool(left_out) == (width < 80)
    assert words.count("51.2") >= 3


def test_long_notes_wrap_beside_their_terms(folder: Path) -> None:
    records = [read_run(each) for each in find_runs(folder)]
    console = Console(width=60, file=StringIO())
    with console.capture() as printed:
        console.print(comparison_table(summarise(records), records, width=60))
    lines = printed.get().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("failed  "))
    assert lines[start + 1].split() == ["contact;", "they", "waste", "energy"]
    assert lines[start + 1].index("contact;") == lines[start].index("uploads per device")
    assert "the mean of the last" in printed.get()
