"""Sweeps: do what is missing of a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wayfare.places import RUNS
from wayfare.records import RunRecord, read_run
from wayfare.studies.cost import Estimates, Measured
from wayfare.studies.jobs import Backend, Claim, Progress, Queue, Shared, conduct
from wayfare.studies.local import default_jobs, local_backend
from wayfare.studies.results import RunResult, StudyResults, result_of, results_of
from wayfare.studies.single import Execution
from wayfare.studies.store import Manifest, PlannedRun, StudyFolder, manifest_of
from wayfare.studies.study import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a sweep would do."""

    folder: Path
    manifest: Manifest
    finished: list[PlannedRun]
    waiting: list[PlannedRun]
    run_seconds: float | None  # of all that waits, one after another; None before the first run is finished
    workers: int

    @property
    def seconds(self) -> float | None:
        """Until everything is done."""
        return None if self.run_seconds is None else self.run_seconds / max(min(self.workers, len(self.waiting)), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a sweep came to."""

    results: StudyResults
    failures: list[tuple[str, str]]  # names of runs, and why they failed


def study_folder(plan: Plan, out: Path | str = RUNS) -> Path:
    """Where a study lies."""
    return Path(out) / plan.study.name


def outlook(
    plan: Plan, *, out: Path | str = RUNS, execution: Execution | None = None, workers: int | None = None
) -> Outlook:
    """What a sweep would do, and how long it would take by the runs that are finished. Nothing is written."""
    execution = execution or Execution()
    folder, manifest = StudyFolder(study_folder(plan, out)), manifest_of(plan, execution)
    finished = [run for run in manifest.runs if folder.is_finished(run)]
    waiting = [run for run in manifest.runs if not folder.is_finished(run)]
    estimates = _estimates([result_of(read_run(folder.run_folder(run)), run, ()) for run in finished])
    seconds = [estimates.seconds(run.point, run.scheme, run.cost) for run in waiting]
    known = [one for one in seconds if one is not None]
    return Outlook(
        folder=folder.path,
        manifest=manifest,
        finished=finished,
        waiting=waiting,
        run_seconds=sum(known) if len(known) == len(waiting) else None,
        workers=workers or default_jobs(execution),
    )


def sweep(
    plan: Plan,
    *,
    out: Path | str = RUNS,
    pool: Path | None = None,
    jobs: int | None = None,
    execution: Execution | None = None,
    backend: Backend | None = None,
    progress: Progress | None = None,
    on_record: Callable[[Path, RunRecord], None] | None = None,
    run_missing: bool = True,
    same_input: bool = False,
) -> Sweep:
    """Do every run of a study that is not finished yet: on this machine, or wherever the back end has its workers.

    Finished runs are found by their key and never repeated. Several sweeps of one study may go on at the same time:
    each takes the runs that no other has taken; and so do sweeps of studies with one ``pool``, which holds the runs of
    all of them. ``on_record`` is told of every run that comes in. Without ``run_missing`` it only reads what is there.
    With ``same_input`` all runs need the same data, and the first that misses them ends the study.
    """
    shared = Shared(execution=execution or Execution())
    folder, manifest = StudyFolder(study_folder(plan, out), pool), manifest_of(plan, shared.execution)
    folder.write(manifest)
    found: dict[str, RunResult] = {}

    def keep(run: PlannedRun, record: RunRecord) -> None:
        found[run.key] = result_of(record, run, manifest.targets)
        if on_record:
            on_record(folder.run_folder(run), record)

    for run in manifest.runs:
        if folder.is_finished(run):
            keep(run, read_run(folder.run_folder(run)))
            folder.clear(run)
    waiting = [run for run in manifest.runs if run.key not in found] if run_missing else []
    estimates = _estimates(list(found.values()))
    costs = {run.key: estimates.seconds(run.point, run.scheme, run.cost) or run.cost for run in waiting}
    todo = folder.jobs(manifest, waiting, costs)
    held: set[int] = set()

    def claim(place: int) -> Claim:
        # A job that lost its worker waits again, and is still ours.
        if place in held:
            return "mine"
        answer = folder.claim(waiting[place])
        if answer == "mine":
            held.add(place)
        return answer

    def release(place: int) -> None:
        if place in held:
            held.remove(place)
            folder.release(waiting[place])

    def arrived(place: int, record: RunRecord) -> None:
        keep(waiting[place], record)
        release(place)

    if progress and run_missing:
        progress.begin(todo, len(found))
    try:
        failures = conduct(
            Queue(todo, claim),
            backend or local_backend(jobs, len(todo), shared),
            on_finished=arrived,
            on_failed=lambda failure: release(failure.place),
            progress=progress,
            same_input=same_input,
        )
    finally:
        # However it ends, others may have what was taken and not done.
        for place in list(held):
            release(place)
    in_order = [found[run.key] for run in manifest.runs if run.key in found]
    return Sweep(
        results=results_of(folder.path, manifest, in_order, len(failures)),
        failures=[(todo[failure.place].name, failure.reason) for failure in failures],
    )


def _estimates(results: Sequence[RunResult]) -> Estimates:
    return Estimates([Measured(one.run.point, one.run.scheme, one.run.cost, one.wall_s) for one in results])
