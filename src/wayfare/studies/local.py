"""Jobs on this machine: in this process, in worker processes with one thread each, or in threads that share a GPU.

Workers live as long as the list of jobs, because runs can share loaded data. A worker that dies (out of memory,
kill -9) affects only its own job.
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
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch

from wayfare.errors import InputError, RunError, ScenarioError
from wayfare.forking import available_cores, quick_context
from wayfare.progress import listening, report_progress
from wayfare.sharing import sharing
from wayfare.signals import Interrupts, exit_at_sigterm, ignore_interrupts, interrupts_deferred
from wayfare.studies.jobs import Backend, Broken, Event, Finished, Job, Lost, OnRound, Queue, Reports, Shared, perform
from wayfare.studies.single import Execution
from wayfare.studies.together import Threads

if TYPE_CHECKING:
    from wayfare.forking import QuickContext

_log = logging.getLogger("wayfare")

# How often to ask again for jobs that another sweep holds.
_ASK_EVERY_S = 0.5
# Time for a terminated worker to write its checkpoint.
_GRACE_S = 10.0
# How often to look for a second Ctrl-C during this time.
_LOOK_EVERY_S = 0.1


def default_jobs(execution: Execution) -> int:
    """One run at a time on a GPU, otherwise one per available core."""
    if execution.compute().device.type == "cuda":
        return 1
    return available_cores()


def local_backend(jobs: int | None, waiting: Sequence[Job], shared: Shared) -> Backend:
    """The back end for `jobs` parallel runs, or for the default number; a single one runs in this process.

    On a GPU, parallel runs are threads of this process. Schemes and tasks that are defined in a notebook also run in
    this process.
    """
    if jobs is not None and jobs < 1:
        raise ScenarioError("jobs", jobs, "must be at least 1")
    # If nothing waits, do not look for a GPU: a machine without one can still show the results.
    workers = min(jobs or default_jobs(shared.execution), len(waiting)) if waiting else 0
    if workers <= 1:
        return InThisProcess(shared)
    if shared.execution.compute().device.type == "cuda":
        return Threads(shared, workers)
    reason = _obstacle_to_workers([shared.task, *(job.scheme for job in waiting)])
    if reason is None:
        return WorkerProcesses(shared, workers)
    _log.warning("runs use one process: %s; put it into a .py file to use all cores", reason)
    return InThisProcess(shared)


def _obstacle_to_workers(things: Sequence[object]) -> str | None:
    """Why runs that need some objects must stay in this process; None if workers can import them.

    A worker process imports definitions from files. The main program of a notebook, a prompt or a pipe has no file.
    """
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if file is not None and Path(file).is_file():
        return None
    if file is not None:
        return f"worker processes cannot read the program {file}"
    finder = _Finder()
    # Objects that cannot be pickled at all raise an error when they are sent.
    with suppress(pickle.PicklingError, AttributeError, TypeError):
        for thing in things:
            finder.dump(thing)
    if finder.found is None:
        return None
    return f"{finder.found} is defined in a notebook cell or at a prompt, which worker processes cannot import"


class _Finder(pickle.Pickler):
    """Traverses objects like pickle and keeps the name of one that only the main program defines."""

    def __init__(self) -> None:
        super().__init__(cast(Any, SimpleNamespace(write=lambda _: None)), protocol=5)
        self.found: str | None = None

    def reducer_override(self, thing: Any) -> Any:
        """Look at classes and functions; skip the values of tensors."""
        if isinstance(thing, torch.Tensor):
            return tuple, ()
        if isinstance(thing, FunctionType | type) and thing.__module__ == "__main__":
            self.found = thing.__qualname__
        return NotImplemented


class InThisProcess:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def run(self, queue: Queue, on_round: OnRound) -> Generator[Event, None, None]:
        index: int | None = None
        # On a GPU the next run uses the same data and graphs.
        with sharing():
            while len(queue):
                index = queue.take(index)
                if index is None:
                    time.sleep(_ASK_EVERY_S if len(queue) else 0)
                    continue
                on_round(index, 0)
                try:
                    perform(queue.jobs[index], self._shared, partial(on_round, index))
                except Exception as error:
                    yield Broken(index, error, traceback.format_exc())
                else:
                    yield Finished(index)


class WorkerProcesses:
    """Runs several jobs at a time, in processes that are reused for the next jobs."""

    def __init__(self, shared: Shared, workers: int) -> None:
        self._shared, self._most = shared, workers
        self._context = quick_context(__name__)
        self._workers: list[_Worker] = []

    def run(self, queue: Queue, on_round: OnRound) -> Generator[Event, None, None]:
        with Interrupts() as interrupts:
            try:
                while True:
                    self._hand_out(queue, on_round)
                    busy = [worker for worker in self._workers if worker.index is not None]
                    if not busy and not len(queue):
                        break
                    idle = len(busy) < self._most and len(queue) > 0
                    pipes = {worker.pipe: worker for worker in busy}
                    for pipe in wait(list(pipes), timeout=_ASK_EVERY_S if idle else None):
                        yield from self._hear(pipes[pipe], on_round)  # type: ignore[index]
            finally:
                # Do not wait for running jobs; finished ones are on disk.
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
            worker = next((worker for worker in self._workers if worker.index is None), None)
            if worker is None and len(self._workers) == self._most:
                return
            index = queue.take(worker.last if worker else None)
            if index is None:
                return
            if worker is None:
                worker = _Worker(self._context, self._shared)
                self._workers.append(worker)
            worker.begin(index, queue.jobs[index])
            on_round(index, 0)

    def _hear(self, worker: _Worker, on_round: OnRound) -> Generator[Event, None, None]:
        """Handle one message of a worker, or its end."""
        index = worker.index
        assert index is not None
        try:
            match worker.pipe.recv():
                case "ready":
                    worker.ready = True
                case int(round_):
                    on_round(index, round_)
                case str(what), int(done), int(total):
                    report_progress(what, done, total)
                case "finished":
                    worker.index = None
                    yield Finished(index)
                case BaseException() as error, str(trace):
                    worker.index = None
                    yield Broken(index, error, trace)
        except (EOFError, OSError):
            self._workers.remove(worker)
            reason = worker.end()
            # A worker may be killed while it starts, but one that exits by itself will not start next time either.
            if not worker.ready and (worker.process.exitcode or 0) >= 0:
                raise RunError(
                    f"a worker process could not start ({reason}); a script must call compare or sweep below "
                    '`if __name__ == "__main__":`, or use `jobs=1`, which needs no other process'
                ) from None
            yield Lost(index, reason)


class _Worker:
    """The parent's view of a worker process."""

    def __init__(self, context: QuickContext, shared: Shared) -> None:
        self.pipe, theirs = context.Pipe()
        args = theirs, shared, dict(os.environ)
        self.process: BaseProcess = context.Process(target=_work, args=args, daemon=True)
        self.index: int | None = None  # index of the running job
        self.last: int | None = None
        self.ready = False
        try:
            with interrupts_deferred():
                self.process.start()
        except _NOT_PORTABLE as error:
            raise _cannot_travel(error) from None
        # Only the worker keeps the other end, so that its death closes the pipe.
        theirs.close()

    def begin(self, index: int, job: Job) -> None:
        self.index = self.last = index
        try:
            # The next read of the pipe detects a worker that died while idle.
            with suppress(OSError):
                self.pipe.send(job)
        except _NOT_PORTABLE as error:
            raise _cannot_travel(error) from None

    def end(self) -> str:
        """How a worker ended."""
        self.process.join(_GRACE_S)
        self.pipe.close()
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join()
            return "its worker process stopped responding"
        if code == -signal.SIGKILL:
            return "its worker process was killed (signal 9; often because the machine is out of memory)"
        if code < 0:
            return f"its worker process was killed by signal {-code}"
        return f"its worker process exited with code {code}"


_NOT_PORTABLE = (pickle.PicklingError, AttributeError, TypeError)


def _cannot_travel(error: Exception) -> InputError:
    return InputError(
        f"your scheme or task cannot be sent to another process ({error}): define it at the top level of a module, "
        "or use `jobs=1`"
    )


def _work(pipe: Connection, shared: Shared, environment: Mapping[str, str]) -> None:
    """The main function of a worker process: perform jobs until the parent ends it."""
    # The process that workers are forked from has the environment of its own start.
    os.environ.clear()
    os.environ.update(environment)
    ignore_interrupts()
    # What a worker writes when it is terminated, such as a draft of features, is removed.
    exit_at_sigterm()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # A broken pipe means that the parent is gone, so there is nothing to report.
    with suppress(EOFError, ConnectionError):
        _do_jobs(pipe, shared)


def _do_jobs(pipe: Connection, shared: Shared) -> None:
    pipe.send("ready")
    while True:
        job = pipe.recv()
        reports = Reports(pipe.send)
        try:
            with listening(reports.work):
                perform(job, shared, reports.round)
        except Exception as error:
            pipe.send((_portable(error), traceback.format_exc()))
        else:
            pipe.send("finished")


def _end_with_parent() -> None:
    """Exit if the parent is killed; otherwise a restarted sweep would find the run locked."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _portable(error: Exception) -> Exception:
    """An exception that can be pickled; others become a RunError with their text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunError(f"{type(error).__name__}: {error}")
    return error
