"""The parts of a page that are text and tables. Whatever comes from a file or a name is escaped here."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wayfare.records import RunRecord, RunSummary, SchemeSummary, paired_difference, summarise_scheme
from wayfare.report.digest import RunDigest
from wayfare.report.labels import ASSUMED, metric_words_and_unit
from wayfare.report.palette import look_of
from wayfare.report.repeat import made_with, recipe_of
from wayfare.report.study_tables import study_columns, study_notes
from wayfare.report.verdict import beside, details, headline, over_budget, score_text, verdict_of
from wayfare.scenario import parse
from wayfare.studies.results import StudyResults
from wayfare.version import __version__

escaped = html.escape


def header(results: StudyResults, *, study: bool) -> str:
    """Who won, by how much, and what was compared."""
    manifest, scenario = results.manifest, parse(results.manifest.scenarios[0])
    runs, seeds = len(results.results), results.seeds
    kind = "Study" if study else "Run" if runs == 1 else "Comparison"
    facts = [
        f"{scenario.fleet.devices} devices",
        f"{scenario.rounds:,} rounds of {scenario.round_s:g} s",
        f"{_mobility(scenario.mobility.model_dump())}",
        f"task {scenario.learning.task}",
        f"{seeds} seed{'s' if seeds > 1 else ''}",
    ]
    if manifest.axes:
        facts = [f"{len(manifest.points)} points over {', '.join(manifest.axes)}", f"{runs} runs", facts[-1]]
        claim, lines = manifest.title or manifest.name, _study_lines(results)
    else:
        verdict = verdict_of([[result.summary for result in row.results] for row in results.rows])
        claim, lines = headline(verdict), details(verdict)
    warning = ""
    if seeds == 1:
        warning = _warning("One seed is one world: it shows what can happen, not what holds. Take at least three.")
    elif min(len(row.results) for row in results.rows) < seeds:
        warning = _warning(
            "Not every scheme has all the seeds. The headline counts those that all have; of the table, compare "
            "differences only, which are paired."
        )
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


def results_section(results: StudyResults, *, study: bool) -> str:
    """The table, and what its columns mean."""
    if results.manifest.axes or study:
        return _study_table(results)
    runs = [[result.summary for result in row.results] for row in results.rows]
    schemes = [summarise_scheme(mine) for mine in runs]
    names = [scheme.name for scheme in schemes]
    reference = names.index(results.reference)
    metric = schemes[0].metric
    best = (max if metric.better == "higher" else min)(scheme.score_mean for scheme in schemes)
    bold = score_text(metric, best, None)
    words, unit = metric_words_and_unit(metric)
    score_label = f"{words}, {unit}" if unit else words
    headings = ["scheme", "energy rule", score_label]
    with_pairs = len(schemes) > 1
    if with_pairs:
        headings.append(f"difference to {results.reference}")
    headings += ["energy, J", "kept, %", "uploads per device", "failed per device", "age, rounds"]
    body = []
    for scheme, mine in zip(schemes, runs, strict=True):
        look = look_of(scheme.name, names)
        swatch = f'<span class="swatch" style="--light:{look.light};--dark:{look.dark}"></span>'
        score = escaped(score_text(metric, scheme.score_mean, scheme.score_ci95))
        cells = [
            f"{swatch}{escaped(scheme.name)}",
            escaped(scheme.energy_rule),
            f"<strong>{score}</strong>" if score_text(metric, scheme.score_mean, None) == bold else score,
        ]
        if with_pairs:
            cells.append(escaped(_difference(mine, runs[reference])))
        cells += [
            _energy(scheme),
            f"{100 * scheme.kept_fraction_mean:.0f}",
            f"{scheme.uploads_per_device:.1f}",
            f"{scheme.failed_uploads_per_device:.1f}",
            f"{scheme.staleness_rounds_mean:.0f}",
        ]
        body.append(_row(headings, cells, left=2, attributes=f' data-scheme="{escaped(scheme.name)}"'))
    several = max(scheme.seeds for scheme in schemes) > 1
    scenario = parse(results.manifest.scenarios[0])
    last = min(scenario.learning.final_evaluations, -(-scenario.rounds // scenario.learning.evaluate_every_rounds))
    notes = [
        f"{words}: on test data, mean of the last {last} evaluations{' and of the seeds' if several else ''}",
        "±: 95 % interval over seeds (Student's t); differences are paired: same seed, same world" if several else "",
        f"energy: spent on transmitting, all devices, of a budget of {schemes[0].budget_joules:,.0f} J",
        "kept: share of an update delivered in a contact; the rest is offered again",
        "failed: uploads that a contact cut short; age: rounds since a device received its model",
        f"assumed: {ASSUMED}",
    ]
    return _table(headings, body, left=2) + _notes(notes)


def point_choice(results: StudyResults) -> str:
    """The points of a study to choose from."""
    names = [results.manifest.point_name(place) for place in range(len(results.manifest.points))]
    return "".join(f'<option value="{place}">{escaped(name)}</option>' for place, name in enumerate(names))


def scheme_choice(world: Sequence[RunRecord]) -> str:
    """The schemes whose outcomes the map can show."""
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
        over = sum(share > 1.03 for share in shares) / len(shares)
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
    """Files, commands and versions."""
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


def _study_lines(results: StudyResults) -> list[str]:
    """The best scheme within the budget at every point, up to as many as one reads."""
    by_point: dict[int, list[list[RunSummary]]] = {}
    for row in results.rows:
        by_point.setdefault(row.point, []).append([result.summary for result in row.results])
    lines = []
    for point, runs in by_point.items():
        verdict = verdict_of(runs)
        metric, winner = verdict.winner.metric, verdict.winner
        score = score_text(metric, winner.score_mean, winner.score_ci95, unit=True)
        lines.append(f"{results.manifest.point_name(point)}: {winner.name} {score}{beside(verdict)}")
    most = 8
    return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more points, in the table"]


def _study_table(results: StudyResults) -> str:
    columns = study_columns(results)
    headings = [_heading(column.heading) for column in columns]
    body = []
    for place, row in enumerate(results.rows):
        if results.manifest.axes and (place == 0 or results.rows[place - 1].point != row.point):
            name = escaped(results.manifest.point_name(row.point))
            body.append(f'<tr class="point"><th scope="rowgroup" colspan="{len(columns)}">{name}</th></tr>')
        look = look_of(row.scheme, results.manifest.schemes)
        swatch = f'<span class="swatch" style="--light:{look.light};--dark:{look.dark}"></span>'
        cells = [escaped(column.cells[place]) for column in columns]
        body.append(_row(headings, [swatch + cells[0], *cells[1:]], left=1))
    return _table(headings, body, left=1) + _notes([_note(note) for note in study_notes(results)])


def _heading(lines: str) -> str:
    """The lines of a heading as one; a unit follows a comma."""
    name, _, unit = lines.partition("\n")
    return f"{name}, {unit}" if unit in ("%", "J", "s", "rounds", "Mbit") else f"{name} {unit}".strip()


def _note(note: str) -> str:
    """`word      meaning` of a terminal as `word: meaning`."""
    word, gap, meaning = note.partition("  ")
    return f"{word}: {meaning.strip()}" if gap else note


def _difference(mine: Sequence[RunSummary], reference: Sequence[RunSummary]) -> str:
    if mine[0].scheme == reference[0].scheme or not {run.seed for run in mine} & {run.seed for run in reference}:
        return ""
    found = paired_difference(mine, reference)
    return score_text(mine[0].metric, found.mean, found.ci95, sign="+")


def _energy(scheme: SchemeSummary) -> str:
    """Joules, with a bar against the budget; words say what the colour says."""
    text = f"{scheme.energy_joules_mean:,.0f}"
    if not over_budget(scheme):
        return text
    times = scheme.energy_joules_mean / scheme.budget_joules
    return f'<span class="over" title="over the budget">{text}<small> {times:.1f}\u00d7 budget</small></span>'


def _mobility(mobility: Mapping[str, Any]) -> str:
    speed = f" at {mobility['speed_mps']:g} m/s" if "speed_mps" in mobility else ""
    if mobility["model"] == "trace":
        return f"trace {Path(mobility['file']).name}"
    return f"{mobility['model']} motion{speed}" if speed else f"{mobility['model']} contacts"


def _failed_runs(results: StudyResults) -> list[str]:
    """The last line of what every failed run said."""
    lines = []
    for file in sorted(results.folder.glob("**/*.error.txt")):
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
