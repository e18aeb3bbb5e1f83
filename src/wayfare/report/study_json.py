"""The results of a study as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from wayfare.records import RunSummary
from wayfare.records.statistics import estimate
from wayfare.report.caveats import caveats_of, distinct
from wayfare.studies.results import RunResult, StudyResults


def results_json(results: StudyResults) -> dict[str, Any]:
    manifest, metric = results.manifest, results.metric
    return {
        "study": manifest.name,
        "title": manifest.title,
        "folder": str(results.folder),
        "metric": None if metric is None else metric.name,
        "reference": results.reference,
        "runs": len(manifest.distinct),
        "finished": results.finished,
        "failed": results.failed,
        "warnings": caveats_of(results),
        "traces": [asdict(use) for use in distinct(result.trace for result in results.results)],
        "rows": [
            {
                "point": manifest.points[row.point],
                "scheme": row.scheme,
                "shared": row.shared,
                "energy_rule": row.energy_rule,
                "seeds": [result.run.seed for result in row.results],
                "metrics": _estimates(row.results),
                "difference_to_reference": None if row.to_reference is None else asdict(row.to_reference),
                "targets": [
                    {
                        "target": target,
                        "reached": row.rounds_to[place].reached,
                        "seeds": row.rounds_to[place].seeds,
                        "median_rounds": row.rounds_to[place].median,
                        "median_time_s": row.time_s_to[place].median,
                        "median_energy_joules": row.energy_joules_to[place].median,
                    }
                    for place, target in enumerate(manifest.targets)
                ],
            }
            for row in results.rows
        ],
    }


def _estimates(results: Sequence[RunResult]) -> dict[str, Any]:
    """Estimates over seeds of all measures of the runs, including those of relays."""
    runs = [{**_numbers(result.summary), **result.measures} for result in results]
    return {name: asdict(estimate([run[name] for run in runs])) for name in runs[0] if all(name in run for run in runs)}


def _numbers(summary: RunSummary) -> dict[str, float]:
    return {name: value for name, value in asdict(summary).items() if isinstance(value, float)}
