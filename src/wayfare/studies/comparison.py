"""Comparisons: every scheme in the same worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wayfare.errors import RunError, RunFolderError, ScenarioError
from wayfare.learning.tasks import Task
from wayfare.methods import Recipe, make_method
from wayfare.places import RUNS
from wayfare.records import RunRecord, RunSummary, SchemeSummary, read_run, summarise_run, summarise_scheme
from wayfare.scenario import Scenario
from wayfare.scenario.dump import to_toml
from wayfare.studies.cost import relative_cost
from wayfare.studies.jobs import Failure, Job, Progress, Queue, Shared, conduct, failures_text
from wayfare.studies.local import local_backend
from wayfare.studies.single import Execution, comparison_folder, naming_task
from wayfare.version import ALGORITHM, __version__
from wayfare.world import draw_world, fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Schemes on the same worlds: a line for each scheme, and the runs behind it."""

    scenario: Scenario
    folder: Path
    schemes: list[SchemeSummary]
    runs: list[RunRecord]


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
    only_missing: bool = False,
) -> Comparison:
    """Run every scheme with every seed. All schemes of a seed meet the identical world, so differences are paired.

    A task of one's own takes the place of the scenario's; with several jobs it travels to other processes, so its
    network and loss must be functions of a module. With ``only_missing`` runs that are there already are taken as they
    are: after a comparison that lost some of its runs, and not after a scheme or a task of one's own has changed.
    """
    shared = Shared(execution=execution or Execution(), task=task)
    scenario = naming_task(scenario, task)
    chosen = [make_method(scheme, scenario) for scheme in (scenario.schemes if schemes is None else schemes)]
    if isinstance(seeds, int) and seeds < 1:
        raise ScenarioError("seeds", seeds, "must be at least 1")
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    check_schemes_and_seeds([scheme.name for scheme in chosen], numbers)
    everything = [
        Job(
            name=f"{scheme.name}, seed {seed}",
            scenario=scenario,
            scheme=scheme,
            seed=seed,
            out=Path(out),
            cost=relative_cost(scenario, scheme, task),
        )
        for seed in numbers
        for scheme in chosen
    ]
    runs = {job.folder: record for job in everything if only_missing and (record := _there(job, task))}
    waiting = [job for job in everything if job.folder not in runs]
    backend = local_backend(jobs, len(waiting), shared)
    if progress:
        progress.begin(waiting, len(runs))

    def keep(place: int, record: RunRecord) -> None:
        runs[waiting[place].folder] = record

    failures = conduct(Queue(waiting), backend, on_finished=keep, progress=progress, same_input=True)
    folder = comparison_folder(scenario, Path(out))
    if runs:
        (folder / "scenario.toml").write_text(to_toml(scenario), encoding="utf-8")
    if failures:
        raise _failed(waiting, failures, len(runs), folder) from failures[0].error
    records = [runs[job.folder] for job in everything]
    return Comparison(scenario=scenario, folder=folder, schemes=summarise(records), runs=records)


def summarise(records: Sequence[RunRecord]) -> list[SchemeSummary]:
    """A line for each scheme, in the order in which schemes first appear."""
    by_scheme: dict[str, list[RunSummary]] = {}
    for record in records:
        by_scheme.setdefault(record.scheme, []).append(summarise_run(record))
    return [summarise_scheme(runs) for runs in by_scheme.values()]


def check_schemes_and_seeds(schemes: Sequence[str], seeds: Sequence[int]) -> None:
    """Refuse lists that make no comparison."""
    if not schemes:
        raise ScenarioError("schemes", [], "name at least one scheme")
    for name in schemes:
        if schemes.count(name) > 1:
            raise ScenarioError("schemes", name, "must not be named twice")
    if not seeds:
        raise ScenarioError("seeds", 0, "must be at least 1")
    if len(set(seeds)) < len(seeds):
        raise ScenarioError("seeds", list(seeds), "must not repeat")


def _there(job: Job, task: Task | None) -> RunRecord | None:
    """A finished run of this version and in this world: a trace may have changed since."""
    try:
        record = read_run(job.folder)
    except RunFolderError:
        return None
    meta = record.meta
    same_code = (meta["versions"]["wayfare"], meta.get("algorithm", ALGORITHM)) == (__version__, ALGORITHM)
    if not same_code:
        return None
    world = draw_world(job.scenario, job.seed, task)  # type: ignore[arg-type]  # a task is hashed by what it is
    return record if meta["world"] == meta["world"] | fingerprint(world) else None


def _failed(jobs: Sequence[Job], failures: Sequence[Failure], finished: int, folder: Path) -> RunError:
    """What failed, what is safe, how to go on."""
    what = failures_text([(jobs[failure.place].name, failure.reason) for failure in failures], finished + len(failures))
    if any(not failure.lost for failure in failures):
        what += f" (traces: {folder}/*.error.txt)"
    if not finished:
        return RunError(what)
    return RunError(
        f"{what}. The other {finished} are finished and safe: `wayfare show {folder}`; "
        "started again with `only_missing=True`, it does what is missing"
    )
