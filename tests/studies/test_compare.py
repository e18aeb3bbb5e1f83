from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from rich.console import Console

import wayfare
from wayfare.engine import Compute, open_shelf
from wayfare.engine.shelf import PLACES
from wayfare.errors import InputError, RunError, RunFolderError, ScenarioError
from wayfare.records import RunRecord, RunSummary
from wayfare.report.tables import comparison_table
from wayfare.scenario import Scenario, parse
from wayfare.studies import Execution, summarise
from wayfare.studies.jobs import TRIES, Job
from wayfare.studies.resuming import unfinished_runs
from wayfare.world import draw_world


class Murmur(wayfare.UploadRule):
    """At module level, so that it can travel to a worker."""

    name = "murmur"

    def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
        return wayfare.send_top_k(encounter, link, 0.1 * link.max_power_watts)


class Doomed(Murmur):
    """Kills its process, as the system does when memory runs out; with a mark to keep, only the first time."""

    name = "doomed"

    def __init__(self, mark: Path | None) -> None:
        self.mark = mark

    def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
        if self.mark is None or not self.mark.exists():
            if self.mark is not None:
                self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decide(encounter, link)


class Clumsy(Murmur):
    """Cannot divide."""

    name = "clumsy"

    def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
        raise ZeroDivisionError("by nothing")


class Watch:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.rounds: dict[int, int] = {}
        self.finished: set[int] = set()
        self.reasons: list[tuple[str, str]] = []
        self.lost: list[str] = []
        self.before = 0

    def begin(self, jobs: Sequence[Job], finished: int) -> None:
        self.names = [job.name for job in jobs]
        self.before = finished

    def advance(self, place: int, round_: int) -> None:
        self.rounds[place] = round_

    def done(self, place: int, summary: RunSummary, *, elsewhere: bool) -> None:
        assert summary.scheme in self.names[place]
        self.finished.add(place)

    def failed(self, place: int, reason: str) -> None:
        self.reasons.append((self.names[place], reason))

    def again(self, place: int, reason: str) -> None:
        self.lost.append(self.names[place])


def test_a_pool_and_a_single_process_give_identical_results(small: Scenario, tmp_path: Path) -> None:
    watch = Watch()
    schemes: list[str | wayfare.UploadRule] = ["mads", "afl", Murmur()]
    pooled = wayfare.compare(small, schemes, seeds=2, jobs=2, out=tmp_path / "pool", progress=watch)
    alone = wayfare.compare(small, schemes, seeds=2, jobs=1, out=tmp_path / "alone")
    assert [scheme.name for scheme in pooled.schemes] == ["mads", "afl", "murmur"]
    assert pooled.schemes == alone.schemes
    assert all(torch.equal(a.model, b.model) for a, b in zip(pooled.runs, alone.runs, strict=True))
    assert watch.finished == set(range(6))
    assert watch.names[0] == "mads, seed 0"
    assert parse(pooled.manifest.scenarios[0]) == small


def test_a_run_whose_worker_is_killed_once_is_done_again_and_nothing_is_lost(small: Scenario, tmp_path: Path) -> None:
    watch = Watch()
    schemes: list[str | wayfare.UploadRule] = ["mads", Doomed(tmp_path / "mark")]
    result = wayfare.compare(small, schemes, seeds=2, jobs=2, out=tmp_path, progress=watch)
    assert [scheme.name for scheme in result.schemes] == ["mads", "doomed"]
    assert watch.finished == set(range(4))
    assert {name.split(",")[0] for name in watch.lost} == {"doomed"}
    quiet = wayfare.compare(small, [Murmur()], seeds=2, jobs=1, out=tmp_path)
    assert all(torch.equal(mine.model, theirs.model) for mine, theirs in zip(result.runs[2:], quiet.runs, strict=True))


def test_a_run_that_always_kills_its_worker_fails_and_the_others_finish(small: Scenario, tmp_path: Path) -> None:
    watch = Watch()
    with pytest.raises(
        RunError, match=r"1 of 3 runs failed: doomed, seed 0: .*killed \(signal 9.*The other 2 are"
    ) as told:
        wayfare.compare(small, ["mads", Doomed(None), "afl"], seeds=1, jobs=2, out=tmp_path, progress=watch)
    assert "repeats only the missing runs" in str(told.value)
    assert len(watch.lost) == TRIES - 1
    assert {run.parent.name.rpartition("-")[0] for run in tmp_path.rglob("runs/*/run.sqlite")} == {
        "mads-seed0",
        "afl-seed0",
    }
    watch = Watch()
    whole = wayfare.compare(small, ["mads", "afl", "optimal"], seeds=1, jobs=2, out=tmp_path, progress=watch)
    assert (watch.names, watch.before) == (["optimal, seed 0"], 2)
    assert [scheme.name for scheme in whole.schemes] == ["mads", "afl", "optimal"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_scheme_that_fails_is_told_once_and_not_tried_again(small: Scenario, tmp_path: Path, jobs: int) -> None:
    watch = Watch()
    with pytest.raises(RunError, match="1 of 2 runs failed: clumsy, seed 0: ZeroDivisionError: by nothing") as told:
        wayfare.compare(small, [Clumsy(), "mads"], seeds=1, jobs=jobs, out=tmp_path, progress=watch)
    assert isinstance(told.value.__cause__, ZeroDivisionError)
    assert (watch.reasons, watch.lost) == ([("clumsy, seed 0", "ZeroDivisionError: by nothing")], [])
    assert watch.finished == {1}
    (trace,) = tmp_path.rglob("clumsy-seed0-*.error.txt")
    assert 'raise ZeroDivisionError("by nothing")' in trace.read_text(encoding="utf-8")


def test_a_scheme_that_cannot_travel_is_refused_with_a_way_out(small: Scenario, tmp_path: Path) -> None:
    class Homebody(Murmur):
        name = "homebody"

    with pytest.raises(InputError, match=r"cannot be sent to another process .* `jobs=1`"):
        wayfare.compare(small, [Homebody()], seeds=2, jobs=2, out=tmp_path)
    assert len(wayfare.compare(small, [Homebody()], seeds=2, jobs=1, out=tmp_path).runs) == 2


def test_the_worlds_of_a_seed_are_paired(small: Scenario, tmp_path: Path) -> None:
    result = wayfare.compare(small, ["mads", "optimal"], seeds=[7, 9], jobs=1, out=tmp_path)
    by_key = {(run.scheme, run.seed): run for run in result.runs}
    for seed in (7, 9):
        assert np.array_equal(by_key["mads", seed].contacts["contact_s"], by_key["optimal", seed].contacts["contact_s"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schemes": []}, "must name at least one scheme"),
        ({"schemes": ["mads", "mads"]}, "must not be listed twice"),
        ({"schemes": ["afl", "afl:greedy"]}, "must not be listed twice"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": [1, 1]}, "must not repeat"),
        ({"seeds": [-1]}, "must be at least 0"),
        ({"jobs": 0}, "must be at least 1"),
        ({"execution": wayfare.Execution(engine="steam")}, "must be one of auto"),
        ({"execution": wayfare.Execution(device="abacus")}, "must be auto, cpu, cuda"),
    ],
)
def test_comparisons_that_make_no_sense_are_refused(
    arguments: dict[str, object], message: str, small: Scenario, tmp_path: Path
) -> None:
    settings: dict[str, object] = {"schemes": ["mads"], "jobs": 1, "out": tmp_path} | arguments
    with pytest.raises(ScenarioError, match=message):
        wayfare.compare(small, **settings)  # type: ignore[arg-type]


@pytest.mark.long
def test_the_embedded_default_comes_out_as_the_paper_says(tmp_path: Path) -> None:
    names = ["mads", "afl-spar", "afl", "sfl-spar", "fedmobile"]
    result = wayfare.compare(wayfare.load(), names, seeds=[2], out=tmp_path)
    mads, *others = result.schemes
    assert mads.energy_joules_mean <= 1.03 * mads.budget_joules
    assert all(mads.score_mean > other.score_mean + 0.02 for other in others)
    assert 0.70 < mads.score_mean < 0.85
    # With relays that are free, that fit and that are merged: the default.
    scores = {scheme.name: scheme.score_mean for scheme in result.schemes}
    assert scores["fedmobile"] > scores["afl"] + 0.05


def test_a_fleet_on_disk_does_what_it_does_in_memory_and_leaves_nothing_behind(small: Scenario, tmp_path: Path) -> None:
    runs = [
        wayfare.run(small, "mads", out=tmp_path / place, execution=Execution(device_state=place)) for place in PLACES
    ]
    assert torch.equal(runs[0].model, runs[1].model)
    assert all(np.array_equal(runs[0].contacts[name], column) for name, column in runs[1].contacts.items())
    assert [entry.name for entry in runs[1].folder.parent.iterdir()] == [runs[1].folder.name]


@pytest.mark.skipif(os.name != "posix", reason="open files keep their names")
def test_a_fleet_on_disk_leaves_nothing_behind_even_if_it_is_killed(tmp_path: Path) -> None:
    with open_shelf("disk", Compute(), tmp_path, 2, 3) as shelf:
        assert not list(tmp_path.iterdir())
        assert shelf.keep(1, torch.arange(3.0)).tolist() == [0.0, 1.0, 2.0]


def test_a_fleet_on_disk_needs_a_processor(tmp_path: Path) -> None:
    gpu = SimpleNamespace(device=torch.device("cuda"))
    with (
        pytest.raises(ScenarioError, match="device_state = 'disk': needs `device=cpu`"),
        open_shelf("disk", cast(Compute, gpu), tmp_path, 2, 3),
    ):
        pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunFolderError, match="cannot write here"),
        open_shelf("disk", Compute(), tmp_path / "file" / "runs", 2, 3),
    ):
        pass


def test_runs_of_another_world_are_not_taken_for_those_that_are_there(small: Scenario, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    text = "start_s,end_s,a,b\n" + "".join(f"{60 * d + 5},{60 * d + 15},server,d{d}\n" for d in range(1, 7))
    trace.write_text(text)
    scenario = wayfare.load("fashion-small", [*SMALL_TRACE, f"mobility.file={trace}"])
    wayfare.compare(scenario, ["mads"], seeds=1, jobs=1, out=tmp_path)
    trace.write_text(text.replace("65,75", "65,85"))
    draw_world.cache_clear()  # as another process has it
    watch = Watch()
    whole = wayfare.compare(scenario, ["mads", "afl"], seeds=1, jobs=1, out=tmp_path, progress=watch)
    assert (len(watch.names), watch.before) == (2, 0)
    one, other = whole.runs
    assert one.meta["world"] == other.meta["world"]
    assert "of seed 0 differ" not in _text(whole.runs)
    one.meta["world"]["contacts"] = "others"
    assert "of seed 0 differ: a trace, data or code changed" in _text(whole.runs)


SMALL_TRACE = ("rounds=40", "fleet.devices=6", "learning.hidden=[8]", "mobility.model=trace", "mobility.repeat=true")


def _text(runs: list[RunRecord]) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(comparison_table(summarise(runs), runs, width=120))
    return captured.get()


class Loud(Murmur):
    """Has the name of another scheme, and does something else."""

    def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
        return wayfare.send_top_k(encounter, link, link.max_power_watts)


def test_finished_runs_are_taken_unless_a_scheme_does_something_else(small: Scenario, tmp_path: Path) -> None:
    first = wayfare.compare(small, ["mads", Murmur()], seeds=1, jobs=1, out=tmp_path)
    watch = Watch()
    again = wayfare.compare(small, [Murmur(), "mads"], seeds=1, jobs=1, out=tmp_path, progress=watch)
    assert (watch.names, watch.before) == ([], 2)
    assert (again.folder, [scheme.name for scheme in again.schemes]) == (first.folder, ["murmur", "mads"])
    other = wayfare.compare(small, ["mads", Loud()], seeds=1, jobs=1, out=tmp_path, progress=watch)
    assert (watch.names, watch.before) == (["murmur, seed 0"], 1)
    assert other.schemes[1].energy_joules_mean > again.schemes[0].energy_joules_mean


def test_fresh_runs_replace_those_that_are_there(small: Scenario, tmp_path: Path) -> None:
    fresh = Execution(safeguards=wayfare.Safeguards(fresh=True))
    first = wayfare.compare(small, ["mads"], seeds=1, jobs=1, out=tmp_path)
    (before,) = [run.meta["started"] for run in first.runs]
    watch = Watch()
    again = wayfare.compare(small, ["mads"], seeds=1, jobs=1, out=tmp_path, execution=fresh, progress=watch)
    assert (watch.names, watch.before) == (["mads, seed 0"], 0)
    assert again.runs[0].folder == first.runs[0].folder
    assert again.runs[0].meta["started"] >= before
    assert list((again.folder / "work").iterdir()) == []


def test_a_task_with_other_data_is_run_again(small: Scenario, tmp_path: Path) -> None:
    def compared(shift: float) -> tuple[int, Path]:
        inputs = np.linspace(-1, 1, 120, dtype=np.float32).reshape(60, 2) + np.float32(shift)
        data = inputs, (inputs[:, 0] > 0).astype(np.int64)
        task = wayfare.own_task("halves", train=data, test=data, network=network)
        watch = Watch()
        done = wayfare.compare(small, ["afl"], seeds=1, jobs=1, out=tmp_path, task=task, progress=watch)
        return len(watch.names), done.runs[0].folder

    (ran, folder), (ran_again, same), (ran_other, other) = compared(0.0), compared(0.0), compared(0.1)
    assert (ran, ran_again, ran_other) == (1, 0, 1)
    assert folder == same != other


def network() -> torch.nn.Module:
    return torch.nn.Linear(2, 2)


def test_a_run_of_a_study_that_is_resumed_by_itself_belongs_to_the_study(small: Scenario, tmp_path: Path) -> None:
    class StopError(Exception):
        """Ends the comparison in the middle of a run."""

    class Stopping(Watch):
        def advance(self, place: int, round_: int) -> None:
            if round_ == 30:
                raise StopError

    every_round = Execution(safeguards=wayfare.Safeguards(checkpoint_every_rounds=1))
    with pytest.raises(RunError, match="1 of 1 runs failed: mads, seed 0: StopError"):
        wayfare.compare(small, ["mads"], seeds=1, jobs=1, out=tmp_path, execution=every_round, progress=Stopping())
    (unfinished,) = unfinished_runs(tmp_path)
    record = wayfare.resume(unfinished)
    assert record.folder.parent.name == "runs"
    watch = Watch()
    done = wayfare.compare(small, ["mads"], seeds=1, jobs=1, out=tmp_path, progress=watch)
    assert (watch.names, [run.folder for run in done.runs]) == ([], [record.folder])
