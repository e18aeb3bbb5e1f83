"""Jobs on a Ray cluster (the extra `ray`); the only file that imports ray.

A job is a Ray task with declared needs. It works in a folder of its node and its records come back as bytes, so the
nodes need no folder in common with the driver. Data sets and whatever jobs share lie in the object store: they reach a
node once. Ray's own retries are off: a lost job goes back into the queue like that of a local worker.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wayfare.errors import RunError, ScenarioError, UnavailableError
from wayfare.files import make_folder_atomically, open_atomically
from wayfare.learning.data import IMAGE_SETS
from wayfare.learning.data.cache import cached_file, fetch_lock
from wayfare.studies.jobs import Broken, Event, Finished, Job, Lost, OnRound, Queue, Shared, perform
from wayfare.version import ALGORITHM, __version__

if TYPE_CHECKING:
    import ray

_ASK_EVERY_S = 0.5
_ANSWER_S = 10.0
# Tasks handed to Ray beyond what runs, so that no core waits for the driver.
_AHEAD = 2
_CODE = (__version__, ALGORITHM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run occupies while it runs; a fraction of a GPU lets several share it."""

    cpus: float = 1.0
    gpus: float = 0.0


class RayCluster:
    """As many jobs at a time as the cluster has room for; nodes may come and go."""

    def __init__(self, address: str, shared: Shared, needs: Needs | None = None) -> None:
        self._address, self._needs = address, needs or Needs()
        # A run that declares no GPU must not take one that happens to be there.
        on_cpu = self._needs.gpus == 0 and shared.execution.device == "auto"
        self._shared = replace(shared, execution=replace(shared.execution, device="cpu")) if on_cpu else shared
        if self._needs.cpus <= 0 or self._needs.gpus < 0:
            raise ScenarioError("needs", self._needs, "must not be below 0, nor the CPUs 0")
        self._ray = _import_ray()

    def slots(self) -> int:
        with self._connected():
            return self._slots()

    def run(self, queue: Queue, on_round: OnRound) -> Generator[Event, None, None]:
        """Keep the cluster full. Rounds are not told: a run is under way from the time Ray has it."""
        with self._connected():
            shared = self._ray.put(self._shared)
            sets = self._put_sets(job.scenario.learning.task for job in queue.jobs)
            task = self._ray.remote(num_cpus=self._needs.cpus, num_gpus=self._needs.gpus, max_retries=0)(_run_on_node)
            running: dict[Any, int] = {}
            try:
                while len(queue) or running:
                    while len(running) < self._slots() + _AHEAD and (place := queue.take()) is not None:
                        running[task.remote(_CODE, queue.jobs[place], [shared], sets)] = place
                        on_round(place, 0)
                    if not running:
                        time.sleep(_ASK_EVERY_S)
                        continue
                    ended, _ = self._ray.wait(list(running), timeout=_ASK_EVERY_S)
                    for reference in ended:
                        place = running.pop(reference)
                        yield self._outcome(reference, place, queue.jobs[place])
            finally:
                for reference in running:
                    self._ray.cancel(reference, force=True)

    def _outcome(self, reference: Any, place: int, job: Job) -> Event:
        from ray.exceptions import RayError, RayTaskError

        try:
            _bring_home(self._ray.get(reference), job.folder)
        except RayTaskError as error:
            return Broken(place, error.cause, error.traceback_str)
        except RayError as error:
            return Lost(place, _reason(error))
        except OSError as error:
            return Broken(place, error, traceback.format_exc())
        return Finished(place)

    def _slots(self) -> int:
        there = self._ray.cluster_resources()
        slots = int(there.get("CPU", 0.0) / self._needs.cpus)
        return min(slots, int(there.get("GPU", 0.0) / self._needs.gpus)) if self._needs.gpus else slots

    def _put_sets(self, tasks: Iterable[str]) -> dict[str, Any]:
        """The files of the data sets that the driver has, in the object store; a node takes them from there once."""
        here = {name: cached_file(IMAGE_SETS[name]) for name in set(tasks) if name in IMAGE_SETS}
        return {name: self._ray.put(np.fromfile(file, np.uint8)) for name, file in here.items() if file.is_file()}

    @contextmanager
    def _connected(self) -> Generator[None, None, None]:
        """A connection that was there before stays."""
        if self._ray.is_initialized():
            yield
            return
        _check_address(self._address)
        try:
            self._ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise _no_cluster(self._address, str(error).strip().split("\n")[0]) from None
        try:
            if not self._slots():
                raise UnavailableError(
                    f"{self._address}: no node has room for a run that needs {self._needs.cpus:g} CPUs and "
                    f"{self._needs.gpus:g} GPUs"
                )
            yield
        finally:
            self._ray.shutdown()


def _check_address(address: str) -> None:
    """Ask whether anybody answers; Ray itself would try for minutes."""
    named = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    host, colon, port = named.removeprefix("ray://").rpartition(":")
    if named == "auto":
        return
    if not colon or not port.isdigit():
        raise ScenarioError("address", address, "must be auto, or an address written as HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, reason: str) -> UnavailableError:
    return UnavailableError(f"{address}: no Ray cluster there ({reason}); start a head node with `ray start`")


def _import_ray() -> Any:
    # Its future default, without the warning about it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UnavailableError("a Ray cluster needs ray: pip install 'wayfare[ray]'") from None
    return ray


def _run_on_node(
    code: tuple[str, int], job: Job, shared: list[ray.ObjectRef[Shared]], sets: Mapping[str, Any]
) -> dict[str, bytes]:
    import ray

    if code != _CODE:
        raise RunError(f"a node has Wayfare {_CODE[0]} (algorithm {_CODE[1]}), the driver {code[0]} ({code[1]})")
    for name, reference in sets.items():
        place_set(name, partial(ray.get, reference))  # type: ignore[arg-type]
    # Two nodes on one machine must not meet in one folder; a second try on the same node may go on where the first was.
    node = ray.get_runtime_context().get_node_id()
    work = Path(tempfile.gettempdir()) / f"wayfare-{_user()}-{node[:12]}" / job.folder.name
    perform(replace(job, work=work, folder=work), ray.get(shared[0]), None)
    records = {str(file.relative_to(work)): file.read_bytes() for file in work.rglob("*") if file.is_file()}
    shutil.rmtree(work, ignore_errors=True)
    return records


def place_set(name: str, content: Callable[[], NDArray[np.uint8]]) -> None:
    """Write the file of a data set into the cache of this node unless it is there; others wait while one writes."""
    file = cached_file(IMAGE_SETS[name])
    if file.is_file():
        return
    with fetch_lock(name):
        if not file.is_file():
            with open_atomically(file) as target:
                content().tofile(target)


def _bring_home(records: Mapping[str, bytes], folder: Path) -> None:
    """Write the records of a run; the folder has its name only when all of it is there."""
    with make_folder_atomically(folder) as arriving:
        for name, content in records.items():
            (arriving / name).parent.mkdir(parents=True, exist_ok=True)
            (arriving / name).write_bytes(content)
        # An older run goes.
        shutil.rmtree(folder, ignore_errors=True)


def _reason(error: Exception) -> str:
    from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

    match error:
        case OutOfMemoryError():
            return "its worker was killed because its node ran out of memory"
        case NodeDiedError():
            return "its node died"
        case WorkerCrashedError():
            return "its worker died"
        case _:
            return f"its worker or node was lost ({type(error).__name__})"


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
