"""The parts of a page that are text and tables. Whatever comes from a file or a name is escaped here."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wayfare.records import RunRecord, RunSummary
from wayfare.report.caveats import caveats_of
from wayfare.report.columns import ENERGY, OVER_BUDGET, Column, side_by_side
from wayfare.report.digest import RunDigest
from wayfare.report.palette import look_of
from wayfare.report.repeat import made_with, recipe_of
from wayfare.report.study_tables import study_columns, study_notes
from wayfare.report.tables import comparison_columns, comparison_notes
from wayfare.report.verdict import Verdict, details, headline, study_details, study_headline, verdict_of
from wayfare.scenario import parse
from wayfare.studies.jobs import error_file
from wayfare.studies.results import StudyResults
from wayfare.version import __version__

escaped = html.escape
# What fits beside each other on a page of 1280 px, in characters, the space between two columns included.
_PAGE_WIDTH, _PAGE_GAP = 125, 3


def header(results: StudyResults) -> str:
    """Who won, by how much, and what was compared."""
    manifest, scenario = results.manifest, parse(results.manifest.scenarios[0])
    runs, seeds = len(results.results), results.seeds
    kind = "Study" if not manifest.is_comparison else "Run" if runs == 1 else "Comparison"
    facts = [
        f"{scenario.fleet.devices} devices",
        f"{scenario.rounds:,} rounds of {scenario.round_s:g} s",
        f"{_mobility(scenario.mobility.model_dump())}",
        f"task {scenario.learning.task}",
        f"{seeds} seed{'s' if seeds > 1 else ''}",
    ]
    if manifest.axes:
        facts = [f"{len(manifest.points)} points over {', '.join(manifest.axes)}", f"{runs} runs", facts[-1]]
        verdicts = _verdicts(results)
        claim, lines = study_headline(verdicts), [*filter(None, [manifest.title]), *study_details(verdicts)]
    else:
        verdict = verdict_of([[result.summary for result in row.results] for row in results.rows])
        claim, lines = headline(verdict), details(verdict)
    if not any(result.summary.contacts for result in results.results):
        claim, lines = "Nothing was learned: no device met the server", []
    warning = ""
    if seeds == 1:
        warning = _warning("One seed is one world: it shows what can happen, not what holds. Take at least three.")
    elif min(len(row.results) for row in results.rows) < seeds:
        warning = _warning(
            "Not every scheme has all the seeds. The headline counts those that all have; of the table, compare "
            "differences only, which are paired."
        )
    warning += "".join(map(_warning, caveats_of(results)))
    if results.missing:
        warning += _warning(
            f"Incomplete: {results.missing} of {len(manifest.runs)} runs are missing, {results.failed} of them failed."
        )
    lede = "".join(f"<li>{escaped(line)}</li>" for line in lines)
    return (
        f'<p class="kind">{kind} <span class="name">{escaped(manifest.name)}</span></p>'
        f'<h1>{escaped(claim)}</h1><ul class="lede">{lede}</ul>{warning}'
        f'<p class="facts">{" · ".join(f"<span>{escaped(fact)}</span>" for fact in facts)}</p>'
    )


def results_section(results: StudyResults) -> str:
    columns, notes = study_columns(results), study_notes(results)
    if results.manifest.is_comparison:
        runs = [[result.summary for result in row.results] for row in results.rows]
        columns = comparison_columns(results.schemes, runs)
        traces = [result.trace for result in results.results]
        notes = comparison_notes(results.schemes, results.results[0].averaged, traces)
    tables = [_results_table(results, group) for group in side_by_side(columns, _PAGE_WIDTH, _PAGE_GAP)]
    return "".join(tables) + _notes([_note(note) for note in notes])


def _results_table(results: StudyResults, columns: Sequence[Column]) -> str:
    headings, left = [_heading(column.heading) for column in columns], sum(column.left for column in columns)
    body = []
    for place, row in enumerate(results.rows):
        if results.manifest.axes and (place == 0 or results.rows[place - 1].point != row.point):
            name = escaped(results.manifest.point_name(row.point))
            body.append(f'<tr class="point"><th scope="rowgroup" colspan="{len(columns)}">{name}</th></tr>')
        look = look_of(row.scheme, results.manifest.schemes)
        swatch = f'<span class="swatch" style="--light:{look.light};--dark:{look.dark}"></span>'
        cells = [_cell(column, place) for column in columns]
        scheme = f' data-scheme="{escaped(row.scheme)}"'
        # A long name breaks before a choice, not within a word.
        name = cells[0].replace(":", "<wbr>:")
        body.append(_row(headings, [swatch + name, *cells[1:]], left=left, attributes=scheme))
    return _table(headings, body, left=left)


def point_choice(results: StudyResults) -> str:
    names = [results.manifest.point_name(place) for place in range(len(results.manifest.points))]
    return "".join(f'<option value="{place}">{escaped(name)}</option>' for place, name in enumerate(names))


def scheme_choice(world: Sequence[RunRecord]) -> str:
    return "".join(f'<option value="{place}">{escaped(run.scheme)}</option>' for place, run in enumerate(world))


def failures_section(results: StudyResults, digests: Mapping[tuple[int, str], Sequence[RunDigest]]) -> str:
    """Uploads that a contact cut short, contacts without any, devices over budget; and runs that failed."""
    headings = [
        "scheme",
        "contacts",
        "nothing sent, %",
        "uploads cut short, %",
        "energy lost, J",
        "devices over budget, %",
    ]
    if results.manifest.axes:
        headings.insert(0, "point")
    body = []
    for point, scheme in ((row.point, row.scheme) for row in results.rows):
        runs = digests[point, scheme]
        contacts = sum(run.contacts for run in runs)
        shares = [share for run in runs for share in run.budget_shares]
        over = sum(share > OVER_BUDGET for share in shares) / len(shares)
        cells = [
            escaped(scheme),
            f"{contacts:,}",
            _percent(sum(run.silent for run in runs), contacts),
            _percent(sum(run.failed for run in runs), contacts),
            f"{sum(run.failed_joules for run in runs) / len(runs):,.0f}",
            f"{100 * over:.0f}",
        ]
        if results.manifest.axes:
            cells.insert(0, escaped(results.manifest.point_name(point)))
        body.append(_row(headings, cells, left=2 if results.manifest.axes else 1))
    notes = [
        "contacts: of all seeds; energy lost: mean over seeds, all devices, relays too; over budget: by more than 3 %"
    ]
    failed = _failed_runs(results)
    runs_text = (
        f"<h3>Runs that failed</h3><ul>{''.join(f'<li>{escaped(line)}</li>' for line in failed)}</ul>" if failed else ""
    )
    return _table(headings, body, left=2 if results.manifest.axes else 1) + _notes(notes) + runs_text


def repeat_section(results: StudyResults, world: Sequence[RunRecord], walls_s: Sequence[float]) -> str:
    meta: Mapping[str, Any] = world[0].meta if world else {}
    recipe = recipe_of(results, meta)
    commands = "\n".join(recipe.commands)
    parts = [
        "<p>Save what is below as files, and type:</p>",
        _code(commands, "command"),
        *(f'<p class="notes">{escaped(note)}</p>' for note in recipe.notes),
    ]
    for name, content in recipe.files.items():
        parts.append(f'<details class="file"><summary>{escaped(name)}</summary>{_code(content, "file")}</details>')
    facts = made_with(meta, walls_s) | {"page written by": f"Wayfare {__version__}"}
    rows = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in facts.items())
    return "".join(parts) + f'<dl class="versions">{rows}</dl>'


def _verdicts(results: StudyResults) -> list[Verdict]:
    by_point: dict[int, list[list[RunSummary]]] = {}
    for row in results.rows:
        by_point.setdefault(row.point, []).append([result.summary for result in row.results])
    return [verdict_of(runs) for runs in by_point.values()]


def _cell(column: Column, place: int) -> str:
    """A cell; words say what colour says."""
    text = escaped(column.cells[place])
    if not column.is_marked(place):
        return text
    over = f'<span class="over">{text}<small> over budget</small></span>'
    return over if column.heading == ENERGY else f"<strong>{text}</strong>"


def _heading(lines: str) -> str:
    """The lines of a heading as one; a unit follows a comma."""
    name, _, unit = lines.partition("\n")
    joined = f"{name}, {unit}" if unit in ("%", "J", "s", "rounds", "Mbit") else f"{name} {unit}".strip()
    return joined.replace(" /", " per ")


def _note(note: str) -> str:
    """`word      meaning` of a terminal as `word: meaning`."""
    word, gap, meaning = note.partition("  ")
    return f"{word}: {meaning.strip()}" if gap else note


def _mobility(mobility: Mapping[str, Any]) -> str:
    speed = f" at {mobility['speed_mps']:g} m/s" if "speed_mps" in mobility else ""
    if mobility["model"] == "trace":
        return f"trace {Path(mobility['file']).name}"
    return f"{mobility['model']} motion{speed}" if speed else f"{mobility['model']} contacts"


def _failed_runs(results: StudyResults) -> list[str]:
    lines, names = [], {error_file(Path(run.folder_name)).name for run in results.manifest.runs}
    for file in sorted(file for file in results.folder.glob("**/*.error.txt") if file.name in names):
        try:
            said = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            said = []
        lines.append(f"{file.name.removesuffix('.error.txt')}: {said[-1] if said else 'no reason known'}")
    return lines


def _code(text: str, kind: str) -> str:
    copy = '<button type="button" class="copy">Copy</button>'
    return f'<div class="code">{copy}<pre class="{kind}">{escaped(text)}</pre></div>'


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "0"


def _warning(text: str) -> str:
    return f'<p class="warning" role="note">{escaped(text)}</p>'


def _notes(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{escaped(note)}</li>" for note in notes if note)}</ul>'


def _table(headings: Sequence[str], rows: Sequence[str], *, left: int) -> str:
    head = "".join(
        f'<th scope="col"{_left(place < left)}>{escaped(heading)}</th>' for place, heading in enumerate(headings)
    )
    return f'<table class="figures"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _row(headings: Sequence[str], cells: Sequence[str], *, left: int, attributes: str = "") -> str:
    """Cells carry their heading: on a narrow screen each row becomes a card."""
    first = f'<th scope="row" class="left">{cells[0]}</th>'
    rest = "".join(
        f'<td data-label="{escaped(heading)}"{_left(place < left)}>{cell}</td>'
        for place, (heading, cell) in enumerate(zip(headings[1:], cells[1:], strict=True), start=1)
    )
    return f"<tr{attributes}>{first}{rest}</tr>"


def _left(left: bool) -> str:
    return ' class="left"' if left else ""
