"""The results of a study for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from wayfare.studies.results import StudyResults


def results_json(results: StudyResults) -> dict[str, Any]:
    """One object: a row for each scheme at each point, with all its statistics."""
    manifest, metric = results.manifest, results.metric
    return {
        "study": manifest.name,
        "title": manifest.title,
        "folder": str(results.folder),
        "metric": None if metric is None else metric.name,
        "reference": results.reference,
        "runs": len(manifest.runs),
        "finished": len(results.results),
        "failed": results.failed,
        "rows": [
            {
                "point": manifest.points[row.point],
                "scheme": row.scheme,
                "energy_rule": row.energy_rule,
                "seeds": [result.run.seed for result in row.results],
                "metrics": {name: asdict(one) for name, one in row.estimates.items()},
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
