"""The table of a study cuts neither a number nor a name, and marks energy over the budget."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from wayfare.methods import scheme_label
from wayfare.report.columns import Column, in_terminal
from wayfare.report.markdown import table_lines
from wayfare.report.notebook import ShownResults
from wayfare.report.page import templates
from wayfare.report.sections import results_section
from wayfare.report.study_tables import study_table
from wayfare.studies.results import StudyResults, read_results

LONG_NAME = "afl:fitting:paced + buffer(size=5) + a_memory_rule_that_nobody_would_ever_want_to_type"


@pytest.fixture(scope="module")
def results(study: Path) -> StudyResults:
    """A study whose numbers are large, whose intervals are wide and one of whose schemes has a long name."""
    read = read_results(study)
    rows = []
    for row in read.rows:
        estimates = {
            name: replace(one, mean=20_212_345.0 if name != "score" else one.mean, sd=0.4123, ci95=0.5123)
            for name, one in row.estimates.items()
        }
        name = LONG_NAME if row.scheme == "afl" else row.scheme
        spent = [
            replace(result, summary=replace(result.summary, energy_joules=99.0 if row.scheme == "afl" else 9.0))
            for result in row.results
        ]
        rows.append(replace(row, scheme=name, estimates=estimates, results=spent))
    return replace(read, rows=rows, manifest=replace(read.manifest, schemes=["mads", LONG_NAME]))


def printed(results: StudyResults, width: int) -> str:
    console = Console(width=width, file=StringIO())
    with console.capture() as text:
        console.print(study_table(results, width=width))
    return text.get()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_numbers_and_names_are_whole_in_every_window(width: int, results: StudyResults) -> None:
    text = printed(results, width)
    words = text.split()
    assert words.count("20,212,345") == words.count("20,212,345!") == 2
    assert words.count("2,021,234,500") == len(results.rows)  # kept, in per cent
    assert words.count("51.2") == len(results.rows)
    folded = in_terminal([Column(heading="scheme", cells=[scheme_label(LONG_NAME)])])[0].cells[0]
    assert set(folded.split()) <= set(words)


def test_a_folded_name_has_all_its_characters_in_order() -> None:
    for name in (LONG_NAME, "mads", "mine.py:Patient", "x" * 100, "fedmobile:billed:fitting:paced", "-" * 70):
        folded = in_terminal([Column(heading="scheme", cells=[name])])[0].cells[0]
        assert re.sub(r"\s", "", folded) == re.sub(r"\s", "", name)
        assert max(map(len, folded.split("\n"))) <= 20


def test_energy_over_the_budget_is_marked_in_terminal_markdown_notebook_and_page(results: StudyResults) -> None:
    assert printed(results, 100).count("20,212,345!") == 2
    assert "marked if more than 3 % over budget" in printed(results, 100)
    assert "\n".join(table_lines(results)).count("20,212,345! |") == 2
    assert ShownResults.of(results)._repr_html_().count("<td>20,212,345!</td>") == 2
    shown = results_section(results)
    parts: Any = templates().get_template("tables.html").module
    html = "".join(parts.table(columns, shown["rows"]) for columns in shown["tables"])
    assert html.count("over budget</small>") == 2
