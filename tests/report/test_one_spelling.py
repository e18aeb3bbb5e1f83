"""Figures, tables and pages call a scheme by one name, and one function decides it."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import wayfare
from wayfare.methods import scheme_label
from wayfare.records import summarise_run
from wayfare.report.figures import score_curves
from wayfare.report.labels import figure_label
from wayfare.report.markdown import markdown
from wayfare.report.study_json import results_json
from wayfare.report.tables import comparison_table
from wayfare.report.terminal_curves import terminal_curves
from wayfare.report.verdict import details, headline, verdict_of
from wayfare.report.write import write_report
from wayfare.scenario import Scenario
from wayfare.studies.export import run_rows
from wayfare.studies.results import StudyResults, read_results

NAMES = ("mads", "afl-spar:paced")
LABELS = ("MADS", "paced AFL-Spar")


@pytest.fixture(scope="module")
def results(small: Scenario, tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    folder = tmp_path_factory.mktemp("spelling")
    return read_results(wayfare.compare(small, list(NAMES), seeds=1, jobs=1, out=folder).folder)


def says_only_labels(text: str) -> None:
    for name, label in zip(NAMES, LABELS, strict=True):
        assert label in text
        assert not re.search(rf"(?<![\w/=,-]){name}(?![\w/-])", text), f"{name} in {text[:200]}"


def test_a_table_in_a_terminal(results: StudyResults) -> None:
    console = Console(width=200, record=True, file=StringIO())
    console.print(comparison_table(results.schemes, results.runs, width=200))
    console.print(terminal_curves(results.schemes, results.runs, width=100))
    says_only_labels(console.export_text())


def test_a_verdict(results: StudyResults) -> None:
    verdict = verdict_of([[summarise_run(run)] for run in results.runs])
    says_only_labels("\n".join([headline(verdict), *details(verdict)]))


def test_markdown(results: StudyResults) -> None:
    says_only_labels(markdown(results, []))


def test_curves(results: StudyResults, tmp_path: Path) -> None:
    score_curves(results.schemes, results.runs, tmp_path / "curves.svg")
    says_only_labels((tmp_path / "curves.svg").read_text())


def test_a_page_and_its_figures(results: StudyResults, tmp_path: Path) -> None:
    page, *figures = write_report(results.folder, tmp_path / "page.html", figures="svg")
    html = page.read_text()
    body = html[html.index("<main") : html.index('id="repeat"')]
    for label in LABELS:
        assert label in body
    assert not re.search(r">\s*(afl-spar:paced|mads)\s*<", body)
    assert '"label":"paced AFL-Spar"' in html
    for figure in figures:
        if figure.suffix == ".svg":
            assert "afl-spar:paced" not in figure.read_text()


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("mads-rd", "MADS-RD"),
        ("afl:fitting:paced", "paced fitting AFL"),
        ("afl-spar:paced + random-k", "paced AFL-Spar + random-k"),
        ("statistics:means:pilot:paced", "paced Statistics (means, pilot)"),
        ("mads-rd:from-statistics", "MADS-RD (from statistics)"),
        ("mads + mine.py:Sketch(width=100)", "MADS + mine.py:Sketch(width=100)"),
    ],
)
def test_choices_stand_beside_the_name_as_in_a_sentence(name: str, label: str) -> None:
    assert scheme_label(name) == label


def test_tables_for_programs_have_the_name_itself(results: StudyResults) -> None:
    assert {row["scheme"] for row in run_rows(results)} == set(NAMES)
    assert {row["scheme"] for row in results_json(results)["rows"]} == set(NAMES)


def test_names_that_are_not_ours_stay_as_they_are() -> None:
    assert scheme_label("patient:fitting") == "patient:fitting"
    assert scheme_label("mine.py:Patient") == "mine.py:Patient"
    assert scheme_label("_own") == "_own"
    # Matplotlib leaves a name out of a legend that begins with an underscore.
    assert figure_label("_own") == "\u200b_own"
    assert figure_label("mads") == "MADS"
