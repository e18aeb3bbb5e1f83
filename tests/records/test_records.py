from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import wayfare
from wayfare.errors import RunFolderError
from wayfare.records import RunRecord, find_runs, read_run, summarise_run, summarise_scheme
from wayfare.records.statistics import half_width_95
from wayfare.scenario import Scenario
from wayfare.world import draw_world


@pytest.fixture(scope="module")
def record(small: Scenario, tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return wayfare.run(small, "afl-spar:paced", seed=4, out=tmp_path_factory.mktemp("runs"))


def test_a_run_is_one_file_that_tells_everything(record: RunRecord, small: Scenario) -> None:
    assert [file.name for file in record.folder.iterdir()] == ["run.sqlite"]
    assert record.folder.name == "afl-spar-paced-seed4"
    world = draw_world(small, 4)
    assert record.scenario == small
    assert (record.scheme, record.energy_rule, record.seed) == ("afl-spar:paced", "paced", 4)
    assert np.array_equal(record.budgets_joules, world.budgets_joules)
    assert np.array_equal(record.contacts["contact_s"], world.meets.contact_s)
    assert np.array_equal(record.contacts["gain_per_watt"], world.gains_per_watt)
    assert record.class_counts.sum(axis=1).tolist() == [len(held) for held in world.held]
    assert record.model.shape == world.initial_model.shape
    assert record.evaluations["round"].tolist() == [0, 20, 40, 60]
    assert record.evaluations["energy_joules"][-1] == pytest.approx(record.contacts["energy_joules"].sum())
    assert record.evaluations["bits"][-1] == pytest.approx(record.contacts["bits"].sum())


def test_a_second_run_replaces_the_first_with_the_same_bits(small: Scenario, tmp_path: Path) -> None:
    first, second = (wayfare.run(small, "mads", out=tmp_path) for _ in range(2))
    assert first.folder == second.folder
    assert torch.equal(first.model, second.model)
    assert [folder.name for folder in first.folder.parent.iterdir()] == ["mads-seed0"]


def test_a_run_that_breaks_off_leaves_nothing_that_passes_for_whole(small: Scenario, tmp_path: Path) -> None:
    def stop(round_: int) -> None:
        if round_ == 30:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        wayfare.run(small, "mads", out=tmp_path, on_round=stop)
    with pytest.raises(RunFolderError, match=r"contains no finished run; resume with `wayfare\.resume"):
        find_runs(tmp_path)
    (partial,) = tmp_path.rglob("*.partial")
    with pytest.raises(RunFolderError, match="did not finish"):
        read_run(partial)


def test_the_summary_of_a_run_counts_what_its_records_hold(record: RunRecord) -> None:
    summary = summarise_run(record)
    assert summary.score == pytest.approx(record.evaluations["score"][1:].mean())
    assert summary.kept_fraction == pytest.approx((record.contacts["entries"] / record.parameters).mean())
    assert summary.uploads_per_device == (record.contacts["entries"] > 0).sum() / 6
    assert summary.failed_uploads_per_device == 0
    assert summary.budget_joules == pytest.approx(9)


def test_seeds_are_summed_up_with_an_honest_interval(record: RunRecord) -> None:
    runs = [replace(summarise_run(record), score=score) for score in (0.5, 0.6, 0.7)]
    assert summarise_scheme(runs).score_mean == pytest.approx(0.6)
    assert summarise_scheme(runs).score_ci95 == pytest.approx(4.3026527 * 0.1 / 3**0.5)
    assert summarise_scheme(runs[:1]).score_ci95 is None
    assert half_width_95([0.0, 1.0] * 50) == pytest.approx(1.984 * 0.5025 / 10, rel=1e-3)


def test_folders_that_are_no_runs_are_refused(tmp_path: Path, record: RunRecord) -> None:
    with pytest.raises(RunFolderError, match="no such folder"):
        find_runs(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match=r"neither a run nor a folder of runs \(no run.sqlite in it\)"):
        find_runs(tmp_path)
    with pytest.raises(RunFolderError, match="not a run"):
        read_run(tmp_path)
    for content in (b"", b"not a database at all", (record.folder / "run.sqlite").read_bytes()[:5000]):
        (tmp_path / "run.sqlite").write_bytes(content)
        with pytest.raises(RunFolderError, match="damaged, or not the records of a run"):
            read_run(tmp_path)


def test_records_of_another_version_are_refused(tmp_path: Path, record: RunRecord) -> None:
    (tmp_path / "run.sqlite").write_bytes((record.folder / "run.sqlite").read_bytes())
    database = sqlite3.connect(tmp_path / "run.sqlite")
    with database:
        database.execute("UPDATE meta SET value = '99' WHERE key = 'version'")
    database.close()
    with pytest.raises(RunFolderError, match="has records of version 99; this Wayfare reads 3"):
        read_run(tmp_path)


def test_relays_are_recorded_counted_and_sealed(small: Scenario, tmp_path: Path) -> None:
    chosen = small.model_copy(update={"radio": small.radio.model_copy(update={"bandwidth_hz": 4e3})})
    record = wayfare.run(chosen, "fedmobile:billed:unlimited", out=tmp_path)
    summary = summarise_run(record)
    counts = {kind: sum(e.completed and e.kind == kind for e in record.relays) / 6 for kind in KINDS}
    assert (summary.relayed_per_device, summary.delivered_per_device, summary.models_taken_per_device) == tuple(
        counts[kind] for kind in KINDS
    )
    assert all(counts.values())
    assert summary.failed_relays_per_device == sum(not relay.completed for relay in record.relays) / 6 > 0
    energy_joules = record.contacts["energy_joules"].sum() + sum(relay.energy_joules for relay in record.relays)
    assert summary.energy_joules == pytest.approx(energy_joules)
    assert record.evaluations["energy_joules"][-1] == pytest.approx(energy_joules)
    assert [relay.round for relay in record.relays] == sorted(relay.round for relay in record.relays)
    assert "meetings of devices" in record.meta["world"]
    assert read_run(record.folder).relays == record.relays
    database = sqlite3.connect(record.folder / "run.sqlite")
    with database:
        database.execute("UPDATE relays SET bits = bits + 1 WHERE number = 3")
    database.close()
    with pytest.raises(RunFolderError, match="its checksum is wrong"):
        read_run(record.folder)


KINDS = ("upload", "delivery", "download")


def test_records_without_the_model_have_its_hash(small: Scenario, tmp_path: Path) -> None:
    kept = wayfare.run(small, "mads", out=tmp_path / "kept")
    without = wayfare.run(small, "mads", out=tmp_path / "without", execution=wayfare.Execution(keep_model=False))
    assert kept.model is not None
    assert without.model is None
    assert without.meta["model_sha256"] == kept.meta["model_sha256"]
    assert without.meta["model_sha256"] == hashlib.sha256(kept.model.numpy().astype("<f4").tobytes()).hexdigest()
    assert (without.evaluations["score"] == kept.evaluations["score"]).all()
    assert (without.folder / "run.sqlite").stat().st_size < (kept.folder / "run.sqlite").stat().st_size


def test_the_score_of_a_short_run_leaves_the_initial_model_out(record: RunRecord) -> None:
    assert record.scenario.learning.final_evaluations == 5
    scores = record.evaluations["score"]
    assert len(scores) == 4
    assert summarise_run(record).score == pytest.approx(scores[1:].mean())
