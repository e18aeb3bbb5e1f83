"""Theory against experiment, for studies that vary only the speed of devices.

Three comparisons: the bound of Corollary 1 with the cost of learning, the staleness at a contact, and the share of an
update that a contact delivers. The last two are predictions in the unit of the measurement. They assume exponential
times with the means of the recorded contacts, which are proportional to 1 / speed, and full power at the recorded
channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wayfare.codec import bits_per_entry
from wayfare.records.statistics import estimate
from wayfare.report.digest import RunDigest, numbers
from wayfare.scenario import parse
from wayfare.studies.results import Row, StudyResults
from wayfare.theory.bounds import corollary_1_factor, kept_share
from wayfare.theory.curves import VARIANTS
from wayfare.theory.staleness import staleness_moments

_SPEED = "mobility.speed_mps"
_POINTS = 60


def theory_json(results: StudyResults, digests: Mapping[tuple[int, str], Sequence[RunDigest]]) -> dict[str, Any] | None:
    """The data of the three charts of a study over speeds; None for any other study."""
    manifest = results.manifest
    if manifest.axes != [_SPEED] or len({row.point for row in results.rows}) < 2:
        return None
    speeds = [float(values[_SPEED]) for values in manifest.points]
    seen = [(speeds[point], run) for (point, _), runs in digests.items() for run in runs if run.contacts]
    if not seen:
        return None
    # The distance that a device covers in a contact, and between two, hardly depends on its speed.
    contact_m = float(np.mean([speed_mps * run.contact_s for speed_mps, run in seen]))
    gap_m = float(np.mean([speed_mps * run.gap_s for speed_mps, run in seen]))
    rates_bps = np.concatenate([run.full_rates_bps for _, run in seen])
    scenario, parameters = parse(manifest.scenarios[0]), seen[0][1].parameters
    entry_bits = bits_per_entry(parameters, scenario.upload.value_bits)
    grid = np.geomspace(min(speeds) / 1.5, max(speeds) * 1.5, _POINTS)
    factors = {
        variant: corollary_1_factor(
            grid,
            contact_m=contact_m,
            inter_contact_m=gap_m,
            rate_bps=float(rates_bps.mean()),
            round_s=scenario.round_s,
            parameters=parameters,
            bits_per_entry=entry_bits,
            counting="overlap" if variant == "printed" else "start",
            variant=variant,
        )
        for variant in VARIANTS
    }
    kept = kept_share(rates_bps[:, None], contact_m / grid, parameters, entry_bits).mean(axis=0)
    return {
        "contact_m": round(contact_m),
        "gap_m": round(gap_m),
        "speed_mps": numbers(grid),
        "bound": {variant: numbers(factor / factor.min()) for variant, factor in factors.items()},
        "age": numbers(staleness_moments(contact_m / grid, gap_m / grid, scenario.round_s, "start").at_contact_mean),
        "kept": numbers(100 * kept),
        "measured": [_measured(row, speeds[row.point]) for row in results.rows],
        "target": manifest.targets[0] if manifest.targets else None,
    }


def _measured(row: Row, speed_mps: float) -> dict[str, Any]:
    found: dict[str, Any] = {"scheme": row.scheme, "speed_mps": speed_mps}
    for name in ("score", "kept_fraction", "staleness_rounds"):
        one = estimate([result.measures[name] for result in row.results])
        found[name] = {"mean": one.mean, "ci95": one.ci95}
    found["rounds"] = row.rounds_to[0].median if row.rounds_to else None
    return found
