"""The data of a run for a page, thinned to the resolution of a screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wayfare.arrays import Floats
from wayfare.records import RunRecord

# A screen cannot show more points.
CURVE_POINTS = 240
_SAMPLES = 400
_TIME_BINS = 60
_TAIL_POINTS = 120
_DEVICE_DOTS = 300
# Maximum number of schemes times points that a page shows in full.
_FULL_GROUPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDigest:
    """One run, thinned. Samples are quantiles, so that samples of several seeds can be combined."""

    seed: int
    evaluations: dict[str, Floats]  # also the other metrics, by name
    budget_shares: Floats  # spent / budget of every device
    kept_fractions: Floats  # samples over contacts
    staleness_rounds: Floats
    backlog_joules: Floats  # mean over the contacts in each time bin; NaN without contacts
    backlog_high_joules: Floats  # 90 % quantile in each time bin
    contacts: int
    silent: int  # contacts without an upload
    failed: int
    failed_joules: float
    parameters: int
    contact_s: float  # mean contact time
    gap_s: float  # mean inter-contact time
    full_rates_bps: Floats  # samples of the rate at full power


def digest_run(record: RunRecord) -> RunDigest:
    contacts, devices = record.contacts, len(record.budgets_joules)
    failed = (contacts["completed"] == 0) & (contacts["energy_joules"] > 0)
    spent = np.bincount(contacts["device"].astype(np.int64), contacts["energy_joules"], minlength=devices)
    for relay in record.relays:
        spent[relay.giver] += relay.energy_joules
    low, high = _in_bins(contacts["round"], contacts["backlog_joules"], record.scenario.rounds)
    rows = thinned(len(record.evaluations["round"]), CURVE_POINTS)
    met_s, radio = float(contacts["contact_s"].sum()), record.scenario.radio
    whole = {name: values for name, values in record.others.items() if len(values) == len(record.evaluations["round"])}
    return RunDigest(
        seed=record.seed,
        evaluations={name: values[rows] for name, values in (record.evaluations | whole).items()},
        budget_shares=_samples(spent / record.budgets_joules, _DEVICE_DOTS),
        kept_fractions=_samples(contacts["entries"] / record.parameters, _SAMPLES),
        staleness_rounds=_samples(contacts["staleness_rounds"], _SAMPLES),
        backlog_joules=low,
        backlog_high_joules=high,
        contacts=len(contacts["round"]),
        silent=int((contacts["energy_joules"] == 0).sum()),
        failed=int(failed.sum()),
        failed_joules=float(contacts["energy_joules"][failed].sum())
        + sum(relay.energy_joules for relay in record.relays if not relay.completed),
        parameters=record.parameters,
        contact_s=met_s / max(len(contacts["round"]), 1),
        gap_s=(devices * record.scenario.duration_s - met_s) / max(len(contacts["round"]), 1),
        full_rates_bps=_samples(
            radio.bandwidth_hz * np.log2(1 + radio.max_power_watts * contacts["gain_per_watt"]), _SAMPLES
        ),
    )


def detail_of(groups: int) -> float:
    """The share of points that a chart keeps: all of them for few groups, fewer for a large study."""
    return min(1.0, _FULL_GROUPS / max(groups, 1))


def group_json(runs: Sequence[RunDigest], rounds: int, round_s: float, detail: float = 1.0) -> dict[str, Any]:
    """One scheme at one point over its seeds, for the charts of a page."""
    shortest = min(len(run.evaluations["round"]) for run in runs)
    rows = thinned(shortest, max(int(CURVE_POINTS * detail), 24))
    names = [name for name in runs[0].evaluations if all(name in run.evaluations for run in runs)]
    columns = {name: np.array([run.evaluations[name][rows] for run in runs]) for name in names}
    shares = np.concatenate([run.budget_shares for run in runs])
    tail_points = max(int(_TAIL_POINTS * detail), 20)
    middles_s = (np.arange(_TIME_BINS) + 0.5) / _TIME_BINS * rounds * round_s
    kept, age = (
        np.concatenate([getattr(run, name) for run in runs]) for name in ("kept_fractions", "staleness_rounds")
    )
    return {
        "seeds": [run.seed for run in runs],
        "curves": {
            name: {"mean": numbers(_mean(values)), "low": numbers(values.min(0)), "high": numbers(values.max(0))}
            if name not in ("round", "time_s")
            else {"mean": numbers(values[0])}
            for name, values in columns.items()
        },
        "budget_shares": numbers(_samples(shares, max(int(len(shares) * detail), 20))),
        "kept": _tail(100 * kept, tail_points),
        "staleness": _tail(age, tail_points),
        "backlog": {
            "time_s": numbers(middles_s),
            "mean": numbers(_mean(np.array([run.backlog_joules for run in runs]))),
            "high": numbers(_mean(np.array([run.backlog_high_joules for run in runs]))),
        },
    }


def thinned(length: int, most: int) -> np.ndarray:
    """At most `most` evenly spaced rows, including the first and the last."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.int64))


def numbers(values: Floats, digits: int = 5) -> list[float | None]:
    """Numbers for JSON with a few digits; NaN and infinity become null."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values.tolist()]


def _mean(values: Floats) -> Floats:
    """The mean over runs, ignoring NaN; NaN if all are."""
    known = np.isfinite(values)
    sums, counts = np.where(known, values, 0.0).sum(0), known.sum(0)
    return np.asarray(np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0))


def _samples(values: Floats, most: int) -> Floats:
    """All values sorted, or `most` quantiles."""
    if len(values) <= most:
        return np.sort(values)
    return np.asarray(np.quantile(values, np.linspace(0, 1, most)))


def _in_bins(rounds: Floats, values: Floats, last: int) -> tuple[Floats, Floats]:
    bins = np.minimum(((rounds - 1) / last * _TIME_BINS).astype(np.int64), _TIME_BINS - 1)
    mean, high = np.full(_TIME_BINS, np.nan), np.full(_TIME_BINS, np.nan)
    for bin_ in np.unique(bins):
        mine = values[bins == bin_]
        mean[bin_], high[bin_] = mine.mean(), np.quantile(mine, 0.9)
    return mean, high


def _tail(values: Floats, points: int) -> dict[str, list[float | None]]:
    """The share of values of at least a size, in per cent."""
    if len(values) == 0:
        return {"at_least": [], "percent": []}
    ordered = np.sort(values)
    rows = thinned(len(ordered), points)
    # Of equal values the first one counts, because all others are at or above it.
    first = np.searchsorted(ordered, ordered[rows], side="left")
    return {"at_least": numbers(ordered[rows]), "percent": numbers(100 * (1 - first / len(ordered)))}
