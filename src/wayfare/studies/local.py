"""Many runs on one machine: a pool of processes, one thread each."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from wayfare.engine import Compute
from wayfare.errors import ScenarioError
from wayfare.learning.tasks import Task
from wayfare.places import RUNS
from wayfare.records import RunRecord, RunSummary, SchemeSummary, summarise_run, summarise_scheme
from wayfare.scenario import Scenario
from wayfare.scenario.dump import to_toml
from wayfare.schemes import Scheme, checked, make_scheme
from wayfare.studies.single import Execution, comparison_folder, naming_task, run

# How often a worker reports its progress, in rounds.
_REPORT_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Schemes on the same worlds: a line for each scheme, and the runs behind it."""

    scenario: Scenario
    folder: Path
    schemes: list[SchemeSummary]
    runs: list[RunRecord]


class Progress(Protocol):
    """Told how a comparison goes; runs are known by their place in the list."""

    def begin(self, names: Sequence[str], rounds: int) -> None:
        """All runs are about to start."""
        ...

    def advance(self, place: int, round_: int) -> None:
        """One run has come to a round."""
        ...

    def done(self, place: int, summary: RunSummary) -> None:
        """One run is finished."""
        ...


def compare(
    scenario: Scenario,
    schemes: Sequence[str | Scheme] | None = None,
    *,
    seeds: int | Sequence[int] = 3,
    out: Path | str = RUNS,
    jobs: int | None = None,
    task: Task | None = None,
    execution: Execution | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run every scheme with every seed. All schemes of a seed meet the identical world, so differences are paired.

    A task of one's own takes the place of the scenario's; with several jobs it travels to other processes, so its
    network and loss must be functions of a module.
    """
    execution = execution or Execution()
    scenario = naming_task(scenario, task)
    chosen = [
        make_scheme(scheme, scenario.control, scenario.mixing) if isinstance(scheme, str) else checked(scheme)
        for scheme in (scenario.schemes if schemes is None else schemes)
    ]
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    _check(chosen, numbers, jobs)
    tasks = [(scheme, seed) for seed in numbers for scheme in chosen]
    if progress:
        progress.begin([f"{scheme.name}, seed {seed}" for scheme, seed in tasks], scenario.rounds)
    workers = min(jobs or default_jobs(execution), len(tasks))
    arguments = _Arguments(scenario=scenario, out=Path(out), task=task, execution=execution)
    results = _in_process(arguments, tasks, progress) if workers == 1 else _in_pool(arguments, tasks, progress, workers)
    runs: dict[int, RunRecord] = {}
    for place, record in results:
        runs[place] = record
        if progress:
            progress.done(place, summarise_run(record))
    records = [runs[place] for place in range(len(tasks))]
    folder = comparison_folder(scenario, Path(out))
    (folder / "scenario.toml").write_text(to_toml(scenario), encoding="utf-8")
    return Comparison(scenario=scenario, folder=folder, schemes=summarise(records), runs=records)


def summarise(records: Sequence[RunRecord]) -> list[SchemeSummary]:
    """A line for each scheme, in the order in which schemes first appear."""
    by_scheme: dict[str, list[RunSummary]] = {}
    for record in records:
        by_scheme.setdefault(record.scheme, []).append(summarise_run(record))
    return [summarise_scheme(runs) for runs in by_scheme.values()]


def default_jobs(execution: Execution) -> int:
    """One run at a time on a GPU, else one for each core this process may use: a container may have few of many."""
    if Compute.named(execution.device, execution.precision, fast=execution.fast).device.type == "cuda":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    scenario: Scenario
    out: Path
    task: Task | None
    execution: Execution


def _check(schemes: Sequence[Scheme], seeds: Sequence[int], jobs: int | None) -> None:
    if not schemes:
        raise ScenarioError("schemes", [], "name at least one scheme")
    names = [scheme.name for scheme in schemes]
    for name in names:
        if names.count(name) > 1:
            raise ScenarioError("schemes", name, "must not be named twice")
    if not seeds:
        raise ScenarioError("seeds", list(seeds), "must be at least 1")
    if len(set(seeds)) < len(seeds):
        raise ScenarioError("seeds", list(seeds), "must not repeat")
    if jobs is not None and jobs < 1:
        raise ScenarioError("jobs", jobs, "must be at least 1")


def _in_process(
    arguments: _Arguments, tasks: Sequence[tuple[Scheme, int]], progress: Progress | None
) -> Iterator[tuple[int, RunRecord]]:
    for place, (scheme, seed) in enumerate(tasks):
        on_round = partial(progress.advance, place) if progress else None
        yield place, _run(arguments, scheme, seed, on_round)


def _run(arguments: _Arguments, scheme: Scheme, seed: int, on_round: Callable[[int], None] | None) -> RunRecord:
    return run(
        arguments.scenario,
        scheme,
        seed=seed,
        out=arguments.out,
        task=arguments.task,
        execution=arguments.execution,
        on_round=on_round,
    )


def _in_pool(
    arguments: _Arguments, tasks: Sequence[tuple[Scheme, int]], progress: Progress | None, workers: int
) -> Iterator[tuple[int, RunRecord]]:
    # Fresh processes: a forked copy of a process that has used torch may hang.
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(reports,)) as pool:
        places: dict[Future[RunRecord], int] = {
            pool.submit(_work, arguments, scheme, seed, place): place for place, (scheme, seed) in enumerate(tasks)
        }
        waiting = set(places)
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
                _forward(reports, progress)
                for future in finished:
                    yield places[future], future.result()
        except BaseException:
            # Whatever ended the comparison, runs under way are not waited for; finished ones are safe on disk.
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


_reports: multiprocessing.Queue[tuple[int, int]] | None = None


def _begin_worker(reports: multiprocessing.Queue[tuple[int, int]]) -> None:
    """Keep the way back to the parent, for a queue cannot travel with a task; an interrupt is the parent's business."""
    global _reports
    _reports = reports
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(arguments: _Arguments, scheme: Scheme, seed: int, place: int) -> RunRecord:
    def report(round_: int) -> None:
        if _reports is not None and round_ % _REPORT_EVERY == 0:
            _reports.put((place, round_))

    return _run(arguments, scheme, seed, report)


def _forward(reports: multiprocessing.Queue[tuple[int, int]], progress: Progress | None) -> None:
    while True:
        try:
            place, round_ = reports.get_nowait()
        except queue.Empty:
            return
        if progress:
            progress.advance(place, round_)
