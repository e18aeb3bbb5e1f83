"""The texts and tables of a page; `static/page.html` formats them and escapes every name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from wayfare.methods import scheme_label
from wayfare.report.caveats import caveats_of
from wayfare.report.columns import OVER_BUDGET, Column, side_by_side
from wayfare.report.digest import RunDigest
from wayfare.report.labels import number_text, task_label
from wayfare.report.palette import look_of
from wayfare.report.study_tables import study_columns, study_notes
from wayfare.report.tables import comparison_columns, comparison_notes
from wayfare.report.verdict import details, headline, study_details, study_headline, verdict_of
from wayfare.scenario import parse
from wayfare.studies.jobs import error_file
from wayfare.studies.results import StudyResults

# Width of a page of 1280 px and gap between two columns, in characters.
_PAGE_WIDTH, _PAGE_GAP = 125, 3


def header(results: StudyResults) -> dict[str, Any]:
    """The winner, its lead, and the compared settings."""
    manifest, scenario = results.manifest, parse(results.manifest.scenarios[0])
    runs, seeds = results.finished, results.seeds
    facts = [
        f"{scenario.fleet.devices} devices",
        f"{scenario.rounds:,} rounds of {scenario.round_s:g} s",
        _mobility(scenario.mobility.model_dump()),
        f"task {task_label(scenario.learning.task)}",
        f"{seeds} seed{'s' if seeds > 1 else ''}",
    ]
    points = groupby(results.rows, lambda row: row.point)
    verdicts = [verdict_of([[result.summary for result in row.results] for row in rows]) for _, rows in points]
    if manifest.axes:
        facts = [f"{len(manifest.points)} points over {', '.join(manifest.axes)}", f"{runs} runs", facts[-1]]
        claim, lines = study_headline(verdicts), [*filter(None, [manifest.title]), *study_details(verdicts)]
    else:
        claim, lines = headline(verdicts[0]), details(verdicts[0])
    if not any(result.summary.contacts for result in results.results):
        claim, lines = "Nothing was learned: no device met the server", []
    warnings = caveats_of(results)
    if seeds == 1:
        warnings.insert(0, "One seed is one world, which is not a result. Use at least three seeds.")
    elif min(len(row.results) for row in results.rows) < seeds:
        text = (
            "Not every scheme has all seeds. The headline uses the seeds that all schemes have. In the table, compare "
            "only differences, which are paired."
        )
        warnings.insert(0, text)
    if results.missing:
        text = f"{results.missing} of {len(manifest.distinct)} runs are missing, {results.failed} of them failed."
        warnings.append(f"Incomplete: {text}")
    kind = "Study" if not manifest.is_comparison else "Run" if runs == 1 else "Comparison"
    return {"kind": kind, "claim": claim, "lines": lines, "warnings": warnings, "facts": facts}


def results_section(results: StudyResults) -> dict[str, Any]:
    manifest, columns, notes = results.manifest, study_columns(results), study_notes(results)
    if manifest.is_comparison:
        runs = [[result.summary for result in row.results] for row in results.rows]
        columns = comparison_columns(results.schemes, runs)
        traces = [result.trace for result in results.results]
        learning = manifest.scenarios[0]["learning"]
        notes = comparison_notes(results.schemes, results.results[0].averaged, learning, traces)
    rows = []
    for index, row in enumerate(results.rows):
        begins = index == 0 or results.rows[index - 1].point != row.point
        point = manifest.point_name(row.point) if manifest.axes and begins else ""
        rows.append({"point": point, "scheme": row.scheme, "look": look_of(row.scheme, manifest.schemes)})
    tables = side_by_side(columns, _PAGE_WIDTH, _PAGE_GAP)
    return {"tables": tables, "rows": rows, "notes": [*map(str, notes)]}


def failures_section(results: StudyResults, digests: Mapping[tuple[int, str], Sequence[RunDigest]]) -> dict[str, Any]:
    """Interrupted uploads, contacts without an upload, devices over budget, and failed runs."""
    rows = []
    for row in results.rows:
        runs = digests[row.point, row.scheme]
        contacts = sum(run.contacts for run in runs)
        shares = [share for run in runs for share in run.budget_shares]
        cells = {
            "scheme": scheme_label(row.scheme),
            "contacts": f"{contacts:,}",
            "nothing sent, %": _percent(sum(run.silent for run in runs), contacts),
            "uploads interrupted, %": _percent(sum(run.failed for run in runs), contacts),
            "energy lost, J": number_text(sum(run.failed_joules for run in runs) / len(runs)),
            "devices over budget, %": f"{100 * sum(share > OVER_BUDGET for share in shares) / len(shares):.0f}",
        }
        point = {"point": results.manifest.point_name(row.point)} if results.manifest.axes else {}
        rows.append(point | cells)
    columns = [
        Column(heading=name, cells=[cells[name] for cells in rows], left=name in ("point", "scheme"))
        for name in rows[0]
    ]
    notes = [
        "contacts: sum over seeds; energy lost: mean over seeds, for all devices including relays; over budget: by "
        "more than 3 %"
    ]
    plain = [{"point": "", "look": None}] * len(rows)
    return {"columns": columns, "rows": plain, "notes": notes, "runs": _failed_runs(results)}


def in_line(heading: str) -> str:
    """Join the lines of a heading, with a comma before a unit."""
    name, _, unit = heading.partition("\n")
    joined = f"{name}, {unit}" if unit in ("%", "J", "s", "rounds", "Mbit") else f"{name} {unit}".strip()
    return joined.replace(" /", " per ")


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
        lines.append(f"{file.name.removesuffix('.error.txt')}: {said[-1] if said else 'unknown reason'}")
    return lines


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "0"
