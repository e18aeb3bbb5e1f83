"""A scheme that does not use the varied field runs once and counts at every point."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from tests.studies.power_cuts import EVERY_TEN, PowerCutError, cut_at
from tests.studies.small_study import SETTINGS, bits_of
from tests.studies.test_sweep import Watch
from typer.testing import CliRunner

import wayfare
from wayfare.cli.app import app
from wayfare.records import read_run
from wayfare.report.page import page_html, read_material
from wayfare.report.study_json import results_json
from wayfare.report.study_tables import plain_table, study_table
from wayfare.studies.export import run_rows, write_csv
from wayfare.studies.results import StudyResults, read_results
from wayfare.studies.single import carry_out
from wayfare.studies.study import Plan, load_study
from wayfare.studies.sweeping import outlook, sweep


def write_study(folder: Path, *, grid: str, seeds: int = 2, rounds: int = 40, schemes: str = '"mads", "afl"') -> Path:
    file = folder / "weights.toml"
    settings = f"[set]\nrounds = {rounds}\n{SETTINGS}\n"
    file.write_text(f"schemes = [{schemes}]\nseeds = {seeds}\n{settings}[grid]\n{grid}\n", encoding="utf-8")
    return file


WEIGHTS = "control.weight = [1e-4, 3e-4, 1e-3]"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Watch]:
    folder, watch = tmp_path_factory.mktemp("weights"), Watch()
    plan = load_study(write_study(folder, grid=WEIGHTS))
    sweep(plan, out=folder, jobs=1, progress=watch)
    return folder, watch


def results_in(swept: tuple[Path, Watch]) -> StudyResults:
    return read_results(swept[0] / "weights")


def test_three_weights_with_mads_and_afl_take_three_runs_and_one_per_seed(swept: tuple[Path, Watch]) -> None:
    folder, watch = swept
    assert sorted(watch.started) == [
        "afl, seed 0 (3 points)",
        "afl, seed 1 (3 points)",
        *(f"mads, weight {weight}, seed {seed}" for weight in ("0.0001", "0.0003", "0.001") for seed in (0, 1)),
    ]
    assert len(list((folder / "weights" / "runs").iterdir())) == 8


def test_a_shared_run_counts_at_every_point_and_is_marked(swept: tuple[Path, Watch]) -> None:
    results = results_in(swept)
    assert [(row.point, row.scheme, row.shared) for row in results.rows] == [
        (point, scheme, scheme == "afl") for point in range(3) for scheme in ("mads", "afl")
    ]
    afl = [[result.summary.score for result in row.results] for row in results.rows if row.scheme == "afl"]
    assert afl[0] == afl[1] == afl[2]
    assert (results.finished, results.missing, len(results.runs)) == (8, 0, 8)
    console = Console(width=100)
    with console.capture() as capture:
        console.print(study_table(results, width=100))
    text = capture.get()
    assert [word in text for word in ("8 of 8 runs", "=           ran once")] == [True, True]
    assert text.count(" 2= ") == 3
    assert [row[1:3] for row in plain_table(results)[1:]] == [["MADS", "2"], ["AFL", "2="]] * 3
    found = results_json(results)
    assert (found["runs"], found["finished"]) == (8, 8)
    assert [row["shared"] for row in found["rows"]] == [False, True] * 3


def test_rows_of_a_shared_run_have_one_key_in_csv_and_a_mark(swept: tuple[Path, Watch], tmp_path: Path) -> None:
    write_csv(run_rows(results_in(swept)), tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    for seed in ("0", "1"):
        afl = [row for row in rows if row["scheme"] == "afl" and row["seed"] == seed]
        assert [row["control.weight"] for row in afl] == ["0.0001", "0.0003", "0.001"]
        assert len({row["key"] for row in afl}) == 1
    assert {(row["scheme"], row["shared"]) for row in rows} == {("mads", "False"), ("afl", "True")}


def test_the_page_adds_up_the_time_of_a_shared_run_once(swept: tuple[Path, Watch]) -> None:
    material = read_material(swept[0] / "weights")
    assert len(material.walls_s) == 8
    assert "8 runs" in page_html(material)


def test_dry_run_and_resumption_count_runs_not_rows(swept: tuple[Path, Watch], tmp_path: Path) -> None:
    folder = shutil.copytree(swept[0], tmp_path / "copy")
    words = ["sweep", str(folder / "weights.toml"), "--out", str(folder), "--dry-run"]
    told = CliRunner().invoke(app, words).output
    assert "0 of 8 runs to do" in told
    assert "earlier point" in told
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert (found["finished"], found["waiting"]) == (8, [])
    longer, watch = load_study(write_study(folder, grid="control.weight = [3e-3, 1e-4]")), Watch()
    seen = outlook(longer, out=folder)
    assert (len(seen.finished), len(seen.waiting)) == (4, 2)
    done = sweep(longer, out=folder, jobs=1, progress=watch)
    assert (watch.before, len(watch.started)) == (4, 2)
    # The records of AFL are those of another weight, and its rows have the weight of their point.
    afl = [result for result in done.results.results if result.run.scheme == "afl"]
    assert [done.results.manifest.points[one.run.point]["control.weight"] for one in afl] == [3e-3, 3e-3, 1e-4, 1e-4]


def test_an_interrupted_shared_run_resumes_at_another_point(tmp_path: Path) -> None:
    def plan(weights: str) -> Plan:
        return load_study(write_study(tmp_path, grid=f"control.weight = {weights}", seeds=1, schemes='"afl"'))

    first = plan("[1e-4, 1e-3]")
    (run,) = outlook(first, out=tmp_path).waiting
    scenario = first.points[0].scenario
    work, afl = tmp_path / "weights" / "work" / run.folder_name, first.scheme_at(first.points[0], "afl")
    with pytest.raises(PowerCutError):
        carry_out(work, scenario, afl, 0, execution=EVERY_TEN, on_round=cut_at(35))
    done = sweep(plan("[5e-3]"), out=tmp_path, jobs=1)
    done.raise_failures()
    (result,) = done.results.results
    assert [session["after_round"] for session in read_run(result.folder).meta["sessions"]] == [0, 30]
    whole = wayfare.run(scenario, "afl", seed=0, out=tmp_path / "whole")
    assert bits_of(result.folder) == bits_of(whole.folder)


def test_a_run_is_shared_only_between_points_that_differ_in_what_it_does_not_use(tmp_path: Path) -> None:
    grid = f"{WEIGHTS}\nmobility.speed_mps = [10.0, 20.0]"
    seen = outlook(load_study(write_study(tmp_path, grid=grid, seeds=1)), out=tmp_path)
    names = [seen.manifest.run_name(run) for run in seen.waiting]
    assert len(names) == 8
    assert names[1] == "afl, speed_mps 10, seed 0 (3 points)"
