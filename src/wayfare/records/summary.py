"""Summaries of records: the measures of a run, and of a scheme over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from wayfare.learning.tasks import Metric
from wayfare.records.read import RunRecord
from wayfare.records.statistics import Difference, difference, estimate
from wayfare.simulator.events import RelayKind
from wayfare.world import Withheld


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The measures of a run. Fractions and staleness are means over all contacts, including those without an upload."""

    scheme: str
    energy_rule: str
    seed: int
    metric: Metric
    score: float  # the metric, mean of the last evaluations
    energy_joules: float
    budget_joules: float
    kept_fraction: float  # k / s
    uploads_per_device: float
    failed_uploads_per_device: float
    staleness_rounds: float
    contacts: int  # upload opportunities of all devices
    parameters: int  # s: entries of a vector, without normalisation statistics
    bits: float  # sent by all devices
    sums: int = 0  # entries of the vector that are class statistics
    withheld: Withheld | None = None  # classes of which devices hold too few samples for statistics
    # Relays: updates given to relays, updates delivered, newer models taken from peers, and failed attempts.
    relayed_per_device: float = 0.0
    delivered_per_device: float = 0.0
    models_taken_per_device: float = 0.0
    failed_relays_per_device: float = 0.0
    # Differential privacy of the device with the most releases, at delta; None if the method is not private.
    epsilon: float | None = None
    delta: float | None = None
    others: dict[str, float] = field(default_factory=dict)  # further metrics, means of the last evaluations


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeSummary:
    """The measures of a scheme over its seeds. The deviation and half the interval are None for one seed."""

    name: str
    energy_rule: str
    seeds: int
    metric: Metric
    score_mean: float
    score_sd: float | None
    score_ci95: float | None
    energy_joules_mean: float
    budget_joules: float
    kept_fraction_mean: float
    uploads_per_device: float
    failed_uploads_per_device: float
    staleness_rounds_mean: float
    parameters: int
    bits_mean: float
    sums: int = 0
    relayed_per_device: float = 0.0
    delivered_per_device: float = 0.0
    models_taken_per_device: float = 0.0
    failed_relays_per_device: float = 0.0
    epsilon_max: float | None = None  # of all devices and seeds, at delta; None if the method is not private
    delta: float | None = None
    others: dict[str, float] = field(default_factory=dict)  # further metrics


def summarise_run(record: RunRecord) -> RunSummary:
    contacts, devices = record.contacts, len(record.budgets_joules)
    met = len(contacts["round"]) > 0
    completed = contacts["completed"] > 0
    sent = completed & (contacts["entries"] > 0)
    return RunSummary(
        scheme=record.scheme,
        energy_rule=record.energy_rule,
        seed=record.seed,
        metric=record.metric,
        score=float(np.mean(record.evaluations["score"][-final_evaluations(record) :])),
        energy_joules=float(contacts["energy_joules"].sum()) + sum(relay.energy_joules for relay in record.relays),
        budget_joules=float(record.budgets_joules.sum()),
        kept_fraction=float(np.mean(contacts["entries"]) / record.parameters) if met else 0.0,
        uploads_per_device=float(sent.sum()) / devices,
        failed_uploads_per_device=float((~completed & (contacts["energy_joules"] > 0)).sum()) / devices,
        staleness_rounds=float(np.mean(contacts["staleness_rounds"])) if met else 0.0,
        contacts=len(contacts["round"]),
        parameters=record.parameters,
        sums=record.sums,
        withheld=record.withheld,
        bits=float(record.evaluations["bits"][-1]),
        relayed_per_device=_relays(record, "upload") / devices,
        delivered_per_device=_relays(record, "delivery") / devices,
        models_taken_per_device=_relays(record, "download") / devices,
        failed_relays_per_device=sum(not relay.completed for relay in record.relays) / devices,
        epsilon=None if record.privacy is None else max(record.privacy.epsilon),
        delta=None if record.privacy is None else record.privacy.delta,
        others={name: float(np.mean(values[-final_evaluations(record) :])) for name, values in record.others.items()},
    )


def final_evaluations(record: RunRecord) -> int:
    """The number of last evaluations whose mean is the score; the initial model never counts."""
    trained = int((record.evaluations["round"] > 0).sum())
    return max(min(record.scenario.learning.final_evaluations, trained), 1)


def _relays(record: RunRecord, kind: RelayKind) -> int:
    return sum(relay.completed and relay.kind == kind for relay in record.relays)


def summarise_scheme(runs: Sequence[RunSummary]) -> SchemeSummary:
    score = estimate([run.score for run in runs])
    rows = [asdict(run) for run in runs]
    mean = {name: fmean(row[name] for row in rows) for name, value in rows[0].items() if isinstance(value, float)}
    same: dict[str, Any] = {
        name: value for name, value in mean.items() if name == "budget_joules" or name.endswith("_per_device")
    }
    shared = [name for name in runs[0].others if all(name in run.others for run in runs)]
    return SchemeSummary(
        name=runs[0].scheme,
        energy_rule=runs[0].energy_rule,
        seeds=len(runs),
        metric=runs[0].metric,
        score_mean=score.mean,
        score_sd=score.sd,
        score_ci95=score.ci95,
        energy_joules_mean=mean["energy_joules"],
        kept_fraction_mean=mean["kept_fraction"],
        staleness_rounds_mean=mean["staleness_rounds"],
        parameters=runs[0].parameters,
        sums=runs[0].sums,
        bits_mean=mean["bits"],
        epsilon_max=max((run.epsilon for run in runs if run.epsilon is not None), default=None),
        delta=runs[0].delta,
        others={name: fmean(run.others[name] for run in runs) for name in shared},
        **same,
    )


def paired_difference(runs: Sequence[RunSummary], others: Sequence[RunSummary]) -> Difference:
    """The difference in score over the seeds that both have.

    All schemes of a seed share one world, so differences between worlds cancel.
    """
    theirs = {run.seed: run.score for run in others}
    return difference([run.score - theirs[run.seed] for run in runs if run.seed in theirs])


def run_json(record: RunRecord) -> dict[str, Any]:
    """A run as JSON; its score has the name of its metric, e.g. `accuracy`."""
    summary = asdict(summarise_run(record)) | {"metric": record.metric.name}
    named = {key.replace("score", record.metric.name): value for key, value in summary.items()}
    trace = None if record.trace is None else asdict(record.trace)
    privacy = None if record.privacy is None else asdict(record.privacy)
    return {"folder": str(record.folder), "wall_s": record.wall_s, **named, "privacy": privacy, "trace": trace}
