"""The results of a study: measures of its finished runs, and statistics over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from wayfare.contacts import TraceUse
from wayfare.errors import RunFolderError
from wayfare.learning.tasks import Metric
from wayfare.places import STUDY_FILE
from wayfare.records import (
    RunRecord,
    RunSummary,
    SchemeSummary,
    final_evaluations,
    find_runs,
    read_run,
    summarise_run,
    summarise_scheme,
)
from wayfare.records.statistics import (
    Censored,
    Difference,
    Estimate,
    Reached,
    censored_median,
    difference,
    estimate,
    reach,
)
from wayfare.studies.store import Manifest, PlannedRun, StudyFolder
from wayfare.studies.study import USUAL_METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    run: PlannedRun
    folder: Path
    summary: RunSummary
    measures: dict[str, float]
    reached: list[Reached]  # for each target of the study
    rounds: int
    averaged: int  # number of evaluations in the mean that is its score
    wall_s: float
    trace: TraceUse | None  # None if mobility is not a trace

    @property
    def metric(self) -> Metric:
        return self.summary.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One scheme at one point, over its seeds."""

    point: int
    scheme: str
    energy_rule: str
    results: list[RunResult]
    estimates: dict[str, Estimate]  # the study's metrics
    to_reference: Difference | None  # difference in score, over the seeds that both have
    rounds_to: list[Censored]  # for each target
    time_s_to: list[Censored]
    energy_joules_to: list[Censored]
    shared: bool  # whether other points share its runs


@dataclass(frozen=True, kw_only=True)
class StudyResults:
    folder: Path
    manifest: Manifest
    results: list[RunResult]
    rows: list[Row]
    reference: str
    failed: int
    missing: int  # including failed runs
    unknown_metrics: list[str]

    @property
    def metric(self) -> Metric | None:
        return self.results[0].metric if self.results else None

    @property
    def schemes(self) -> list[SchemeSummary]:
        return [summarise_scheme([result.summary for result in row.results]) for row in self.rows]

    @cached_property
    def runs(self) -> list[RunRecord]:
        """The records of all finished runs, read on first use."""
        return [read_run(folder) for folder in self.folders]

    @property
    def folders(self) -> list[Path]:
        """The folders of all finished runs, each once."""
        return list(dict.fromkeys(result.folder for result in self.results))

    @property
    def finished(self) -> int:
        return len(self.folders)

    @property
    def seeds(self) -> int:
        return max((len(row.results) for row in self.rows), default=0)


def result_of(record: RunRecord, run: PlannedRun, targets: Sequence[float]) -> RunResult:
    return RunResult(
        run=run,
        folder=record.folder,
        summary=summarise_run(record),
        measures=measures_of(record),
        reached=[reach(record, target) for target in targets],
        rounds=record.scenario.rounds,
        averaged=final_evaluations(record),
        wall_s=record.wall_s,
        trace=record.trace,
    )


def summarise(records: Sequence[RunRecord]) -> list[SchemeSummary]:
    """One summary per scheme, in the order in which schemes first appear."""
    by_scheme: dict[str, list[RunSummary]] = {}
    for record in records:
        by_scheme.setdefault(record.scheme, []).append(summarise_run(record))
    return [summarise_scheme(runs) for runs in by_scheme.values()]


def measures_of(record: RunRecord) -> dict[str, float]:
    """All measures of a run that a table may show; metrics are means of the last evaluations, like the score."""
    summary, last = summarise_run(record), final_evaluations(record)
    return {
        "score": summary.score,
        "loss": float(np.mean(record.evaluations["loss"][-last:])),
        **summary.others,
        "energy_joules": summary.energy_joules,
        "budget_joules": summary.budget_joules,
        "bits": summary.bits,
        "kept_fraction": summary.kept_fraction,
        "uploads_per_device": summary.uploads_per_device,
        "failed_uploads_per_device": summary.failed_uploads_per_device,
        "staleness_rounds": summary.staleness_rounds,
        "wall_s": record.wall_s,
        **({} if summary.epsilon is None else {"epsilon": summary.epsilon}),
    }


def read_results(path: Path, on_record: Callable[[PlannedRun, RunRecord], None] | None = None) -> StudyResults:
    """The results of a study's folder, or of any folder with runs of one scenario, which is a study of one point.

    Records are read once, one after another; ``on_record`` receives each of them.
    """
    folder, failed = StudyFolder(path), 0
    found: dict[PlannedRun, RunResult] = {}
    if (path / STUDY_FILE).is_file():
        manifest = folder.read()
        there = {run: folder.run_folder(run) for run in manifest.distinct if folder.is_finished(run)}
        failed = sum(run not in there and folder.error_file(run).exists() for run in manifest.distinct)
    else:
        manifest, there = _loose_runs(path)
    for first, place in there.items():
        record = read_run(place)
        result = result_of(record, first, manifest.targets)
        for run in manifest.places[first.key]:
            found[run] = replace(result, run=run)
            if on_record:
                on_record(run, record)
    return results_of(path, manifest, [found[run] for run in manifest.runs if run in found], failed)


def results_of(path: Path, manifest: Manifest, found: Sequence[RunResult], failed: int) -> StudyResults:
    reference = "mads" if "mads" in manifest.schemes else manifest.schemes[0]
    groups: dict[tuple[int, str], list[RunResult]] = {}
    for result in found:
        groups.setdefault((result.run.point, result.run.scheme), []).append(result)
    known = {name for result in found for name in (*result.measures, result.metric.name)}
    rows = [
        _row(manifest, point, scheme, groups[point, scheme], groups.get((point, reference), []))
        for point in range(len(manifest.points))
        for scheme in manifest.schemes
        if (point, scheme) in groups
    ]
    return StudyResults(
        folder=path,
        manifest=manifest,
        results=list(found),
        rows=rows,
        reference=reference,
        failed=failed,
        missing=len(manifest.distinct) - len({result.run.key for result in found}),
        unknown_metrics=[name for name in manifest.metrics if found and name not in known],
    )


def _row(manifest: Manifest, point: int, scheme: str, mine: Sequence[RunResult], reference: Sequence[RunResult]) -> Row:
    theirs = {result.run.seed: result.summary.score for result in reference}
    shared = [result for result in mine if result.run.seed in theirs]
    apart = scheme != (reference[0].run.scheme if reference else scheme)
    return Row(
        point=point,
        scheme=scheme,
        energy_rule=mine[0].summary.energy_rule,
        results=list(mine),
        estimates=dict(_estimates(manifest.metrics, mine)),
        to_reference=difference([result.summary.score - theirs[result.run.seed] for result in shared])
        if shared and apart
        else None,
        rounds_to=_medians(mine, len(manifest.targets), lambda reached: reached.rounds),
        time_s_to=_medians(mine, len(manifest.targets), lambda reached: reached.time_s),
        energy_joules_to=_medians(mine, len(manifest.targets), lambda reached: reached.energy_joules),
        shared=manifest.is_shared(mine[0].run),
    )


def _estimates(metrics: Sequence[str], results: Sequence[RunResult]) -> Iterator[tuple[str, Estimate]]:
    for name in metrics:
        source = "score" if name == results[0].metric.name else name
        values = [result.measures[source] for result in results if source in result.measures]
        if len(values) == len(results):
            yield source, estimate(values)


def _medians(results: Sequence[RunResult], targets: int, of: Callable[[Reached], float | None]) -> list[Censored]:
    return [censored_median([of(result.reached[target]) for result in results]) for target in range(targets)]


def _loose_runs(path: Path) -> tuple[Manifest, dict[PlannedRun, Path]]:
    """The runs in a folder that is not a study, as a study of one point."""
    records = [read_run(folder) for folder in find_runs(path)]
    scenarios = {record.scenario.model_copy(update={"schemes": (), "name": ""}) for record in records}
    if len(scenarios) > 1:
        raise RunFolderError(f"{path}: is not a study, and has runs of {len(scenarios)} scenarios; choose one of them")
    runs = {
        PlannedRun(key=record.folder.name, point=0, scheme=record.scheme, seed=record.seed, cost=1.0): record.folder
        for record in records
    }
    (scheme, seed), times = Counter((record.scheme, record.seed) for record in records).most_common(1)[0]
    if times > 1:
        raise RunFolderError(f"{path}: is not a study, and has {times} runs of {scheme} with seed {seed}; choose one")
    first, present = records[0].scenario, list(dict.fromkeys(record.scheme for record in records))
    manifest = Manifest(
        name=first.name,
        title="",
        axes=[],
        points=[{}],
        scenarios=[first.model_dump(mode="json")],
        # In the order of the scenario's list, then the others.
        schemes=sorted(
            present, key=lambda name: first.schemes.index(name) if name in first.schemes else len(first.schemes)
        ),
        metrics=list(USUAL_METRICS),
        targets=[],
        runs=list(runs),
        recipes={record.scheme: record.scheme_text for record in records},
    )
    return manifest, runs
