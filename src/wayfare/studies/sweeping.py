"""Sweeps and comparisons: perform the missing runs of a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wayfare.errors import RunError
from wayfare.learning.tasks import Task, forget_tasks
from wayfare.methods import Recipe
from wayfare.places import RUNS
from wayfare.records import RunRecord, read_run
from wayfare.scenario import Scenario
from wayfare.studies.cost import Estimates, Measured
from wayfare.studies.jobs import Backend, Claim, Failure, Progress, Queue, Shared, conduct, failures_text
from wayfare.studies.local import default_jobs, local_backend
from wayfare.studies.results import RunResult, StudyResults, result_of, results_of
from wayfare.studies.single import Execution
from wayfare.studies.store import Manifest, PlannedRun, StudyFolder, manifest_of
from wayfare.studies.study import Plan, comparison_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    folder: Path
    manifest: Manifest
    finished: list[PlannedRun]
    waiting: list[PlannedRun]
    run_seconds: float | None  # of all waiting runs, one after another; None before the first run is finished
    workers: int

    @property
    def seconds(self) -> float | None:
        return None if self.run_seconds is None else self.run_seconds / max(min(self.workers, len(self.waiting)), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    results: StudyResults
    failures: list[Failure]

    def raise_failures(self) -> None:
        """Raise a RunError that names failed runs and says how to resume; do nothing if none failed."""
        if not self.failures:
            return
        finished, traces = self.results.finished, self.failures[0].job.folder.parent
        safe = f"The other {finished} are finished, in {self.results.folder}. " if finished else ""
        what = failures_text(self.failures, len(self.results.manifest.distinct)).removesuffix(".")
        raise RunError(
            f"{what}. {safe}Tracebacks are in "
            f"{traces}/*.error.txt. The same call or command repeats only the missing runs"
        ) from self.failures[0].error


def study_folder(plan: Plan, out: Path | str = RUNS) -> Path:
    return Path(out) / plan.folder_name


def outlook(
    plan: Plan, *, out: Path | str = RUNS, execution: Execution | None = None, workers: int | None = None
) -> Outlook:
    """The runs that a sweep would perform, and their estimated time. Writes nothing."""
    execution = execution or Execution()
    folder, manifest = StudyFolder(study_folder(plan, out)), manifest_of(plan, execution)
    finished = [run for run in manifest.distinct if folder.is_finished(run)]
    waiting = [run for run in manifest.distinct if not folder.is_finished(run)]
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
    """Perform all unfinished runs of a study, on this machine or on another ``backend``.

    Finished runs are found by their key and never repeated, unless ``execution`` asks for fresh ones. Several sweeps of
    one study may run at the same time: each takes runs that no other has taken. The same holds for studies with a
    common ``pool``, which holds the runs of all of them. ``on_record`` receives every finished run. Without
    ``run_missing`` the sweep only reads finished runs. All runs of one point need the same data, and with
    ``same_input`` those of all points do: the first run without its data ends the study.
    """
    forget_tasks()
    shared = Shared(execution=execution or Execution(), task=plan.task)
    fresh = run_missing and shared.execution.safeguards.fresh
    folder, manifest = StudyFolder(study_folder(plan, out), pool), manifest_of(plan, shared.execution)
    found: dict[str, RunResult] = {}

    def keep(run: PlannedRun, record: RunRecord) -> None:
        found[run.key] = result_of(record, run, manifest.targets)
        if on_record:
            on_record(folder.run_folder(run), record)

    for run in manifest.distinct:
        if not fresh and folder.is_finished(run):
            keep(run, read_run(folder.run_folder(run)))
            folder.clear(run)
    waiting = [run for run in manifest.distinct if run.key not in found] if run_missing else []
    estimates = _estimates(list(found.values()))
    todo = [
        folder.job(plan, manifest, run, estimates.seconds(run.point, run.scheme, run.cost) or run.cost)
        for run in waiting
    ]
    backend = backend or local_backend(jobs, todo, shared)
    folder.write(manifest)
    held: set[int] = set()

    def claim(index: int) -> Claim:
        # A job that lost its worker waits again, and still belongs to this sweep.
        if index in held:
            return "mine"
        answer = folder.claim(waiting[index], again=fresh)
        if answer == "mine":
            held.add(index)
        return answer

    def release(index: int) -> None:
        if index in held:
            held.remove(index)
            folder.release(waiting[index])

    def arrived(index: int, record: RunRecord) -> None:
        keep(waiting[index], record)
        release(index)

    if progress and run_missing:
        progress.begin(todo, len(found))
    try:
        failures = conduct(
            Queue(todo, claim),
            backend,
            on_finished=arrived,
            on_failed=release,
            progress=progress,
            same_input=same_input or len(plan.points) == 1,
        )
    finally:
        # In any case, let other sweeps take the runs that are not finished.
        for index in list(held):
            release(index)
    in_order = [replace(found[run.key], run=run) for run in manifest.runs if run.key in found]
    return Sweep(results=results_of(folder.path, manifest, in_order, len(failures)), failures=failures)


def compare(
    scenario: Scenario,
    schemes: Sequence[Recipe] | None = None,
    *,
    seeds: int | Sequence[int] = 3,
    out: Path | str = RUNS,
    jobs: int | None = None,
    task: Task | None = None,
    execution: Execution | None = None,
    progress: Progress | None = None,
) -> StudyResults:
    """Run every scheme with every seed: a study of one point. All schemes of a seed share one world.

    Finished runs are reused. ``task`` replaces the scenario's task. With several jobs it is sent to other processes, so
    its network and loss must be module-level functions.
    """
    plan = comparison_plan(scenario, schemes, seeds=seeds, task=task)
    done = sweep(plan, out=out, jobs=jobs, execution=execution, progress=progress)
    done.raise_failures()
    return done.results


def _estimates(results: Sequence[RunResult]) -> Estimates:
    return Estimates([Measured(one.run.point, one.run.scheme, one.run.cost, one.wall_s) for one in results])
