"""Jobs on this machine: in this process, or in worker processes with one thread each.

Workers live as long as the list of jobs: PyTorch takes seconds to import, and data that one run has loaded serves the
next. A worker that dies (out of memory, kill -9) takes nothing with it but its own job.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, cast

import torch

from wayfare.errors import InputError, RunError, ScenarioError
from wayfare.signals import Interrupts, ignore_interrupts, interrupts_deferred
from wayfare.studies.jobs import Broken, Event, Finished, Job, Lost, OnRound, Queue, Shared, perform
from wayfare.studies.single import Execution

_log = logging.getLogger("wayfare")

# How often a worker tells its round, and how often jobs that somebody else holds are asked for again.
_REPORT_EVERY_S = 0.2
_ASK_EVERY_S = 0.5
# What a worker that is told to end may take for its last words.
_GRACE_S = 10.0
# How soon a second Ctrl-C is noticed while these are waited for.
_LOOK_EVERY_S = 0.1


def default_jobs(execution: Execution) -> int:
    """One run at a time on a GPU, else one for each core this process may use: a container may have few of many."""
    if execution.compute().device.type == "cuda":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_backend(jobs: int | None, waiting: Sequence[Job], shared: Shared) -> InThisProcess | WorkerProcesses:
    """As many workers as asked for, or as make sense; one job at a time needs no other process.

    Schemes and tasks of a notebook run in this process.
    """
    if jobs is not None and jobs < 1:
        raise ScenarioError("jobs", jobs, "must be at least 1")
    # Where all is done already, a machine that could not do it may still show it.
    workers = min(jobs or default_jobs(shared.execution), len(waiting)) if waiting else 0
    if workers <= 1:
        return InThisProcess(shared)
    reason = _why_only_here([shared.task, *(job.scheme for job in waiting)])
    if reason is None:
        return WorkerProcesses(shared, workers)
    _log.warning("runs one after another in this process: %s; put it into a .py file to use all cores", reason)
    return InThisProcess(shared)


def _why_only_here(things: Sequence[object]) -> str | None:
    """Why runs that need some objects must stay in this process; None where workers can have them, or will say why not.

    A worker process imports what a file defines. The main program of a notebook, a prompt or a pipe has no file.
    """
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is not None and Path(file).is_file():
        return None
    if file is not None:
        return f"the program comes from {file}, which worker processes cannot read"
    finder = _Finder()
    # What no process could be sent is refused when it is sent.
    with suppress(pickle.PicklingError, AttributeError, TypeError):
        for thing in things:
            finder.dump(thing)
    if finder.found is None:
        return None
    return f"{finder.found} is defined in a notebook cell or at a prompt, where worker processes cannot find it"


class _Finder(pickle.Pickler):
    """Goes through objects as pickle does and keeps the name of one that only the main program defines."""

    def __init__(self) -> None:
        super().__init__(cast(Any, SimpleNamespace(write=lambda _: None)), protocol=5)
        self.found: str | None = None

    def reducer_override(self, thing: Any) -> Any:
        """Look at classes and functions; numbers of tensors do not matter."""
        if isinstance(thing, torch.Tensor):
            return tuple, ()
        if isinstance(thing, FunctionType | type) and thing.__module__ == "__main__":
            self.found = thing.__qualname__
        return NotImplemented


class InThisProcess:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def run(self, queue: Queue, on_round: OnRound) -> Generator[Event, None, None]:
        place: int | None = None
        while len(queue):
            place = queue.take(place)
            if place is None:
                time.sleep(_ASK_EVERY_S if len(queue) else 0)
                continue
            on_round(place, 0)
            try:
                perform(queue.jobs[place], self._shared, partial(on_round, place))
            except Exception as error:
                yield Broken(place, error, traceback.format_exc())
            else:
                yield Finished(place)


class WorkerProcesses:
    """Several jobs at a time, each in a process that lives on for the next."""

    def __init__(self, shared: Shared, workers: int) -> None:
        self._shared, self._most = shared, workers
        # Fresh processes: a forked copy of a process that has used torch may hang.
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []

    def run(self, queue: Queue, on_round: OnRound) -> Generator[Event, None, None]:
        with Interrupts() as interrupts:
            try:
                while True:
                    self._hand_out(queue, on_round)
                    busy = [worker for worker in self._workers if worker.place is not None]
                    if not busy and not len(queue):
                        break
                    idle = len(busy) < self._most and len(queue) > 0
                    pipes = {worker.pipe: worker for worker in busy}
                    for pipe in wait(list(pipes), timeout=_ASK_EVERY_S if idle else None):
                        yield from self._hear(pipes[pipe], on_round)  # type: ignore[index]
            finally:
                # Whatever ended this, runs under way are not waited for; finished ones are safe on disk.
                self._end(interrupts)

    def _end(self, interrupts: Interrupts) -> None:
        for worker in self._workers:
            worker.process.terminate()
        deadline = time.monotonic() + _GRACE_S
        while not interrupts.again and time.monotonic() < deadline:
            alive = [worker.process.sentinel for worker in self._workers if worker.process.is_alive()]
            if not alive:
                break
            wait(alive, timeout=_LOOK_EVERY_S)
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()

    def _hand_out(self, queue: Queue, on_round: OnRound) -> None:
        while True:
            worker = next((worker for worker in self._workers if worker.place is None), None)
            if worker is None and len(self._workers) == self._most:
                return
            place = queue.take(worker.last if worker else None)
            if place is None:
                return
            if worker is None:
                worker = _Worker(self._context, self._shared)
                self._workers.append(worker)
            worker.begin(place, queue.jobs[place])
            on_round(place, 0)

    def _hear(self, worker: _Worker, on_round: OnRound) -> Generator[Event, None, None]:
        """One message of a worker, or the end of it."""
        place = worker.place
        assert place is not None
        try:
            match worker.pipe.recv():
                case "ready":
                    worker.ready = True
                case int(round_):
                    on_round(place, round_)
                case "finished":
                    worker.place = None
                    yield Finished(place)
                case BaseException() as error, str(trace):
                    worker.place = None
                    yield Broken(place, error, trace)
        except (EOFError, OSError):
            self._workers.remove(worker)
            reason = worker.end()
            # One that was killed may have been so while it started; one that ended by itself will not start next time.
            if not worker.ready and (worker.process.exitcode or 0) >= 0:
                raise RunError(
                    f"a worker process could not start ({reason}); a script that compares or sweeps has to do so below "
                    '`if __name__ == "__main__":`, and `jobs=1` needs no other process'
                ) from None
            yield Lost(place, reason)


class _Worker:
    """A process that does jobs, as the parent sees it."""

    def __init__(self, context: SpawnContext, shared: Shared) -> None:
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_work, args=(theirs, shared), daemon=True)
        self.place: int | None = None  # of the job under way
        self.last: int | None = None
        self.ready = False
        try:
            with interrupts_deferred():
                self.process.start()
        except _NOT_PORTABLE as error:
            raise _cannot_travel(error) from None
        # The other end belongs to the worker alone, so that its death closes the pipe.
        theirs.close()

    def begin(self, place: int, job: Job) -> None:
        self.place = self.last = place
        try:
            # One that died while it was idle is found out at the next look at its pipe.
            with suppress(OSError):
                self.pipe.send(job)
        except _NOT_PORTABLE as error:
            raise _cannot_travel(error) from None

    def end(self) -> str:
        """How a worker that is gone came to its end."""
        self.process.join(_GRACE_S)
        self.pipe.close()
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join()
            return "its worker process hung up"
        if code == -signal.SIGKILL:
            return "its worker process was killed (signal 9; a machine that runs out of memory does that)"
        if code < 0:
            return f"its worker process was ended by signal {-code}"
        return f"its worker process ended with code {code}"


_NOT_PORTABLE = (pickle.PicklingError, AttributeError, TypeError)


def _cannot_travel(error: Exception) -> InputError:
    return InputError(
        f"a scheme or task of your own cannot be sent to another process ({error}): define it at the top of a module, "
        "or use jobs=1"
    )


def _work(pipe: Connection, shared: Shared) -> None:
    """The life of a worker process: job after job, until the parent ends it."""
    ignore_interrupts()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # A pipe that breaks has lost its parent: there is nobody left to work for, or to tell.
    with suppress(EOFError, ConnectionError):
        _do_jobs(pipe, shared)


def _do_jobs(pipe: Connection, shared: Shared) -> None:
    pipe.send("ready")
    while True:
        job = pipe.recv()
        try:
            perform(job, shared, _Reports(pipe))
        except Exception as error:
            pipe.send((_portable(error), traceback.format_exc()))
        else:
            pipe.send("finished")


class _Reports:
    """Tells the parent the round, not too often."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._next_s = pipe, 0.0

    def __call__(self, round_: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _REPORT_EVERY_S
            self._pipe.send(round_)


def _end_with_parent() -> None:
    """A worker whose parent is killed must not go on in secret: whoever starts the work again would find it in use."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _portable(error: Exception) -> Exception:
    """An exception as it can be sent; one that cannot becomes its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunError(f"{type(error).__name__}: {error}")
    return error
