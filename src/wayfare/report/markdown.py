"""A report as Markdown: the table, what its columns mean, and links to the figures beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from wayfare.files import writing
from wayfare.report.caveats import caveats_of
from wayfare.report.columns import plainly
from wayfare.report.study_tables import study_columns, study_notes, study_title
from wayfare.studies.results import StudyResults


def write_markdown(results: StudyResults, file: Path, figures: Sequence[Path]) -> None:
    text = markdown(results, [os.path.relpath(figure, file.parent) for figure in figures])
    with writing(file):
        file.write_text(text, encoding="utf-8")


def markdown(results: StudyResults, figures: Sequence[str]) -> str:
    warnings = [line for caveat in caveats_of(results) for line in (f"**Warning:** {caveat}.", "")]
    lines = [f"# {study_title(results)}", "", *warnings, *table_lines(results), ""]
    # Pages show pictures, not documents.
    lines += [f"{'' if figure.endswith('.pdf') else '!'}[{Path(figure).stem}]({figure})\n" for figure in figures]
    return "\n".join(lines)


def table_lines(results: StudyResults) -> list[str]:
    columns = [plainly(column) for column in study_columns(results)]
    manifest = results.manifest
    headings = [*manifest.varies, *(column.heading.replace("\n", " ") for column in columns)]
    lines = [_row(headings), _row(["---"] * len(headings))]
    for place, row in enumerate(results.rows):
        values = map(str, manifest.place_of(row.point).values())
        lines.append(_row([*values, *(column.cells[place] for column in columns)]))
    return [*lines, "", *(f"- {' '.join(note.split())}" for note in study_notes(results))]


def _row(cells: Sequence[str]) -> str:
    """A row of the table; what a reader's program would take for markup is text."""
    return f"| {' | '.join(cell.replace('|', '/').replace('<', '&lt;') for cell in cells)} |"
