"""A real Ray: two nodes on this machine, one of which is killed in the middle."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.image_files import small_cifar10
from tests.studies.small_study import bits_of_study, write_study

from wayfare.errors import ScenarioError, UnavailableError
from wayfare.learning.data import IMAGE_SETS
from wayfare.learning.data.cache import cached_file, load_images, save_images
from wayfare.studies.jobs import Shared
from wayfare.studies.on_ray import Needs, RayCluster, place_set
from wayfare.studies.single import Execution
from wayfare.studies.study import load_study
from wayfare.studies.sweeping import sweep

ROUNDS = 300


class Node:
    """A Ray node in a process group of its own, so that it can be killed as a machine dies: all at once.

    Runs under way on it lie below its folder.
    """

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        folder.mkdir()
        program = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--include-log-monitor=false"]
        size = ("--num-cpus=1", "--num-gpus=1", "--object-store-memory=80000000")
        self._process = subprocess.Popen(
            [*program, *size, "--min-worker-port=0", "--max-worker-port=0", *words],
            # A token in ~/.ray, which any `ray.init()` leaves there, would make the node ask for it.
            env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "TMPDIR": str(folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill all processes at once, like a power failure; a single worker would still deliver its run."""
        own = f"TMPDIR={self.folder}".encode()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if own in environment.read_bytes().split(b"\0"):
                    os.kill(int(environment.parent.name), signal.SIGKILL)
        self._process.wait(20)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, Node]]:
    """Two nodes with one CPU and what they take for a GPU each; the address, and the node that is not the head."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    # Ray wants short paths for its sockets.
    sockets = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    # Without the programs for scaling and for a browser: each takes seconds to start.
    without = ("--no-monitor", "--include-dashboard=false")
    options = ("--head", f"--port={port}", f"--temp-dir={sockets}", *without)
    nodes = [Node(tmp_path / "first", *options)]
    try:
        _wait_for(lambda: _answers(port))
        nodes.append(Node(tmp_path / "second", f"--address={address}"))
        yield address, nodes[1]
    finally:
        for node in reversed(nodes):
            node.kill()
        shutil.rmtree(sockets, ignore_errors=True)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_nodes_give_the_bits_of_one_process_also_when_one_is_killed(
    cluster: tuple[str, Node], tmp_path: Path
) -> None:
    address, second = cluster
    local, remote = tmp_path / "local", tmp_path / "remote"
    local.mkdir()
    remote.mkdir()
    # Runs of a second or more, so that the second node is in the middle of one when it goes.
    study = write_study(remote, rounds=ROUNDS)
    command = [sys.executable, "-m", "wayfare", "sweep", str(study), "--out", str(remote), "--json"]
    command += ["--ray", address, "--gpus-per-run", "0.5", "--device", "cpu"]
    runs = remote / "small" / "runs"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as driver:
        # Some runs are finished, and the second node is in the middle of one.
        _wait_for(lambda: driver.poll() is not None or (_finished(runs) >= 2 and _under_way(second)))
        second.kill()
        out, errors = driver.communicate(timeout=500)
    assert driver.returncode == 0, errors
    assert '"finished": 8' in out
    assert "trying again" in errors
    sweep(load_study(write_study(local, rounds=ROUNDS)), out=local, jobs=1)
    assert bits_of_study(remote / "small") == bits_of_study(local / "small")


@pytest.mark.parametrize(
    ("address", "message"), [("127.0.0.1:1", "found no Ray cluster"), ("nonsense", "must be auto or HOST:PORT")]
)
def test_a_cluster_that_is_not_there_is_told_at_once(address: str, message: str) -> None:
    with pytest.raises((UnavailableError, ScenarioError), match=message):
        RayCluster(address, Shared(execution=Execution())).slots()


def test_needs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ScenarioError, match="must have CPUs above 0"):
        RayCluster("auto", Shared(execution=Execution()), Needs(cpus=0))


@pytest.mark.parametrize(
    ("needs", "slots"),
    [
        (Needs(), 16),
        (Needs(cpus=4), 4),
        (Needs(gpus=1), 2),
        (Needs(gpus=0.25), 8),
        (Needs(cpus=4, gpus=0.25), 4),
        (Needs(cpus=32), 0),
    ],
)
def test_several_runs_share_a_gpu_as_far_as_all_their_needs_allow(
    needs: Needs, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 16.0, "GPU": 2.0})
    assert RayCluster("auto", Shared(execution=Execution()), needs).slots() == slots


def test_without_ray_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnavailableError, match=r"pip install 'wayfare\[ray\]'"):
        RayCluster("auto", Shared(execution=Execution()))


def test_a_data_set_is_placed_once_on_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, arrays = small_cifar10()
    monkeypatch.setitem(IMAGE_SETS, spec.name, spec)  # type: ignore[arg-type]
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path / "driver"))
    content = np.fromfile(save_images(spec, arrays), np.uint8)
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path / "node"))
    asked = []

    def get() -> np.ndarray:  # type: ignore[type-arg]
        asked.append(1)
        return content

    for _ in range(3):
        place_set(spec.name, get)
    assert len(asked) == 1
    assert np.array_equal(load_images(spec).train_images, arrays.train_images)
    assert not list(cached_file(spec).parent.glob(".*.new"))


def _finished(runs: Path) -> int:
    return len(list(runs.iterdir())) if runs.is_dir() else 0


def _under_way(node: Node) -> bool:
    return any(node.folder.rglob("*.partial"))


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _wait_for(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
