"""Disks, clocks and memory that fail during a run."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.studies.power_cuts import EVERY_TEN, assert_same

import wayfare
from wayfare.errors import RunError, ScenarioError, StorageError
from wayfare.forking import quick_context
from wayfare.methods import make_method
from wayfare.records import RunRecord
from wayfare.scenario import Scenario
from wayfare.signals import StopRequest
from wayfare.simulator import Simulation
from wayfare.studies import keeping, local
from wayfare.studies.jobs import Job, Shared


def test_a_folder_that_becomes_unwritable_says_what_is_safe(
    small: Scenario, tmp_path: Path, whole: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def on_round(round_: int) -> None:
        if round_ == 25:
            monkeypatch.setattr("wayfare.records.write.write_checkpoint", full)

    with pytest.raises(StorageError) as caught:
        wayfare.run(small, "mads", seed=1, out=tmp_path, execution=EVERY_TEN, on_round=on_round)
    assert "No space left on device" in str(caught.value)
    assert "A checkpoint holds everything up to round 20" in str(caught.value)
    monkeypatch.undo()
    (partial,) = tmp_path.rglob("*.partial")
    assert_same(wayfare.resume(partial), whole)


def test_a_clock_that_jumps_is_noted_and_changes_nothing(
    small: Scenario, tmp_path: Path, whole: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, shift = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + shift[0])

    def on_round(round_: int) -> None:
        shift[0] = -7200.0 if round_ >= 25 else 0.0

    record = wayfare.run(small, "mads", seed=1, out=tmp_path, execution=EVERY_TEN, on_round=on_round)
    assert_same(record, whole)
    assert 0 < record.wall_s < 60
    assert [note[:49] for note in record.meta["notes"]] == ["the clock of this machine jumped by -7200 s; run "]


def test_checkpoints_come_by_the_clock_and_never_cost_more_than_their_share(
    small: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, written = [0.0], list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    class Slow:
        """A writer on a disk that takes 2 s for a checkpoint."""

        on_contact = on_relay = on_evaluation = None

        def checkpoint(self, state: object, wall_s: float, *, pinned: bool) -> None:
            written.append(clock[0])
            clock[0] += 2.0

    class Still:
        def state(self) -> object:
            return type("State", (), {"first_nonfinite": lambda self: None, "round": 1})()

    monkeypatch.setattr(time, "time", lambda: clock[0])
    for every_s, expected in ((None, [30.0, 132.0, 234.0]), (50.0, [50.0, 102.0, 154.0, 206.0])):
        clock[0], written[:] = 0.0, []
        safeguards, method = wayfare.Safeguards(checkpoint_every_s=every_s), make_method("mads", Scenario())
        keeper = keeping.Keeper(safeguards, StopRequest(), None, method=method, extend_from=10**9)
        simulation = Still()
        keeper.open(Slow(), simulation)  # type: ignore[arg-type]
        for round_ in range(1, 241):
            clock[0] += 1.0
            keeper.on_round(round_)
        assert written[: len(expected)] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"checkpoint_every_s": 0.0}, "checkpoint_every_s = 0.0: must be above 0"),
        ({"checkpoint_every_s": float("nan")}, "must be above 0"),
        ({"checkpoint_every_rounds": 0}, "checkpoint_every_rounds = 0: must be at least 1"),
    ],
)
def test_intervals_that_make_no_sense_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        wayfare.Safeguards(**arguments)  # type: ignore[arg-type]


@pytest.fixture
def _little_memory() -> Iterator[None]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("override", ["learning.hidden=[100000,100000]", "fleet.devices=9000"])
def test_a_run_that_memory_cannot_hold_ends_with_a_sentence(override: str, small: Scenario, tmp_path: Path) -> None:
    overrides = [override] if "hidden" in override else [override, "learning.hidden=[4000]", "rounds=20"]
    scenario = wayfare.load("fashion-small", [*overrides, "fleet.energy_total_joules=9"])
    with pytest.raises(RunError, match="out of memory: "):
        wayfare.run(scenario, "optimal", out=tmp_path)


@pytest.mark.parametrize("scheme", ["mads", "mads-rd", "fedmobile"])
def test_the_models_of_a_run_are_gone_with_it(small: Scenario, scheme: str, tmp_path: Path) -> None:
    def alive() -> int:
        return sum(type(one) is Simulation for one in gc.get_objects())

    gc.collect()
    before = alive()
    gc.disable()
    try:
        wayfare.run(small, scheme, out=tmp_path)
        assert alive() == before
    finally:
        gc.enable()


LONG_WORK = """
import time
from pathlib import Path

from wayfare.files import open_atomically
from wayfare.progress import report_progress


def task():
    with open_atomically(Path(__file__).with_name("features")):
        report_progress("features", 1, 9)
        time.sleep(60)
"""


def test_a_worker_reports_long_work_and_cleans_up_when_it_is_terminated(small: Scenario, tmp_path: Path) -> None:
    file = tmp_path / f"{tmp_path.name}.py"
    file.write_text(LONG_WORK, encoding="utf-8")
    scenario = small.model_copy(update={"learning": small.learning.model_copy(update={"task": f"{file}:task"})})
    folder = tmp_path / "run"
    job = Job(name="", scenario=scenario, scheme=make_method("mads", small), seed=0, work=folder, folder=folder)
    context = quick_context("wayfare.studies.local")
    ours, theirs = context.Pipe()
    worker = context.Process(target=local._work, args=(theirs, Shared(execution=wayfare.Execution()), {}))
    worker.start()
    ours.send(job)
    assert (ours.recv(), ours.recv()) == ("ready", ("features", 1, 9))
    worker.terminate()
    worker.join(60)
    assert not list(tmp_path.glob(".features*"))


def test_a_worker_whose_parent_hangs_up_ends_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    context = quick_context("wayfare.studies.local")
    ours, theirs = context.Pipe()
    worker = context.Process(target=local._work, args=(theirs, Shared(execution=wayfare.Execution()), {}))
    worker.start()
    theirs.close()
    ours.close()
    worker.join(60)
    assert worker.exitcode == 0
    assert capfd.readouterr().err == ""
