"""Several runs in threads of one process, as on a GPU."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from tests.studies.small_study import bits_of_study, write_study

from wayfare.errors import RunError
from wayfare.learning.chance import seeded_generators
from wayfare.learning.tasks.base import placed
from wayfare.methods import make_method
from wayfare.progress import listening, report_progress
from wayfare.records import RunSummary
from wayfare.scenario import Scenario
from wayfare.sharing import is_sharing, shared, sharing
from wayfare.studies import together
from wayfare.studies.jobs import Job, OnRound, Queue, Shared, conduct
from wayfare.studies.local import InThisProcess, local_backend
from wayfare.studies.single import Execution
from wayfare.studies.study import Plan, load_study
from wayfare.studies.sweeping import Sweep, sweep
from wayfare.studies.together import Threads

Alone: TypeAlias = tuple[Shared, dict[str, list[object]]]
SCENARIO = Scenario()
SCHEME = make_method("mads", SCENARIO)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class StopError(Exception):
    """Stands in for Ctrl-C."""


class StopAtFirstReport:
    def begin(self, jobs: Sequence[Job], finished: int) -> None: ...

    def advance(self, index: int, round_: int) -> None:
        if round_:
            raise StopError

    def done(self, index: int, summary: RunSummary, *, elsewhere: bool) -> None: ...

    def failed(self, index: int, reason: str) -> None: ...

    def again(self, index: int, reason: str) -> None: ...


def study(folder: Path) -> Plan:
    """Four runs: two schemes, two speeds."""
    return load_study(write_study(folder, rounds=40, seeds=1))


def swept(folder: Path, using: Shared, at_once: int, progress: StopAtFirstReport | None = None) -> Sweep:
    backend = Threads(using, at_once) if at_once > 1 else InThisProcess(using)
    return sweep(study(folder), out=folder, backend=backend, execution=using.execution, progress=progress)


@pytest.fixture(scope="module", params=DEVICES)
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """The records of runs one after another."""
    folder, using = tmp_path_factory.mktemp("alone"), Shared(execution=Execution(device=request.param))
    swept(folder, using, 1)
    return using, bits_of_study(folder / "small")


@pytest.mark.parametrize("at_once", [2, 4])
def test_runs_in_threads_are_the_runs_alone_bit_by_bit(alone: Alone, at_once: int, tmp_path: Path) -> None:
    using, expected = alone
    switches = sys.getswitchinterval()
    assert not swept(tmp_path, using, at_once).failures
    assert bits_of_study(tmp_path / "small") == expected
    # Nothing stays behind.
    assert not is_sharing()
    assert sys.getswitchinterval() == switches
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("run ")]


def test_stopped_runs_write_checkpoints_and_resume_to_the_same_bits(alone: Alone, tmp_path: Path) -> None:
    using, expected = alone
    with pytest.raises(StopError):
        swept(tmp_path, using, 2, StopAtFirstReport())
    assert list((tmp_path / "small").rglob("*.checkpoint"))
    assert not swept(tmp_path, using, 2).failures
    assert bits_of_study(tmp_path / "small") == expected


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    performed: list[str] = []

    def perform(job: Job, using: Shared, on_round: OnRound, stop: object) -> None:
        if job.name.startswith("mads"):
            raise RunError(f"{job.name} is broken")
        performed.append(job.name)
        job.folder.mkdir(parents=True)

    monkeypatch.setattr(together, "perform", perform)
    monkeypatch.setattr("wayfare.studies.jobs.read_run", lambda folder: None)
    using = Shared(execution=Execution(device="cpu"))
    jobs = [
        Job(name=name, scenario=SCENARIO, scheme=SCHEME, seed=0, work=tmp_path / name, folder=tmp_path / name)
        for name in ("mads 1", "afl 1", "mads 2", "afl 2")
    ]
    found: list[int] = []
    failures = conduct(Queue(jobs), Threads(using, 2), on_finished=lambda index, _: found.append(index))
    assert sorted(found) == [1, 3]
    assert sorted(performed) == ["afl 1", "afl 2"]
    assert sorted(failure.reason for failure in failures) == ["mads 1 is broken", "mads 2 is broken"]
    assert "RunError" in jobs[0].error_file.read_text()


def test_long_work_before_the_first_round_is_reported_by_the_thread_that_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as features of a backbone: a bar belongs to the main thread."""

    def perform(job: Job, using: Shared, on_round: OnRound, stop: object) -> None:
        for done in (1, 2, 3):
            report_progress(f"features of {job.name}", done, 3)
        job.folder.mkdir(parents=True)

    monkeypatch.setattr(together, "perform", perform)
    monkeypatch.setattr("wayfare.studies.jobs.read_run", lambda folder: None)
    jobs = [
        Job(name=name, scenario=SCENARIO, scheme=SCHEME, seed=0, work=tmp_path / name, folder=tmp_path / name)
        for name in ("signs", "cars")
    ]
    heard: list[tuple[str, int, int]] = []

    def hear(what: str, done: int, total: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        heard.append((what, done, total))

    with listening(hear):
        conduct(Queue(jobs), Threads(Shared(execution=Execution(device="cpu")), 2), on_finished=lambda *_: None)
    for name in ("signs", "cars"):
        # At a limited rate, but always the last.
        assert [done for what, done, _ in heard if what == f"features of {name}"] == [1, 3]


def test_several_runs_on_a_gpu_are_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    jobs = [Job(name="", scenario=None, scheme=None, seed=0, work=tmp_path, folder=tmp_path)] * 2  # type: ignore[arg-type]
    on_gpu = Shared(execution=Execution(device="cuda"))
    assert isinstance(local_backend(2, jobs, on_gpu), Threads)
    assert isinstance(local_backend(2, jobs[:1], on_gpu), InThisProcess)


def test_a_shared_value_is_made_once_and_only_the_latest_of_a_kind_outlives_its_users() -> None:
    class Made:
        pass

    def graphs(key: str) -> Made:
        return shared("graphs", key, Made)

    one, other = graphs("one"), graphs("one")
    assert one is not other
    with sharing():
        with sharing():
            one = graphs("one")
            assert graphs("one") is one
            assert shared("data", "one", Made) is not one
        two = graphs("two")
        assert graphs("one") is one
        dead, latest = weakref.ref(two), weakref.ref(one)
        del one, two
        # The latest stays for the next run.
        assert dead() is None
        assert graphs("one") is latest()
    assert latest() is None


def test_equal_data_is_on_a_device_once() -> None:
    """A device without values stands in for a GPU."""
    there, images = torch.device("meta"), torch.arange(12, dtype=torch.uint8).view(3, 4)
    with sharing():
        first = placed(images, there)
        assert placed(images.clone(), there) is first
        # Another order in memory may select other kernels, which round differently.
        assert placed(images.t().contiguous().t(), there) is not first
        assert placed(images + 1, there) is not first
        assert placed(images.view(4, 3), there) is not first
        assert placed(images.long(), there).dtype == torch.int64
        assert placed(first, there) is first
    assert placed(images, there) is not first


def test_threads_do_not_disturb_each_others_seeds() -> None:
    """Each thread seeds the default generator and draws; without turns the draws would mix."""
    drawn: dict[int, list[float]] = {}

    def draw(seed: int) -> None:
        for _ in range(20):
            with seeded_generators(torch.device("cpu")) as set_seed:
                set_seed(seed)
                drawn.setdefault(seed, []).append(float(torch.stack([torch.rand(()) for _ in range(50)]).sum()))

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in range(3)]
    with together._quick_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [len(set(drawn[seed])) for seed in range(3)] == [1, 1, 1]
