"""Runs to be done, whoever does them: the jobs, the queue they wait in, and what happens to them.

A back end (processes of this machine, a Ray cluster) takes jobs from the queue and tells what becomes of them;
`conduct` decides what that means: a worker that dies costs its job another try, a run that fails is not tried again,
and the others go on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from wayfare.errors import InputError, ScenarioError, UnavailableError
from wayfare.learning.tasks import Task, is_from_file
from wayfare.methods import Method
from wayfare.records import RunRecord, RunSummary, read_run, summarise_run
from wayfare.scenario import Scenario
from wayfare.studies.keys import run_key
from wayfare.studies.single import Execution, carry_out

# A job that loses its worker more often than this is likely to be the reason.
TRIES = 3
# A worker goes on with the world it has drawn if that job is at least so long compared with the longest that waits.
_LONG_ENOUGH = 0.5
# Failures that a message names.
_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    name: str  # for people
    scenario: Scenario
    scheme: Method
    seed: int
    work: Path  # the folder of the run while it is under way
    folder: Path  # and when it is finished
    cost: float = 1.0  # how long it takes, in whatever unit the jobs of a list share
    key: str = ""  # of the run as it was planned

    @property
    def rounds(self) -> int:
        return self.scenario.rounds

    @property
    def error_file(self) -> Path:
        """Where the trace of a failure is written; gone when the run is done after all."""
        return error_file(self.folder)


def error_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.error.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all jobs of a list have in common; it goes to a worker once."""

    execution: Execution
    task: Task | None = None


def perform(job: Job, shared: Shared, on_round: Callable[[int], None] | None) -> None:
    """Do a job in this process, or take it as it is if somebody has resumed it to its end."""
    execution = shared.execution
    _refuse_changed_task(job, execution)
    if execution.safeguards.fresh or not is_finished(job.work):
        carry_out(
            job.work, job.scenario, job.scheme, job.seed, task=shared.task, execution=execution, on_round=on_round
        )
    bring_home(job.work, job.folder)


def _refuse_changed_task(job: Job, execution: Execution) -> None:
    """A task in a file is read where the run is done: it must be the one that was planned."""
    if not job.key or not is_from_file(job.scenario.learning):
        return
    if run_key(job.scenario, job.scheme, job.seed, execution) != job.key:
        rule = "its code or data changed after this run was planned, or are drawn anew each time; start again"
        raise ScenarioError("learning.task", job.scenario.learning.task, rule)


def bring_home(work: Path, folder: Path) -> None:
    """Move a finished run to its place; an older run there goes."""
    if work != folder:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)


def is_finished(folder: Path) -> bool:
    """Whether a whole run lies here; the folder of one that is not whole has another name."""
    return folder.is_dir()


@dataclass(frozen=True, slots=True)
class Finished:
    """A run is whole, and its records are in the folder of its job."""

    place: int


@dataclass(frozen=True, slots=True)
class Broken:
    """A run ended with an exception; it would do so again."""

    place: int
    error: BaseException
    trace: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker of a job died, or its machine; the job itself may be fine."""

    place: int
    reason: str


Event: TypeAlias = Finished | Broken | Lost

OnRound: TypeAlias = Callable[[int, int], None]
"""Told that the run at a place of the list has come to a round."""


class Progress(Protocol):
    """Told how a list of jobs goes; jobs are known by their place in the list."""

    def begin(self, jobs: Sequence[Job], finished: int) -> None:
        """All jobs are about to start; so many more were finished before."""

    def advance(self, place: int, round_: int) -> None:
        """One run has begun (round 0) or come to a round."""

    def done(self, place: int, summary: RunSummary, *, elsewhere: bool) -> None:
        """One run is finished, here or by somebody else who works on the same study."""

    def failed(self, place: int, reason: str) -> None:
        """One run failed and will not be tried again."""

    def again(self, place: int, reason: str) -> None:
        """One run lost its worker and will be tried again."""


Claim: TypeAlias = Literal["mine", "busy", "done"]


def _mine(_: int) -> Claim:
    return "mine"


class Queue:
    """Jobs that wait: the longest first, so that the last ones to end are short."""

    def __init__(self, jobs: Sequence[Job], claim: Callable[[int], Claim] = _mine) -> None:
        self.jobs = jobs
        self._claim = claim
        self._waiting = sorted(range(len(jobs)), key=lambda place: (-jobs[place].cost, place))
        self._elsewhere: list[int] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, after: int | None = None) -> int | None:
        """The next job for a worker, or None when there is none now; others may hold those that still wait."""
        for place in list(self._preferred(after)):
            claim = self._claim(place)
            if claim == "busy":
                continue
            self._waiting.remove(place)
            if claim == "mine":
                return place
            self._elsewhere.append(place)
        return None

    def done_elsewhere(self) -> list[int]:
        """The jobs that somebody else has finished since this was asked last."""
        found, self._elsewhere = self._elsewhere, []
        return found

    def put_back(self, place: int) -> None:
        """A job that lost its worker waits again, before all others."""
        self._waiting.insert(0, place)

    def _preferred(self, after: int | None) -> Iterable[int]:
        """A job in the world that the worker has drawn already comes first, unless much longer ones wait."""
        if after is None or not self._waiting:
            return self._waiting
        least = _LONG_ENOUGH * self.jobs[self._waiting[0]].cost
        same = [place for place in self._waiting if self._same_world(place, after) and self.jobs[place].cost >= least]
        return [*same, *(place for place in self._waiting if place not in same)]

    def _same_world(self, one: int, other: int) -> bool:
        return self.jobs[one].seed == self.jobs[other].seed and self.jobs[one].scenario == self.jobs[other].scenario


class Backend(Protocol):
    def run(self, queue: Queue, on_round: OnRound) -> Generator[Event, None, None]:
        """Take jobs until none waits and none runs; closing the iterator ends what is under way."""


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
    """Do all jobs of a queue; the failures, in the order in which they happened.

    With ``same_input`` what is wrong with the input of one is wrong with all, so it is raised at once.
    """
    failures: list[Failure] = []
    losses: dict[int, int] = {}

    def finish(place: int, *, elsewhere: bool = False) -> None:
        queue.jobs[place].error_file.unlink(missing_ok=True)
        record = read_run(queue.jobs[place].folder)
        on_finished(place, record)
        if progress:
            progress.done(place, summarise_run(record), elsewhere=elsewhere)

    def fail(place: int, reason: str, trace: str = "", error: BaseException | None = None) -> None:
        job = queue.jobs[place]
        failures.append(Failure(job=job, reason=reason, error=error))
        # What went wrong is told in any case; a disk that takes no file is no reason to stop the others.
        with suppress(OSError):
            job.error_file.parent.mkdir(parents=True, exist_ok=True)
            job.error_file.write_text(trace or f"{reason}\n", encoding="utf-8")
        if on_failed:
            on_failed(place)
        if progress:
            progress.failed(place, reason)

    def tell(place: int, round_: int) -> None:
        if progress:
            progress.advance(place, round_)

    with closing(backend.run(queue, tell)) as events:
        for event in events:
            match event:
                case Finished(place):
                    finish(place)
                case Broken(place, error, trace):
                    if same_input and isinstance(error, InputError | UnavailableError):
                        raise error
                    fail(place, reason_of(error), trace, error)
                case Lost(place, reason):
                    losses[place] = losses.get(place, 0) + 1
                    if losses[place] < TRIES:
                        queue.put_back(place)
                        if progress:
                            progress.again(place, reason)
                    else:
                        fail(place, f"{reason}, {TRIES} times")
            for place in queue.done_elsewhere():
                finish(place, elsewhere=True)
    for place in queue.done_elsewhere():
        finish(place, elsewhere=True)
    return failures


def reason_of(error: BaseException) -> str:
    """One line; the kind of an error is told where its text alone would not be understood."""
    text = str(error).strip().split("\n")[0]
    ours = type(error).__module__.startswith("wayfare.")
    return text if ours and text else f"{type(error).__name__}: {text}" if text else type(error).__name__


def failures_text(failures: Sequence[Failure], runs: int) -> str:
    """Which runs failed and why: the reason once if all have the same, as when data are missing; else the first few."""
    if len(failures) == runs > 1 and len({failure.reason for failure in failures}) == 1:
        return f"all {runs} runs failed: {failures[0].reason}"
    told = "; ".join(f"{failure.job.name}: {failure.reason}" for failure in failures[:_TOLD])
    more = f"; and {len(failures) - _TOLD} more" if len(failures) > _TOLD else ""
    return f"{len(failures)} of {runs} runs failed: {told}{more}"
