"""Jobs, their queue and their outcomes, for any back end.

A back end (processes on this machine, a Ray cluster) takes jobs from the queue and reports events. `conduct` handles
them: it retries a job whose worker died, it does not retry a run that failed, and the other jobs continue.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from wayfare.errors import InputError, ScenarioError, UnavailableError
from wayfare.learning.tasks import Task, is_from_file
from wayfare.methods import Method
from wayfare.records import RunRecord, RunSummary, read_run, summarise_run
from wayfare.scenario import Scenario
from wayfare.signals import StopRequest
from wayfare.studies.keys import run_key
from wayfare.studies.single import Execution, carry_out, carry_out_until

# A job that loses its worker this often is likely to be the cause.
TRIES = 3
# A worker prefers a job in its current world if that job has at least this share of the longest waiting job's cost.
_LONG_ENOUGH = 0.5
# How often a run reports its round.
_REPORT_EVERY_S = 0.2
# Maximum number of failures that a message names.
_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str  # for display
    scenario: Scenario
    scheme: Method
    seed: int
    work: Path  # the folder of the unfinished run
    folder: Path  # the folder of the finished run
    cost: float = 1.0  # duration, in a unit common to all jobs of a list
    key: str = ""  # key of the planned run

    @property
    def rounds(self) -> int:
        return self.scenario.rounds

    @property
    def error_file(self) -> Path:
        """The file for the traceback of a failure; deleted when the run succeeds later."""
        return error_file(self.folder)


def error_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.error.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all jobs of a list share; it is sent to a worker once."""

    execution: Execution
    task: Task | None = None


def perform(job: Job, shared: Shared, on_round: Callable[[int], None] | None, stop: StopRequest | None = None) -> None:
    """Perform a job in this process, unless `wayfare resume` has already finished it.

    Signals stop it, or ``stop`` does in a thread that receives no signals, by a StoppedError.
    """
    execution = shared.execution
    _reject_changed_task(job, execution)
    if execution.safeguards.fresh or not is_finished(job.work):
        run = carry_out if stop is None else partial(carry_out_until, stop)
        run(job.work, job.scenario, job.scheme, job.seed, task=shared.task, execution=execution, on_round=on_round)
    move_finished(job.work, job.folder)


def _reject_changed_task(job: Job, execution: Execution) -> None:
    """Raise ScenarioError if the file of a task has changed since the run was planned."""
    if not job.key or not is_from_file(job.scenario.learning):
        return
    if run_key(job.scenario, job.scheme, job.seed, execution) != job.key:
        rule = "its code or data changed after this run was planned, or are random in every process; start again"
        raise ScenarioError("learning.task", job.scenario.learning.task, rule)


def move_finished(work: Path, folder: Path) -> None:
    """Move a finished run to its final folder, replacing an older run."""
    if work != folder:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)


def is_finished(folder: Path) -> bool:
    """Whether the folder has a finished run; an unfinished one has another folder name."""
    return folder.is_dir()


@dataclass(frozen=True, slots=True)
class Finished:
    """A run is finished, and its records are in the folder of its job."""

    index: int


@dataclass(frozen=True, slots=True)
class Broken:
    """A run raised an exception; a retry would raise it again."""

    index: int
    error: BaseException
    trace: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker of a job or its machine died; the job itself may be fine."""

    index: int
    reason: str


Event: TypeAlias = Finished | Broken | Lost

Step: TypeAlias = int | tuple[str, int, int]
"""The round of a run, or the progress of long work before it: what it is, the steps done, and the total."""


class Reports:
    """Reports the steps of a run at a limited rate."""

    def __init__(self, send: Callable[[Step], None]) -> None:
        self._send, self._next_s = send, 0.0

    def round(self, round_: int) -> None:
        if self._is_due():
            self._send(round_)

    def work(self, what: str, done: int, total: int) -> None:
        # The end always counts: it removes the bar.
        if self._is_due() or done >= total:
            self._send((what, done, total))

    def _is_due(self) -> bool:
        now_s = time.monotonic()
        due = now_s >= self._next_s
        if due:
            self._next_s = now_s + _REPORT_EVERY_S
        return due


OnRound: TypeAlias = Callable[[int, int], None]
"""Receives the index of a job and the round that it has reached."""


class Progress(Protocol):
    """Receives the progress of a list of jobs; a job is identified by its index in the list."""

    def begin(self, jobs: Sequence[Job], finished: int) -> None:
        """The jobs are about to start; `finished` runs are not in the list because they were already finished."""

    def advance(self, index: int, round_: int) -> None:
        """A run has started (round 0) or reached a round."""

    def done(self, index: int, summary: RunSummary, *, elsewhere: bool) -> None:
        """A run is finished, here or by another sweep of the same study."""

    def failed(self, index: int, reason: str) -> None:
        """A run failed and will not be retried."""

    def again(self, index: int, reason: str) -> None:
        """A run lost its worker and will be retried."""


Claim: TypeAlias = Literal["mine", "busy", "done"]


def _mine(_: int) -> Claim:
    return "mine"


class Queue:
    """Waiting jobs, the longest first, so that the last jobs are short."""

    def __init__(self, jobs: Sequence[Job], claim: Callable[[int], Claim] = _mine) -> None:
        self.jobs = jobs
        self._claim = claim
        self._waiting = sorted(range(len(jobs)), key=lambda index: (-jobs[index].cost, index))
        self._elsewhere: list[int] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, after: int | None = None) -> int | None:
        """The next job for a worker, or None if there is none now; another sweep may hold the waiting ones."""
        for index in list(self._preferred(after)):
            claim = self._claim(index)
            if claim == "busy":
                continue
            self._waiting.remove(index)
            if claim == "mine":
                return index
            self._elsewhere.append(index)
        return None

    def done_elsewhere(self) -> list[int]:
        """The jobs that other sweeps have finished since the last call."""
        found, self._elsewhere = self._elsewhere, []
        return found

    def put_back(self, index: int) -> None:
        """Put a job that lost its worker at the front of the queue."""
        self._waiting.insert(0, index)

    def _preferred(self, after: int | None) -> Iterable[int]:
        """Jobs in the worker's current world come first, unless much longer ones wait."""
        if after is None or not self._waiting:
            return self._waiting
        least = _LONG_ENOUGH * self.jobs[self._waiting[0]].cost
        same = [index for index in self._waiting if self._same_world(index, after) and self.jobs[index].cost >= least]
        return [*same, *(index for index in self._waiting if index not in same)]

    def _same_world(self, one: int, other: int) -> bool:
        return self.jobs[one].seed == self.jobs[other].seed and self.jobs[one].scenario == self.jobs[other].scenario


class Backend(Protocol):
    def run(self, queue: Queue, on_round: OnRound) -> Generator[Event, None, None]:
        """Take jobs until none waits and none runs; closing the iterator stops running jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    job: Job
    reason: str
    error: BaseException | None = None


def conduct(
    queue: Queue,
    backend: Backend,
    *,
    on_finished: Callable[[int, RunRecord], None],
    on_failed: Callable[[int], None] | None = None,
    progress: Progress | None = None,
    same_input: bool = False,
) -> list[Failure]:
    """Perform all jobs of a queue; return the failures in the order in which they happened.

    With ``same_input`` all jobs share their input, so an input error of one is raised at once.
    """
    failures: list[Failure] = []
    losses: dict[int, int] = {}

    def finish(index: int, *, elsewhere: bool = False) -> None:
        queue.jobs[index].error_file.unlink(missing_ok=True)
        record = read_run(queue.jobs[index].folder)
        on_finished(index, record)
        if progress:
            progress.done(index, summarise_run(record), elsewhere=elsewhere)

    def fail(index: int, reason: str, trace: str = "", error: BaseException | None = None) -> None:
        job = queue.jobs[index]
        failures.append(Failure(job=job, reason=reason, error=error))
        # The failure is reported in any case; a full disk must not stop the other jobs.
        with suppress(OSError):
            job.error_file.parent.mkdir(parents=True, exist_ok=True)
            job.error_file.write_text(trace or f"{reason}\n", encoding="utf-8")
        if on_failed:
            on_failed(index)
        if progress:
            progress.failed(index, reason)

    def advance(index: int, round_: int) -> None:
        if progress:
            progress.advance(index, round_)

    with closing(backend.run(queue, advance)) as events:
        for event in events:
            match event:
                case Finished(index):
                    finish(index)
                case Broken(index, error, trace):
                    if same_input and isinstance(error, InputError | UnavailableError):
                        raise error
                    fail(index, reason_of(error), trace, error)
                case Lost(index, reason):
                    losses[index] = losses.get(index, 0) + 1
                    if losses[index] < TRIES:
                        queue.put_back(index)
                        if progress:
                            progress.again(index, reason)
                    else:
                        fail(index, f"{reason}, {TRIES} times")
            for index in queue.done_elsewhere():
                finish(index, elsewhere=True)
    for index in queue.done_elsewhere():
        finish(index, elsewhere=True)
    return failures


def reason_of(error: BaseException) -> str:
    """The reason in one line, with the class of errors that are not Wayfare's."""
    text = str(error).strip().split("\n")[0]
    ours = type(error).__module__.startswith("wayfare.")
    return text if ours and text else f"{type(error).__name__}: {text}" if text else type(error).__name__


def failures_text(failures: Sequence[Failure], runs: int) -> str:
    """Which runs failed and why: one reason if all share it, otherwise the first few."""
    if len(failures) == runs > 1 and len({failure.reason for failure in failures}) == 1:
        return f"all {runs} runs failed: {failures[0].reason}"
    listed = "; ".join(f"{failure.job.name}: {failure.reason}" for failure in failures[:_LISTED])
    more = f"; and {len(failures) - _LISTED} more" if len(failures) > _LISTED else ""
    return f"{len(failures)} of {runs} runs failed: {listed}{more}"
