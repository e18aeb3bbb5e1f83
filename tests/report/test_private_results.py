"""Epsilon in records, tables, JSON and frames."""

from __future__ import annotations

from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tests.conftest import SMALL

import wayfare
from wayfare.methods.privacy import Private
from wayfare.records import find_runs, read_run, run_json, summarise_run
from wayfare.report.study_json import results_json
from wayfare.report.study_tables import plain_table, study_table
from wayfare.report.tables import comparison_table
from wayfare.studies.results import StudyResults, read_results, results_of

RULE = Private(noise=2.0, clip_norm=0.1)
SCHEMES = ["mads", "mads + private(noise=2.0, clip_norm=0.1)"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    scenario = wayfare.load("fashion-small", [*SMALL, "rounds=20", "learning.evaluate_every_rounds=10"])
    folder = wayfare.compare(scenario, SCHEMES, seeds=2, jobs=1, out=tmp_path_factory.mktemp("runs")).folder
    return read_results(Path(folder))


def test_a_record_holds_releases_and_epsilon_of_every_device(results: StudyResults) -> None:
    for folder in find_runs(results.folder):
        record = read_run(folder)
        if record.scheme == "mads":
            assert record.privacy is None
            assert summarise_run(record).epsilon is None
            assert run_json(record)["privacy"] is None
            continue
        assert record.privacy is not None
        contacts = [int((record.contacts["device"] == device).sum()) for device in range(len(record.budgets_joules))]
        # MADS uses every contact.
        assert record.privacy.releases == contacts
        assert record.privacy.epsilon == [RULE.epsilon(releases) for releases in contacts]
        assert summarise_run(record).epsilon == max(record.privacy.epsilon)
        assert run_json(record)["privacy"] == asdict(record.privacy)


def test_a_comparison_shows_the_largest_epsilon_and_infinity_without_noise(results: StudyResults) -> None:
    console = Console(width=160, file=StringIO())
    with console.capture() as printed:
        console.print(comparison_table(results.schemes, results.runs, width=160))
    text = printed.get()
    largest = max(max(run.privacy.epsilon) for run in results.runs if run.privacy is not None)
    assert "∞" in text
    assert f"{largest:.3g}" in text
    assert "at delta = 1e-05" in text


def test_a_study_reports_epsilon_where_it_exists(results: StudyResults) -> None:
    plain, private = results_json(results)["rows"]
    assert "epsilon" not in plain["metrics"]
    assert private["metrics"]["epsilon"]["mean"] > 0
    assert "epsilon" not in plain_table(results)[0]
    assert "epsilon" in results.results[-1].measures
    assert "epsilon" not in results.results[0].measures


def test_a_study_with_the_metric_has_a_column(results: StudyResults) -> None:
    asked = replace(results.manifest, metrics=["score", "epsilon"])
    results = results_of(results.folder, asked, results.results, 0)
    heading, plain, private = plain_table(results)
    at = heading.index("epsilon")
    assert plain[at] == ""
    assert float(private[at]) > 0
    console = Console(width=120, file=StringIO())
    with console.capture() as printed:
        console.print(study_table(results, width=120))
    assert "differential privacy of the device with the most releases, at delta = 1e-05" in printed.get()
