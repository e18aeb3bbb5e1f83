"""Several runs at a time on one GPU, in threads of this process.

While one run handles a contact on the host, local steps of the others keep the GPU busy. Processes could not do this:
a GPU switches between them, and each would need its own data and graphs.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TypeAlias

from wayfare.learning.tasks import load_task
from wayfare.learning.tasks.tuned import TunedClassification
from wayfare.progress import listening, report_progress
from wayfare.scenario.model import NO_BACKBONE
from wayfare.sharing import sharing
from wayfare.signals import Interrupts, StopRequest
from wayfare.studies.jobs import Broken, Event, Finished, Job, Lost, OnRound, Queue, Reports, Shared, Step, perform
from wayfare.studies.keeping import StoppedError
from wayfare.threads import one_thread

_log = logging.getLogger("wayfare")

# How often to ask again for jobs that another sweep holds, and how often to look for a signal or for the end of a
# thread.
_ASK_EVERY_S, _LOOK_EVERY_S = 0.5, 0.1
# Time for stopped runs to write their checkpoints.
_GRACE_S = 10.0
# Python lets another thread continue after this time. With its default of 5 ms, a thread that launches work on a GPU
# would wait that long after every launch if another one computes.
_SWITCH_EVERY_S = 5e-5

_Report: TypeAlias = tuple[int, Step | Event | None]
"""The index of a job, and its progress or its outcome; None if it was stopped."""


class Threads:
    """Runs several jobs at a time, each in a thread. All share data, graphs and settings of a GPU."""

    def __init__(self, shared: Shared, at_once: int) -> None:
        self._shared, self._at_once = shared, at_once
        self._stop, self._reports = StopRequest(), SimpleQueue[_Report]()
        self._jobs = SimpleQueue[tuple[int, Job] | None]()
        self._threads: list[threading.Thread] = []

    def run(self, queue: Queue, on_round: OnRound) -> Generator[Event, None, None]:
        running: set[int] = set()
        if self._shared.task is None:
            _prepare_features(queue.jobs)
        # Settings of PyTorch belong to the process. All runs of a study use the same ones, so they are set around it.
        with (
            Interrupts() as interrupts,
            one_thread(),
            self._shared.execution.compute().numerics(),
            _quick_switches(),
            sharing(),
        ):
            try:
                last: int | None = None
                while True:
                    while len(running) < self._at_once and (index := queue.take(last)) is not None:
                        last = index
                        running.add(index)
                        self._begin(index, queue.jobs[index])
                        on_round(index, 0)
                    if not running and not len(queue):
                        break
                    index, report = self._next_report()
                    match report:
                        case int(round_):
                            on_round(index, round_)
                        case str(what), int(done), int(total):
                            report_progress(what, done, total)
                        case Finished() | Broken() | Lost():
                            running.remove(index)
                            yield report
            finally:
                self._end(interrupts)

    def _begin(self, index: int, job: Job) -> None:
        if len(self._threads) < self._at_once:
            # A second Ctrl-C ends the program without waiting for them.
            thread = threading.Thread(target=self._work, name=f"run {len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((index, job))

    def _next_report(self) -> _Report:
        """Wait for a report, but not for ever: another sweep may release a job, and signals need this thread."""
        try:
            return self._reports.get(timeout=_ASK_EVERY_S)
        except Empty:
            return -1, None

    def _end(self, interrupts: Interrupts) -> None:
        """Let running jobs write their checkpoints and stop; finished ones are on disk."""
        self._stop.signal = signal.SIGTERM
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + _GRACE_S
        for thread in self._threads:
            while thread.is_alive() and not interrupts.again and time.monotonic() < deadline:
                thread.join(_LOOK_EVERY_S)

    def _work(self) -> None:
        while (taken := self._jobs.get()) is not None:
            index, job = taken
            if self._stop.signal is None:
                self._reports.put((index, self._outcome(index, job)))

    def _outcome(self, index: int, job: Job) -> Event | None:
        reports = Reports(lambda step: self._reports.put((index, step)))
        try:
            # A thread does not inherit who listens.
            with listening(reports.work):
                perform(job, self._shared, reports.round, self._stop)
        except StoppedError as stopped:
            _log.warning("%s", stopped)
            return None
        except BaseException as error:
            # Also a SystemExit of a user's code: it ends the run, and no thread may die without a word.
            # Without its frames, which would keep the memory of the run.
            return Broken(index, error.with_traceback(None), traceback.format_exc())
        return Finished(index)


def _prepare_features(jobs: Sequence[Job]) -> None:
    """Compute the features that runs need and that are not cached yet.

    A GPU computes them with other settings of PyTorch than runs in few bits have, and these belong to the process.
    """
    known = set()
    for job in jobs:
        learning, collects = job.scenario.learning, job.scheme.local.collects() is not None
        needed = learning.task, learning.backbone, learning.backbone_pixels, learning.trained, learning.trained_blocks
        if learning.backbone == NO_BACKBONE or (needed, collects) in known:
            continue
        known.add((needed, collects))
        # If it fails, it fails again in the run, which says why.
        with suppress(Exception):
            task = load_task(learning)
            if collects and isinstance(task, TunedClassification):
                task.on_features()


@contextmanager
def _quick_switches() -> Generator[None, None, None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_EVERY_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
