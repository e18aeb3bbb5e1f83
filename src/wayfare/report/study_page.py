"""The report of a study: one HTML page with its figures inside, and the same as Markdown."""

from __future__ import annotations

import base64
import html
from pathlib import Path

from wayfare.errors import InputError, RunFolderError
from wayfare.report.study_figures import study_figure
from wayfare.report.study_tables import study_columns, study_notes, study_title
from wayfare.studies.results import StudyResults
from wayfare.version import __version__

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th { vertical-align: bottom } td.left, th.left { text-align: left } tr.point td { text-align: left; font-style: italic }
.wide { overflow-x: auto } img { max-width: 100% } .notes { color: #555; font-size: 13px }
"""


def write_study_report(results: StudyResults, folder: Path) -> Path:
    """Write figures, a Markdown page and an HTML page that needs nothing beside it; where the HTML page is."""
    if results.metric is None:
        raise RunFolderError(f"{results.folder}: no run is finished yet, there is nothing to report")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot write here: {error.strerror}") from None
    figures = {}
    for name in dict.fromkeys(name for row in results.rows for name in row.estimates):
        figures[name] = folder / f"{name}.png"
        study_figure(results, name, figures[name])
    page = folder / "index.html"
    try:
        page.write_text(_html(results, figures), encoding="utf-8")
        (folder / "report.md").write_text(study_markdown(results, figures), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot write here: {error.strerror}") from None
    return page


def study_markdown(results: StudyResults, figures: dict[str, Path]) -> str:
    """The table as Markdown, with links to the figures beside it."""
    columns = study_columns(results)
    headings = [*results.manifest.axes, *(column.heading.replace("\n", " ") for column in columns)]
    lines = [f"# {study_title(results)}", "", _row(headings), _row(["---"] * len(headings))]
    for place, row in enumerate(results.rows):
        values = [str(results.manifest.points[row.point][axis]) for axis in results.manifest.axes]
        lines.append(_row([*values, *(column.cells[place] for column in columns)]))
    lines += ["", *(f"- {' '.join(note.split())}" for note in study_notes(results)), ""]
    lines += [f"![{name}]({file.name})\n" for name, file in figures.items()]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _html(results: StudyResults, figures: dict[str, Path]) -> str:
    title, columns = html.escape(study_title(results)), study_columns(results)
    head = "".join(
        f"<th{_left(column.left)}>{html.escape(column.heading).replace(chr(10), '<br>')}</th>" for column in columns
    )
    body = []
    for place, row in enumerate(results.rows):
        if results.manifest.axes and (place == 0 or results.rows[place - 1].point != row.point):
            name = html.escape(results.manifest.point_name(row.point))
            body.append(f'<tr class="point"><td colspan="{len(columns)}">{name}</td></tr>')
        cells = "".join(f"<td{_left(column.left)}>{html.escape(column.cells[place])}</td>" for column in columns)
        body.append(f"<tr>{cells}</tr>")
    notes = "".join(f"<li>{html.escape(' '.join(note.split()))}</li>" for note in study_notes(results))
    pictures = "".join(
        f'<p><img alt="{html.escape(name)}" src="data:image/png;base64,'
        f'{base64.b64encode(file.read_bytes()).decode()}"></p>'
        for name, file in figures.items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f'<h1>{title}</h1><div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
        f'</div><ul class="notes">{notes}</ul>{pictures}<p class="notes">Wayfare {__version__}</p></html>\n'
    )


def _left(left: bool) -> str:
    return ' class="left"' if left else ""
