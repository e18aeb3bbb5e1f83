"""Add finished runs to a recorded figure of the paper, and update its CSV files, picture and tables.

    python scripts/record_figure.py fig8b [STUDY_FOLDER ...]

It reads recorded runs from docs/results/paper/FIG-runs.csv and FIG-evaluations.csv and adds the figure's runs from the
study folders. A new run replaces a recorded one of the same point, scheme and seed. In FIG.md it replaces the first
table and the table of the paper's numbers, and nothing else. It lists missing runs in not-run.csv.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wayfare.learning.tasks import Metric
from wayfare.records import RunSummary
from wayfare.records.statistics import Reached
from wayfare.report.markdown import table_lines
from wayfare.report.paper_figures import draw
from wayfare.scenario import parse
from wayfare.studies.export import evaluation_rows, run_rows, write_csv
from wayfare.studies.paper import FIGURES, PaperFigure
from wayfare.studies.results import RunResult, StudyResults, read_results, results_of
from wayfare.studies.single import Execution
from wayfare.studies.store import manifest_of
from wayfare.studies.study import Plan, plan_of

RECORDED = Path("docs/results/paper")
Rows = list[dict[str, Any]]


def read_rows(file: Path) -> Rows:
    """The rows of a CSV file, as text."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def place_of(plan: Plan, row: dict[str, Any]) -> tuple[tuple[str, ...], str, str]:
    """The point, the scheme and the seed of a row."""
    return tuple(str(row[axis]) for axis in plan.axes), row["scheme"], str(row["seed"])


def new_rows(plan: Plan, folder: Path) -> tuple[Rows, Rows]:
    """The runs of a study folder that belong to the figure, and their evaluations."""
    found = read_results(folder)
    runs, evaluations = [], []
    nameless = {"name": "", "schemes": ()}
    for result in found.results:
        # The record of a run that several points share has the scenario of one of them.
        scenario = parse(found.manifest.scenarios[result.run.point]).model_copy(update=nameless)
        alone = replace(found, results=[result])
        for point in plan.points:
            if point.scenario.model_copy(update=nameless) == scenario and result.run.scheme in plan.schemes:
                runs += [named(plan, row, point.values) for row in run_rows(alone)]
                evaluations += [named(plan, row, point.values) for row in evaluation_rows(alone)]
    return runs, evaluations


def named(plan: Plan, row: dict[str, Any], axes: Mapping[str, Any]) -> dict[str, Any]:
    """A row under the name of the figure's study, with the values of its point."""
    rest = {name: value for name, value in row.items() if name not in ("study", "key", "shared", "folder")}
    return {"study": plan.study.name, "key": row["key"], **axes, **rest}


def merged(plan: Plan, old: Rows, new: Rows) -> Rows:
    """Old rows whose run has no new ones, and the new ones, in the order of the study."""
    replaced = {place_of(plan, row) for row in new}
    rows = [row for row in old if place_of(plan, row) not in replaced] + new
    points = [tuple(str(point.values[axis]) for axis in plan.axes) for point in plan.points]

    def order(row: dict[str, Any]) -> tuple[int, int, int, int]:
        point, scheme, seed = place_of(plan, row)
        return points.index(point), plan.schemes.index(scheme), int(seed), int(row.get("round", 0))

    return sorted(rows, key=order)


def results_from(plan: Plan, runs: Rows) -> StudyResults:
    """The results of a study folder, for the recorded seeds."""
    manifest = manifest_of(replace(plan, seeds=sorted({int(row["seed"]) for row in runs})), Execution())
    points = [tuple(str(point.values[axis]) for axis in plan.axes) for point in plan.points]
    rows = {place_of(plan, row): row for row in runs}
    found, planned = [], []
    for run in manifest.runs:
        row = rows.get((points[run.point], run.scheme, str(run.seed)))
        planned.append(run if row is None else replace(run, key=row["key"]))
        if row is None:
            continue
        names = list(row)
        measures = {name: float(row[name]) for name in names[names.index("metric") + 1 :] if "_to_" not in name}
        is_share = row["metric"] == "accuracy"
        metric = Metric(name=row["metric"], better="higher" if is_share else "lower", percent=is_share)
        summary = RunSummary(
            scheme=run.scheme,
            energy_rule=row["energy_rule"],
            seed=run.seed,
            metric=metric,
            contacts=attempts(measures, plan.points[run.point].scenario.fleet.devices),
            # CSV files do not say it; all schemes of the figures send models of one size.
            parameters=0,
            **{name: measures[name] for name in SUMMARISED},  # type: ignore[arg-type]
        )
        found.append(
            RunResult(
                run=planned[-1],
                folder=Path(),
                summary=summary,
                measures=measures,
                reached=[reached(row, target) for target in plan.study.targets],
                rounds=plan.points[0].scenario.rounds,
                averaged=plan.points[0].scenario.learning.final_evaluations,
                wall_s=measures["wall_s"],
                trace=None,
            )
        )
    return results_of(RECORDED, replace(manifest, runs=planned), found, 0)


def attempts(measures: dict[str, float], devices: int) -> int:
    """The number of uploads of all devices. CSV files do not count contacts, but each upload was in one."""
    return round((measures["uploads_per_device"] + measures["failed_uploads_per_device"]) * devices)


def reached(row: dict[str, Any], target: float) -> Reached:
    """When a run reached a target; an empty cell means never."""
    cells = (row[f"{name}_to_{target:g}"] for name in ("rounds", "time_s", "energy_joules"))
    rounds, time_s, energy_joules = (float(cell) if cell else None for cell in cells)
    return Reached(rounds=rounds, time_s=time_s, energy_joules=energy_joules)


SUMMARISED = (
    "score",
    "energy_joules",
    "budget_joules",
    "bits",
    "kept_fraction",
    "uploads_per_device",
    "failed_uploads_per_device",
    "staleness_rounds",
)


def end_of_table(lines: list[str], first: int) -> int:
    """The line after a table and the list of notes that follows it."""
    end = first
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    notes = end + 1
    while notes < len(lines) and lines[notes].startswith(("- ", "  ")):
        notes += 1
    return notes if notes > end + 1 else end


def write_page(figure: PaperFigure, results: StudyResults, page: Path) -> None:
    """Replace the first table with its notes, and the table of the paper's numbers."""
    lines = page.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    lines[first : end_of_table(lines, first)] = table_lines(results)
    if "| | paper | here |" in lines:
        begin = lines.index("| | paper | here |") + 2
        numbers = [
            f"| {quoted.what} | {quoted.paper:,.6g} | {'-' if ours is None else f'{ours:,.4g}'} |"
            for quoted in figure.numbers
            for ours in [quoted.ours(results)]
        ]
        end = next(n for n in range(begin, len(lines)) if not lines[n].startswith("|"))
        lines[begin:end] = numbers
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_not_run(figure: PaperFigure, plan: Plan, runs: Rows) -> int:
    """List the missing runs of the figure for the recorded seeds; return their number."""
    file = RECORDED / "not-run.csv"
    rows = [row for row in read_rows(file) if row["figure"] != figure.name] if file.exists() else []
    done = {place_of(plan, row) for row in runs}
    missing = []
    for point in plan.points:
        values = tuple(str(point.values[axis]) for axis in plan.axes)
        for scheme in plan.schemes:
            for seed in sorted({str(row["seed"]) for row in runs}):
                if (values, scheme, seed) not in done:
                    place = {"point": " ".join(values), "scheme": scheme, "seed": seed}
                    missing.append({"figure": figure.name, **place})
    with file.open("w", encoding="utf-8", newline="") as target:
        writer = csv.DictWriter(target, ("figure", "point", "scheme", "seed"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*rows, *missing], key=lambda row: row["figure"]))
    return len(missing)


def main() -> None:
    """Merge, write, draw."""
    if len(sys.argv) < 2 or sys.argv[1] not in FIGURES:
        raise SystemExit(__doc__)
    figure = FIGURES[sys.argv[1]]
    plan = plan_of(figure.study(quick=False))
    files = {kind: RECORDED / f"{figure.name}-{kind}.csv" for kind in ("runs", "evaluations")}
    runs, evaluations = read_rows(files["runs"]), read_rows(files["evaluations"])
    added = [new_rows(plan, Path(folder)) for folder in sys.argv[2:]]
    runs = merged(plan, runs, [row for some, _ in added for row in some])
    evaluations = merged(plan, evaluations, [row for _, some in added for row in some])
    write_csv(runs, files["runs"])
    write_csv(evaluations, files["evaluations"])
    results = results_from(plan, runs)
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for row in evaluations:
        curves[row["key"]][int(row["round"])] = float(row["score"])

    def curve_of(result: RunResult) -> tuple[Any, Any]:
        rounds, scores = zip(*sorted(curves[result.run.key].items()), strict=True)
        return np.array(rounds, dtype=float), np.array(scores)

    draw(figure, results, RECORDED / f"{figure.name}.png", curve_of=curve_of)
    write_page(figure, results, RECORDED / f"{figure.name}.md")
    not_run = write_not_run(figure, plan, runs)
    print(f"{figure.name}: {len(runs)} runs recorded, {len(added)} folders read, {not_run} runs missing")


if __name__ == "__main__":
    main()
