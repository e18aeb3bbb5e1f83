"""Tables of a study, for the terminal and as plain cells for pages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group
from rich.table import Table
from rich.text import Text

from wayfare.methods import scheme_label
from wayfare.records.statistics import Censored, Estimate, estimate
from wayfare.report.caveats import backbone_text, caveats_of, distinct, trace_text
from wayfare.report.columns import (
    BUDGET_NOTE,
    ENERGY,
    SCHEME,
    Column,
    Note,
    has_kept_share,
    in_terminal,
    over_budget,
    plainly,
    rich_notes,
    rich_table,
    side_by_side,
)
from wayfare.report.labels import (
    ASSUMED,
    is_of_devices,
    metric_heading,
    metric_words_and_unit,
    named_with_task,
    number_text,
    other_heading,
    other_text,
)
from wayfare.report.tables import epsilon_note
from wayfare.studies.results import StudyResults
from wayfare.studies.study import USUAL_METRICS

_HEADINGS = {
    "energy_joules": ENERGY,
    "budget_joules": "budget\nJ",
    "kept_fraction": "kept\n%",
    "uploads_per_device": "uploads\n/device",
    "failed_uploads_per_device": "failed\n/device",
    "staleness_rounds": "age\nrounds",
    "wall_s": "run\ns",
    "bits": "sent\nMbit",
}
_SHARED = "="
_SCALES = {"kept_fraction": 100.0, "bits": 1e-6}


def study_columns(results: StudyResults) -> list[Column]:
    return [*_schemes(results), *_measures(results), *_targets(results)] if results.rows else []


def plain_table(results: StudyResults) -> list[list[str]]:
    """The whole table of a study as text: varied settings and all columns, headings first."""
    columns, manifest = [plainly(column) for column in study_columns(results)], results.manifest
    headings = [*manifest.varies, *(column.heading.replace("\n", " ") for column in columns)]
    places = [map(str, manifest.place_of(row.point).values()) for row in results.rows]
    return [headings, *([*at, *(column.cells[row] for column in columns)] for row, at in enumerate(places))]


def study_table(results: StudyResults, *, width: int = 80) -> Group:
    """The tables of a study in the terminal, with points below each other and a separate table for targets.

    Columns that do not fit the window follow in another table, so that no number or name is truncated.
    """
    lines: list[Text | Table] = [Text(study_title(results), "bold"), Text()]
    if results.rows:
        lines += _rich(results, [*_schemes(results), *_measures(results)], width)
    if results.rows and results.manifest.targets:
        lines += _rich(results, [*_schemes(results), *_targets(results)], width)
    warnings = [Note("warning", caveat) for caveat in caveats_of(results)]
    return Group(*lines, rich_notes(study_notes(results), warnings))


def _rich(results: StudyResults, columns: Sequence[Column], width: int) -> list[Text | Table]:
    """A table for each point under its name, with the same column widths in all tables."""
    indent = "  " if results.manifest.axes else ""
    parts: list[Text | Table] = []
    for group in side_by_side(in_terminal(columns), width - len(indent)):
        parts.append(rich_table(group, (), indent=indent))
        for point, rows in groupby(range(len(results.rows)), lambda row: results.rows[row].point):
            if name := results.manifest.point_name(point):
                parts.append(Text(name, "italic"))
            parts.append(rich_table(group, list(rows), headed=False, indent=indent))
        parts.append(Text())
    return parts


def _schemes(results: StudyResults) -> list[Column]:
    return [
        Column(heading=SCHEME, cells=[scheme_label(row.scheme) for row in results.rows], left=True),
        Column(heading="seeds", cells=[f"{len(row.results)}{_SHARED * row.shared}" for row in results.rows]),
    ]


def _measures(results: StudyResults) -> list[Column]:
    columns = []
    manifest = results.manifest
    with_sums = manifest.metrics == list(USUAL_METRICS) and any(scheme.sums for scheme in results.schemes)
    by_bits = with_sums or (manifest.is_comparison and not has_kept_share(results.schemes))
    for name in dict.fromkeys(name for row in results.rows for name in row.estimates):
        of = [row.estimates.get(name) for row in results.rows]
        if name == "kept_fraction" and by_bits:
            name = "bits"
            of = [estimate([result.measures["bits"] for result in row.results]) for row in results.rows]
        if name == "score":
            columns += _score_columns(results, of)
        else:
            cells = ["" if one is None else number_text(one.mean * _SCALES.get(name, 1.0)) for one in of]
            marked = [over_budget(scheme) for scheme in results.schemes] if name == "energy_joules" else ()
            heading, metric = _HEADINGS.get(name, name), results.results[0].metric
            if is_of_devices(name, metric):
                heading = other_heading(name, metric)
                cells = ["" if one is None else other_text(name, one.mean, metric) for one in of]
            columns.append(Column(heading=heading, cells=cells, marked=marked))
    return columns


def _targets(results: StudyResults) -> list[Column]:
    columns, metric = [], results.results[0].metric
    for place, target in enumerate(results.manifest.targets):
        goal = metric.text(target, digits=0) if metric.percent else f"{target:g}"
        of = [(row.rounds_to[place], row.time_s_to[place], row.energy_joules_to[place]) for row in results.rows]
        ends = [max(result.rounds for result in row.results) for row in results.rows]
        columns += [
            Column(heading=f"reached\n{goal}", cells=[f"{one.reached} of {one.seeds}" for one, _, _ in of]),
            Column(
                heading="rounds", cells=[_median(one, f"> {end:,}") for (one, _, _), end in zip(of, ends, strict=True)]
            ),
            Column(heading="min", cells=[_median(one, "-", 1 / 60) for _, one, _ in of]),
            Column(heading="J", cells=[_median(one, "-") for _, _, one in of]),
        ]
    return columns


def study_title(results: StudyResults) -> str:
    manifest = results.manifest
    counts = f"{results.finished} of {len(manifest.distinct)} runs"
    name = named_with_task(manifest.name, manifest.scenarios[0]["learning"]["task"])
    return f"{name}: {manifest.title or counts}" + (f" ({counts})" if manifest.title else "")


def study_notes(results: StudyResults) -> list[Note]:
    if results.metric is None:
        return [Note("runs", "none is finished yet")]
    notes, seeds, name = missing_notes(results), results.seeds, metric_words_and_unit(results.metric)[0]
    if min(len(row.results) for row in results.rows) == 1:
        notes.append(Note("one seed", "a single world; numbers without ± are not a result"))
    last = results.results[0].averaged
    over = "the last evaluation" if last == 1 else f"mean of the last {last} evaluations"
    notes.append(Note(name, f"{over} of a run"))
    if seeds > 1:
        notes.append(Note("±", "95 % interval of the mean over seeds; sd: standard deviation over seeds"))
    tested = sum(row.to_reference is not None for row in results.rows)
    if seeds > 1 and tested:
        least = 2 / 2**seeds
        notes.append(Note("difference", "paired (same seed, same world), ± 95 % interval"))
        tests = f"{tested} test{'s' if tested > 1 else ''}"
        notes.append(Note("p", f"sign-flip permutation test; {seeds} seeds give {least:.2g} at best; {tests}"))
    if any("energy_joules" in row.estimates for row in results.rows):
        notes.append(Note("energy", BUDGET_NOTE))
    if any(row.shared for row in results.rows):
        notes.append(Note(_SHARED, "ran once: the scheme does not use the settings that differ between these points"))
    if any("epsilon" in row.estimates for row in results.rows):
        notes += epsilon_note(results.schemes)
    notes.append(Note("assumed", ASSUMED))
    sections = [scenario["learning"] for scenario in results.manifest.scenarios]
    if backbone := backbone_text(sections, results.schemes):
        notes.append(Note("backbone", backbone))
    notes += [Note("trace", trace_text(use)) for use in distinct(result.trace for result in results.results)]
    if results.manifest.targets:
        notes.append(Note("reached", "medians over all seeds; a missed target counts as beyond the end"))
    if results.unknown_metrics:
        known = ", ".join(results.results[0].measures)
        notes.append(Note("metrics", f"{', '.join(results.unknown_metrics)}: not recorded; recorded: {known}"))
    return notes


def missing_notes(results: StudyResults) -> list[Note]:
    failed = f" ({results.failed} failed: runs/*.error.txt)" if results.failed else ""
    text = f"{results.missing} runs missing{failed}; repeat the study's command to run them"
    return [Note("incomplete", text)] if results.missing else []


def _score_columns(results: StudyResults, of: Sequence[Estimate | None]) -> list[Column]:
    metric = results.results[0].metric
    digits = 1 if metric.percent else 3
    scores = ["" if one is None else metric.with_interval(one.mean, one.ci95, digits) for one in of]
    deviations = ["" if one is None or one.sd is None else metric.with_interval(one.sd, None, digits) for one in of]
    differences = [row.to_reference for row in results.rows]
    columns = [Column(heading=metric_heading(metric), cells=scores)]
    if any(deviations):
        columns.append(Column(heading="sd", cells=deviations))
    if any(differences):
        cells = ["" if one is None else metric.with_interval(one.mean, one.ci95, digits, "+") for one in differences]
        columns.append(Column(heading=f"difference\nto {scheme_label(results.reference)}", cells=cells))
        tests = ["" if one is None or one.p is None else f"{one.p:.2g}" for one in differences]
        if any(tests):
            columns.append(Column(heading="p", cells=tests))
    return columns


def _median(censored: Censored, beyond: str, scale: float = 1.0) -> str:
    return beyond if censored.median is None else f"{scale * censored.median:,.0f}"
