from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.processes import Program, start_command
from tests.studies.small_study import bits_of, bits_of_study, write_study

from wayfare import run
from wayfare.errors import ScenarioError
from wayfare.records import RunSummary
from wayfare.studies.cost import Estimates, Measured
from wayfare.studies.jobs import Job, Queue
from wayfare.studies.results import read_results
from wayfare.studies.single import Execution
from wayfare.studies.store import StudyFolder, manifest_of
from wayfare.studies.study import load_study
from wayfare.studies.sweeping import outlook, sweep


class Watch:
    def __init__(self) -> None:
        self.started: list[str] = []
        self.before = 0
        self.reasons: list[str] = []
        self._jobs: Sequence[Job] = ()

    def begin(self, jobs: Sequence[Job], finished: int) -> None:
        self._jobs, self.before = jobs, finished

    def advance(self, place: int, round_: int) -> None:
        if round_ == 0:
            self.started.append(self._jobs[place].name)

    def done(self, place: int, summary: RunSummary, *, elsewhere: bool) -> None: ...

    def failed(self, place: int, reason: str) -> None:
        self.reasons.append(reason)

    def again(self, place: int, reason: str) -> None: ...


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed study."""
    folder = tmp_path_factory.mktemp("undisturbed")
    sweep(load_study(write_study(folder)), out=folder, jobs=1)
    return folder / "small"


def test_runs_of_a_study_are_runs_like_any_other(swept: Path, tmp_path: Path) -> None:
    plan = load_study(write_study(tmp_path))
    alone = run(plan.points[1].scenario, "afl", seed=1, out=tmp_path)
    (same,) = [result.folder for result in read_results(swept).results if result.run.point == 1][3:]
    assert bits_of(alone.folder) == bits_of(same)


def test_nothing_is_repeated_and_a_larger_grid_runs_only_what_is_new(tmp_path: Path) -> None:
    first, again, larger = Watch(), Watch(), Watch()
    plan = load_study(write_study(tmp_path, speeds="[10]"))
    assert outlook(plan, out=tmp_path).seconds is None
    sweep(plan, out=tmp_path, jobs=1, progress=first)
    assert len(first.started) == 4
    # What processes leave that are killed between the end of a run and the end of its lock.
    work = tmp_path / "small" / "work"
    for folder in (tmp_path / "small" / "runs").iterdir():
        (work / f"{folder.name}.lock").write_text("{}", encoding="utf-8")
    done = sweep(plan, out=tmp_path, jobs=1, progress=again)
    assert (again.started, again.before, len(done.results.results)) == ([], 4, 4)
    assert list(work.iterdir()) == []
    wider = load_study(write_study(tmp_path, speeds="[10, 30]", seeds=3))
    seen = outlook(wider, out=tmp_path, workers=2)
    assert (len(seen.finished), len(seen.waiting)) == (4, 8)
    assert seen.seconds is not None
    assert seen.run_seconds == pytest.approx(2 * seen.seconds)
    sweep(wider, out=tmp_path, jobs=1, progress=larger)
    assert (len(larger.started), larger.before) == (8, 4)
    assert all("speed_mps 30" in name or "seed 2" in name for name in larger.started)
    narrow = read_results(tmp_path / "small")
    assert (len(narrow.results), narrow.missing) == (12, 0)


def test_one_run_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path: Path) -> None:
    # More devices than images: found out only when the world is drawn.
    text = write_study(tmp_path).read_text(encoding="utf-8").replace("mobility.speed_mps = [10, 20]", "")
    (tmp_path / "small.toml").write_text(text + "fleet.devices = [20000, 6]\n", encoding="utf-8")
    plan, watch = load_study(tmp_path / "small.toml"), Watch()
    done = sweep(plan, out=tmp_path, jobs=1, progress=watch)
    assert (len(done.failures), len(done.results.results), done.results.missing) == (4, 4, 4)
    assert all("must not exceed the 10000" in reason for reason in watch.reasons)
    assert len(list((tmp_path / "small" / "runs").glob("*.error.txt"))) == 4
    assert read_results(tmp_path / "small").failed == 4
    again = Watch()
    sweep(plan, out=tmp_path, jobs=1, progress=again)
    assert len(again.started) == 4


def start_sweep(study: Path, *words: str, logs: str = "logs") -> Program:
    return start_command("sweep", study, "--out", study.parent, "--json", *words, logs=study.parent / logs)


def test_a_driver_that_is_killed_leaves_a_study_that_goes_on(swept: Path, tmp_path: Path) -> None:
    study = write_study(tmp_path)
    runs = tmp_path / "small" / "runs"
    driver = start_sweep(study, "--jobs", "2")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (runs.is_dir() and len(list(runs.iterdir())) >= 2):
        time.sleep(0.01)
    driver.send_signal(signal.SIGKILL)
    assert driver.ended() == -signal.SIGKILL
    finished = {run: (run / "run.sqlite").stat().st_mtime_ns for run in runs.iterdir()}
    assert 2 <= len(finished) < 8
    deadline = time.monotonic() + 20
    while _alive(driver.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(driver.pid), "workers outlive their driver"
    watch = Watch()
    sweep(load_study(study), out=tmp_path, jobs=1, progress=watch)
    assert (watch.before, len(watch.started)) == (len(finished), 8 - len(finished))
    assert {run: (run / "run.sqlite").stat().st_mtime_ns for run in finished} == finished
    assert bits_of_study(tmp_path / "small") == bits_of_study(swept)
    assert list((tmp_path / "small" / "work").iterdir()) == []


def test_two_drivers_share_a_study_and_no_run_is_done_twice(swept: Path, tmp_path: Path) -> None:
    study = write_study(tmp_path)
    drivers = [start_sweep(study, "--jobs", "1", logs=f"logs{number}") for number in range(2)]
    assert [driver.ended() for driver in drivers] == [0, 0], [driver.errors for driver in drivers]
    lines = [line for driver in drivers for line in driver.errors.splitlines() if "accuracy" in line]
    own = [line.partition("] ")[2].partition(" ")[2] for line in lines if "by another sweep" not in line]
    assert len({name.partition(":")[0] for name in own}) == len(own) == 8
    assert bits_of_study(tmp_path / "small") == bits_of_study(swept)


def test_a_claim_is_for_one_and_ends_with_its_holder(tmp_path: Path) -> None:
    manifest = manifest_of(load_study(write_study(tmp_path)), Execution())
    one, other = StudyFolder(tmp_path / "small"), StudyFolder(tmp_path / "small")
    one.write(manifest)
    first = manifest.runs[0]
    assert (one.claim(first), other.claim(first)) == ("mine", "busy")
    one.release(first)
    assert other.claim(first) == "mine"
    one.run_folder(first).mkdir()
    assert one.claim(first) == "done"
    other.release(first)
    assert list((tmp_path / "small" / "work").iterdir()) == []


def test_long_runs_come_first_and_a_worker_stays_in_its_world(tmp_path: Path) -> None:
    plan = load_study(write_study(tmp_path))
    manifest = manifest_of(plan, Execution())
    folder = StudyFolder(tmp_path)
    jobs = [folder.job(plan, manifest, run, 1.0 + (run.scheme == "mads")) for run in manifest.runs]
    queue = Queue(jobs)
    first = queue.take()
    assert first is not None
    assert jobs[first].scheme.name == "mads"
    second = queue.take(after=first)
    assert second is not None
    assert (jobs[second].scheme.name, jobs[second].scenario, jobs[second].seed) == (
        "afl",
        jobs[first].scenario,
        jobs[first].seed,
    )
    queue.put_back(first)
    assert queue.take() == first


def test_estimates_take_the_nearest_runs_there_are() -> None:
    nothing = Estimates([])
    assert nothing.seconds(0, "mads", 1.0) is None
    some = Estimates([Measured(0, "mads", 10.0, 4.0), Measured(0, "mads", 10.0, 6.0), Measured(0, "afl", 10.0, 1.0)])
    assert some.seconds(0, "mads", 10.0) == pytest.approx(5.0)
    assert some.seconds(1, "mads", 20.0) == pytest.approx(10.0)
    assert some.seconds(1, "optimal", 30.0) == pytest.approx(11.0)


def test_no_worker_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="jobs = 0: must be at least 1"):
        sweep(load_study(write_study(tmp_path)), out=tmp_path, jobs=0)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_interrupted_sweep_says_that_it_can_go_on(tmp_path: Path) -> None:
    study = write_study(tmp_path, rounds=20_000)
    driver = start_sweep(study, "--jobs", "1")
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not list(tmp_path.rglob("*.partial")):
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    assert driver.ended() == 130
    assert "Traceback" not in driver.errors
    assert "stopped; " in driver.errors
