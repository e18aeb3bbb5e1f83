"""Stopped, killed and damaged runs resume with bit-identical results, or say why they cannot."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.studies.power_cuts import EVERY_TEN, PowerCutError, assert_same, cut, cut_at

import wayfare
from wayfare.errors import DivergenceError, RunFolderError, ScenarioError
from wayfare.records import RunLock, RunRecord, find_runs, read_run
from wayfare.scenario import Scenario
from wayfare.studies.resuming import unfinished_runs
from wayfare.world import draw_world


def ask(round_: int, number: signal.Signals) -> None:
    """Send this process a signal in one round."""
    if round_ == 23:
        os.kill(os.getpid(), number)


def checkpoints(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.with_name(folder.name + ".partial").glob("*.checkpoint"))


def test_a_run_goes_on_by_its_folder(small: Scenario, tmp_path: Path, whole: RunRecord) -> None:
    folder = cut(small, tmp_path)
    assert checkpoints(folder) == ["round-00000020.checkpoint", "round-00000030.checkpoint"]
    with pytest.raises(RunFolderError, match=r"this run did not finish; resume it with `wayfare\.resume"):
        read_run(folder.with_name(folder.name + ".partial"))
    rounds: list[int] = []
    record = wayfare.resume(folder, on_round=rounds.append)
    assert rounds == list(range(31, 61))
    assert_same(record, whole)
    assert [session["after_round"] for session in record.meta["sessions"]] == [0, 30]
    # Nothing is left but the run.
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["run.sqlite"]


def test_the_same_call_finds_its_unfinished_run(small: Scenario, tmp_path: Path, whole: RunRecord) -> None:
    cut(small, tmp_path)
    rounds: list[int] = []
    assert_same(wayfare.run(small, "mads", seed=1, out=tmp_path, on_round=rounds.append), whole)
    assert rounds[0] == 31


def test_a_weight_that_finds_itself_keeps_its_experience(small: Scenario, tmp_path: Path) -> None:
    auto = small.model_copy(update={"control": small.control.model_copy(update={"weight": "auto"})})
    expected = wayfare.run(auto, "mads", seed=1, out=tmp_path / "whole")
    found = wayfare.resume(cut(auto, tmp_path / "cut"))
    assert_same(found, expected)
    assert found.contacts["power_watts"].max() > 0


def test_a_run_cut_again_and_again_comes_to_its_end(small: Scenario, tmp_path: Path, whole: RunRecord) -> None:
    for at in (8, 12, 25, 26, 44, 59):
        cut(small, tmp_path, at=at)
    record = wayfare.run(small, "mads", seed=1, out=tmp_path)
    assert_same(record, whole)
    assert [session["after_round"] for session in record.meta["sessions"]] == [0, 0, 10, 20, 20, 40, 50]


def test_a_run_without_a_checkpoint_begins_anew(small: Scenario, tmp_path: Path, whole: RunRecord) -> None:
    folder = cut(small, tmp_path, execution=wayfare.Execution())
    assert checkpoints(folder) == []
    assert_same(wayfare.resume(folder), whole)


def test_a_run_that_only_lacks_its_name_gets_it(
    small: Scenario, tmp_path: Path, whole: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def cut_off(folder: Path) -> None:
            raise PowerCutError

        patch.setattr("wayfare.records.write.finalise_run", cut_off)
        with pytest.raises(PowerCutError):
            wayfare.run(small, "mads", seed=1, out=tmp_path)
    (partial,) = tmp_path.rglob("*.partial")
    rounds: list[int] = []
    assert_same(wayfare.resume(partial, on_round=rounds.append), whole)
    assert rounds == []


@pytest.mark.parametrize("damage", ["newest", "both", "flip"])
def test_a_damaged_checkpoint_is_not_gone_on_from(
    damage: str, small: Scenario, tmp_path: Path, whole: RunRecord, caplog: pytest.LogCaptureFixture
) -> None:
    folder = cut(small, tmp_path)
    partial = folder.with_name(folder.name + ".partial")
    newest, older = partial / checkpoints(folder)[1], partial / checkpoints(folder)[0]
    if damage == "flip":
        content = bytearray(newest.read_bytes())
        content[len(content) // 2] ^= 4
        newest.write_bytes(content)
    else:
        newest.write_bytes(newest.read_bytes()[:-100])
    if damage == "both":
        older.unlink()
    rounds: list[int] = []
    with caplog.at_level(logging.WARNING, "wayfare"):
        record = wayfare.resume(folder, on_round=rounds.append)
    assert_same(record, whole)
    assert rounds[0] == (1 if damage == "both" else 21)
    expected = "the run starts again" if damage == "both" else "resuming after round 20"
    assert "the checkpoint of round 30 is damaged" in caplog.text
    assert expected in caplog.text
    # Who reads the records later learns of it too.
    assert any("round 30 is damaged" in note for note in record.meta["notes"])


def test_records_that_were_changed_are_not_gone_on_from(small: Scenario, tmp_path: Path, whole: RunRecord) -> None:
    folder = cut(small, tmp_path)
    database = sqlite3.connect(folder.with_name(folder.name + ".partial") / "run.sqlite")
    with database:
        database.execute(
            "UPDATE contacts SET energy_joules = energy_joules + 1e-9 "
            "WHERE round = (SELECT min(round) FROM contacts WHERE round > 20)"
        )
    database.close()
    rounds: list[int] = []
    assert_same(wayfare.resume(folder, on_round=rounds.append), whole)
    assert rounds[0] == 21


def test_a_finished_run_whose_numbers_changed_is_not_shown(tmp_path: Path, whole: RunRecord) -> None:
    content = (whole.folder / "run.sqlite").read_bytes()
    for change in (
        "UPDATE contacts SET bits = bits + 1 WHERE round = (SELECT max(round) FROM contacts)",
        "UPDATE evaluations SET score = 0.99 WHERE round = 60",
        "DELETE FROM contacts WHERE round = (SELECT max(round) FROM contacts)",
        "UPDATE meta SET value = '7' WHERE key = 'seed'",
        "UPDATE devices SET budget_joules = budget_joules * 2",
        "UPDATE model SET float32_le = zeroblob(length(float32_le))",
        "DELETE FROM meta WHERE key = 'seal'",
    ):
        (tmp_path / "run.sqlite").write_bytes(content)
        database = sqlite3.connect(tmp_path / "run.sqlite")
        with database:
            assert database.execute(change).rowcount
        database.close()
        with pytest.raises(RunFolderError, match="damaged"):
            read_run(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_run_and_then_does_what_it_does(
    number: signal.Signals, small: Scenario, tmp_path: Path, whole: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []

    def handler(number: int, frame: object) -> None:
        heard.append(number)

    before = signal.signal(number, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wayfare.run(
                small, "mads", seed=1, out=tmp_path, on_round=lambda r: r == 23 and os.kill(os.getpid(), number)
            )
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    assert heard == [number]
    (partial,) = tmp_path.rglob("*.partial")
    rounds: list[int] = []
    assert_same(wayfare.resume(partial, on_round=rounds.append), whole)
    assert rounds[0] == 24


def test_a_signal_that_is_ignored_stays_ignored(small: Scenario, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        wayfare.run(small, "mads", out=tmp_path, on_round=lambda r: os.kill(os.getpid(), signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)


def test_two_processes_never_write_one_run(small: Scenario, tmp_path: Path, whole: RunRecord) -> None:
    folder = cut(small, tmp_path)
    with RunLock(folder):
        for again in (lambda: wayfare.resume(folder), lambda: wayfare.run(small, "mads", seed=1, out=tmp_path)):
            with pytest.raises(RunFolderError, match=rf"process {os.getpid()} on .* is writing this run"):
                again()
    assert_same(wayfare.resume(folder), whole)


def test_the_lock_of_a_dead_process_is_no_lock(
    small: Scenario, tmp_path: Path, whole: RunRecord, caplog: pytest.LogCaptureFixture
) -> None:
    folder = cut(small, tmp_path)
    folder.with_name(folder.name + ".lock").write_text('{"process": 12345, "host": "gone"}', encoding="utf-8")
    assert_same(wayfare.resume(folder), whole)
    assert "taking over from process 12345 on 'gone'" in caplog.text
    assert not list(tmp_path.rglob("*.lock"))


def test_another_scenario_is_refused_with_the_difference(small: Scenario, tmp_path: Path) -> None:
    folder = cut(small, tmp_path)
    with pytest.raises(RunFolderError) as caught:
        wayfare.resume(folder, overrides=["radio.range_m=50", "learning.batch_size=9"])
    assert "radio.range_m: 100.0 -> 50.0; learning.batch_size: 8 -> 9" in str(caught.value)
    with pytest.raises(ScenarioError, match="unknown key"):
        wayfare.resume(folder, overrides=["radio.rnage_m=50"])


def test_another_engine_is_refused_with_the_difference_unless_the_run_starts_over(
    small: Scenario, tmp_path: Path
) -> None:
    cut(small, tmp_path)
    other = wayfare.Execution(engine="reference")
    with pytest.raises(RunFolderError, match=r"execution\.engine: 'stacked' -> 'reference'"):
        wayfare.run(small, "mads", seed=1, out=tmp_path, execution=other)
    fresh = replace(other, safeguards=wayfare.Safeguards(fresh=True))
    rounds: list[int] = []
    wayfare.run(small, "mads", seed=1, out=tmp_path, execution=fresh, on_round=rounds.append)
    assert rounds[0] == 1


def test_a_scheme_of_the_same_name_with_other_numbers_is_refused(small: Scenario, tmp_path: Path) -> None:
    folder = cut(small, tmp_path)
    other = wayfare.load("fashion-small", ["control.weight=1"])
    from wayfare.methods import make_method
    from wayfare.studies.single import carry_out

    with pytest.raises(RunFolderError, match=r"scheme\.upload\.values\.control\.weight: 0\.005 -> 1"):
        carry_out(folder, small, make_method("mads", other), 1, execution=wayfare.Execution())


def test_a_trace_that_changed_in_between_is_noticed(tmp_path: Path) -> None:
    trace = tmp_path / "contacts.csv"
    lines = [f"{10 * n},{10 * n + 8},d{n % 3},mes" for n in range(40)]
    trace.write_text("\n".join(["start_s,end_s,a,b", *lines]) + "\n", encoding="utf-8")
    scenario = wayfare.load(
        "fashion-small",
        [
            *("rounds=30", "fleet.devices=3", "learning.hidden=[8]", "mobility.model=trace", "mobility.server=mes"),
            f"mobility.file={trace}",
        ],
    )
    folder = cut(scenario, tmp_path, at=25)
    draw_world.cache_clear()
    lines[3] = "30,39,d0,mes"
    trace.write_text("\n".join(["start_s,end_s,a,b", *lines]) + "\n", encoding="utf-8")
    with pytest.raises(RunFolderError, match="the drawn world or its files: contacts"):
        wayfare.resume(folder)


def test_a_scheme_of_ones_own_goes_on_with_the_program_that_has_it(small: Scenario, tmp_path: Path) -> None:
    class Loud(wayfare.UploadRule):
        name = "loud"

        def decide(self, encounter: wayfare.Encounter, link: wayfare.Link) -> wayfare.Upload:
            return wayfare.send_top_k(encounter, link, link.max_power_watts)

    with pytest.raises(PowerCutError):
        wayfare.run(small, Loud(), out=tmp_path, execution=EVERY_TEN, on_round=cut_at(35))
    (partial,) = tmp_path.rglob("*.partial")
    with pytest.raises(RunFolderError, match="run the program that defines it again"):
        wayfare.resume(partial)
    rounds: list[int] = []
    wayfare.run(small, Loud(), out=tmp_path, on_round=rounds.append)
    assert rounds[0] == 31


def test_divergence_names_the_last_good_checkpoint_and_can_be_allowed(
    small: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.simulator.test_checks import spoil

    spoil(monkeypatch, float("nan"), from_round=45)
    with pytest.raises(DivergenceError) as caught:
        wayfare.run(small, "mads", seed=1, out=tmp_path, execution=EVERY_TEN)
    message = str(caught.value)
    assert "device 3" in message
    assert "A checkpoint holds everything up to round 40; `wayfare.resume(" in message
    assert "learning.learning_rate below 0.1" in message
    with pytest.raises(DivergenceError):
        wayfare.run(small, "mads", seed=1, out=tmp_path)
    allowed = wayfare.Execution(safeguards=wayfare.Safeguards(allow_divergence=True, checkpoint_every_rounds=5))
    record = wayfare.run(small, "mads", seed=1, out=tmp_path, execution=allowed)
    assert np.isnan(record.contacts["update_norm_sq"]).any()
    # What is no number is kept as such, and the records are whole.
    assert_nan_same(read_run(record.folder), record)


def assert_nan_same(found: RunRecord, expected: RunRecord) -> None:
    for name, column in found.contacts.items():
        assert np.array_equal(column, expected.contacts[name], equal_nan=True)


def test_a_checkpoint_is_never_written_of_a_state_that_has_diverged(
    small: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.simulator.test_checks import spoil

    spoil(monkeypatch, float("nan"), from_round=30)
    often = wayfare.Execution(safeguards=wayfare.Safeguards(checkpoint_every_rounds=1))
    with pytest.raises(DivergenceError, match=r"the (local model|update) of device 3"):
        wayfare.run(small, "mads", seed=1, out=tmp_path, execution=often)


def test_what_cannot_be_resumed_says_so(small: Scenario, tmp_path: Path, whole: RunRecord) -> None:
    with pytest.raises(RunFolderError, match="no such run"):
        unfinished_runs(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match="contains no unfinished run"):
        unfinished_runs(tmp_path)
    with pytest.raises(RunFolderError, match="this run is finished"):
        unfinished_runs(whole.folder)
    with pytest.raises(RunFolderError, match="this run is finished"):
        wayfare.resume(whole.folder)
    with pytest.raises(RunFolderError, match="not a run"):
        wayfare.resume(tmp_path)
    (tmp_path / "x.partial").mkdir()
    with pytest.raises(RunFolderError, match="ended before it saved anything"):
        wayfare.resume(tmp_path / "x")
    (tmp_path / "x.partial" / "run.sqlite").write_bytes(b"rubbish" * 1000)
    with pytest.raises(RunFolderError, match="damaged, or not the records of a run"):
        wayfare.resume(tmp_path / "x")


def test_all_unfinished_runs_of_a_folder_are_found(small: Scenario, tmp_path: Path) -> None:
    for scheme in ("optimal", "mads"):
        with pytest.raises(PowerCutError):
            wayfare.run(small, scheme, out=tmp_path, on_round=cut_at(5))
    wayfare.run(small, "afl", out=tmp_path)
    assert [run.name for run in unfinished_runs(tmp_path)] == ["mads-seed0", "optimal-seed0"]
    assert [run.name for run in find_runs(tmp_path)] == ["afl-seed0"]
