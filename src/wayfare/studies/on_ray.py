"""Jobs on a Ray cluster (the extra `ray`); the only file that imports ray.

A job is a Ray task with declared needs. It works in a local folder of its node, and its records return as bytes, so
nodes and driver need no shared folder. Data sets and other shared objects are in the object store, so that each node
fetches them once. Ray's own retries are off: a lost job returns to the queue, like that of a local worker.
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
# Tasks submitted beyond the running ones, so that no core waits for the driver.
_AHEAD = 2
_CODE = (__version__, ALGORITHM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The resources of a run; with a fraction of a GPU, several runs share it."""

    cpus: float = 1.0
    gpus: float = 0.0


class RayCluster:
    """Runs as many jobs at a time as the cluster can hold; nodes may join and leave."""

    def __init__(self, address: str, shared: Shared, needs: Needs | None = None) -> None:
        self._address, self._needs = address, needs or Needs()
        # A run that declares no GPU must not use one that is present by chance.
        on_cpu = self._needs.gpus == 0 and shared.execution.device == "auto"
        self._shared = replace(shared, execution=replace(shared.execution, device="cpu")) if on_cpu else shared
        if self._needs.cpus <= 0 or self._needs.gpus < 0:
            raise ScenarioError("needs", self._needs, "must have CPUs above 0 and GPUs of at least 0")
        self._ray = _import_ray()

    def slots(self) -> int:
        with self._connected():
            return self._slots()

    def run(self, queue: Queue, on_round: OnRound) -> Generator[Event, None, None]:
        """Keep the cluster busy. Rounds are not reported; a run counts as started when Ray has it."""
        with self._connected():
            shared = self._ray.put(self._shared)
            sets = self._put_sets(job.scenario.learning.task for job in queue.jobs)
            task = self._ray.remote(num_cpus=self._needs.cpus, num_gpus=self._needs.gpus, max_retries=0)(_run_on_node)
            running: dict[Any, int] = {}
            try:
                while len(queue) or running:
                    while len(running) < self._slots() + _AHEAD and (index := queue.take()) is not None:
                        running[task.remote(_CODE, queue.jobs[index], [shared], sets)] = index
                        on_round(index, 0)
                    if not running:
                        time.sleep(_ASK_EVERY_S)
                        continue
                    ended, _ = self._ray.wait(list(running), timeout=_ASK_EVERY_S)
                    for reference in ended:
                        index = running.pop(reference)
                        yield self._outcome(reference, index, queue.jobs[index])
            finally:
                for reference in running:
                    self._ray.cancel(reference, force=True)

    def _outcome(self, reference: Any, index: int, job: Job) -> Event:
        from ray.exceptions import RayError, RayTaskError

        try:
            _write_records(self._ray.get(reference), job.folder)
        except RayTaskError as error:
            return Broken(index, error.cause, error.traceback_str)
        except RayError as error:
            return Lost(index, _reason(error))
        except OSError as error:
            return Broken(index, error, traceback.format_exc())
        return Finished(index)

    def _slots(self) -> int:
        there = self._ray.cluster_resources()
        slots = int(there.get("CPU", 0.0) / self._needs.cpus)
        return min(slots, int(there.get("GPU", 0.0) / self._needs.gpus)) if self._needs.gpus else slots

    def _put_sets(self, tasks: Iterable[str]) -> dict[str, Any]:
        """Put the driver's cached data sets into the object store."""
        here = {name: cached_file(IMAGE_SETS[name]) for name in set(tasks) if name in IMAGE_SETS}
        return {name: self._ray.put(np.fromfile(file, np.uint8)) for name, file in here.items() if file.is_file()}

    @contextmanager
    def _connected(self) -> Generator[None, None, None]:
        """Connect to the cluster; an existing connection is kept."""
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
                    f"{self._address}: no node has the {self._needs.cpus:g} CPUs and {self._needs.gpus:g} GPUs that a "
                    "run needs"
                )
            yield
        finally:
            self._ray.shutdown()


def _check_address(address: str) -> None:
    """Check that the address answers; Ray itself would retry for minutes."""
    named = os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address
    host, colon, port = named.removeprefix("ray://").rpartition(":")
    if named == "auto":
        return
    if not colon or not port.isdigit():
        raise ScenarioError("address", address, "must be auto or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, reason: str) -> UnavailableError:
    return UnavailableError(
        f"{address}: found no Ray cluster ({reason}); start a head node with `ray start`, and set RAY_AUTH_MODE=token "
        "if it asks for a token"
    )


def _import_ray() -> Any:
    # Ray's future default; setting it avoids a warning.
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
        raise RunError(
            f"a node has Wayfare {_CODE[0]} (algorithm {_CODE[1]}), but the driver has {code[0]} (algorithm {code[1]})"
        )
    for name, reference in sets.items():
        place_set(name, partial(ray.get, reference))  # type: ignore[arg-type]
    # Two nodes on one machine must not share a folder; a second attempt on the same node can resume the first.
    node = ray.get_runtime_context().get_node_id()
    work = Path(tempfile.gettempdir()) / f"wayfare-{_user()}-{node[:12]}" / job.folder.name
    perform(replace(job, work=work, folder=work), ray.get(shared[0]), None)
    records = {str(file.relative_to(work)): file.read_bytes() for file in work.rglob("*") if file.is_file()}
    shutil.rmtree(work, ignore_errors=True)
    return records


def place_set(name: str, content: Callable[[], NDArray[np.uint8]]) -> None:
    """Write a data set into the cache of this node unless it exists; other processes wait meanwhile."""
    file = cached_file(IMAGE_SETS[name])
    if file.is_file():
        return
    with fetch_lock(name):
        if not file.is_file():
            with open_atomically(file) as target:
                content().tofile(target)


def _write_records(records: Mapping[str, bytes], folder: Path) -> None:
    """Write the records of a run atomically."""
    with make_folder_atomically(folder) as arriving:
        for name, content in records.items():
            (arriving / name).parent.mkdir(parents=True, exist_ok=True)
            (arriving / name).write_bytes(content)
        # Delete an older run.
        shutil.rmtree(folder, ignore_errors=True)


def _reason(error: Exception) -> str:
    from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

    match error:
        case OutOfMemoryError():
            return "its worker was killed, because its node ran out of memory"
        case NodeDiedError():
            return "its node died"
        case WorkerCrashedError():
            return "its worker died"
        case _:
            return f"its worker or node was lost ({type(error).__name__})"


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
