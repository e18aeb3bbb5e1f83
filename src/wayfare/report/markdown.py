"""A report as Markdown: the table, notes on its columns, and links to figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from wayfare.files import writing
from wayfare.report.caveats import caveats_of
from wayfare.report.study_tables import plain_table, study_notes, study_title
from wayfare.studies.results import StudyResults


def write_markdown(results: StudyResults, file: Path, figures: Sequence[Path]) -> None:
    text = markdown(results, [os.path.relpath(figure, file.parent) for figure in figures])
    with writing(file):
        file.write_text(text, encoding="utf-8")


def markdown(results: StudyResults, figures: Sequence[str]) -> str:
    warnings = [line for caveat in caveats_of(results) for line in (f"**Warning:** {caveat}.", "")]
    lines = [f"# {study_title(results)}", "", *warnings, *table_lines(results), ""]
    # Show images inline; link to PDF files.
    lines += [f"{'' if figure.endswith('.pdf') else '!'}[{Path(figure).stem}]({figure})\n" for figure in figures]
    return "\n".join(lines)


def table_lines(results: StudyResults) -> list[str]:
    headings, *rows = plain_table(results)
    notes = [f"- {note}" for note in study_notes(results)]
    return [_row(headings), _row(["---"] * len(headings)), *map(_row, rows), "", *notes]


def _row(cells: Sequence[str]) -> str:
    """A row of the table, with markup escaped."""
    return f"| {' | '.join(cell.replace('|', '/').replace('<', '&lt;') for cell in cells)} |"
