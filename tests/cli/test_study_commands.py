from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Finished
from tests.studies.small_study import write_study
from wayfare.studies.study import load_study
from wayfare.studies.sweeping import sweep

Type = Callable[..., Finished]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study: two speeds, two schemes, two seeds."""
    folder = tmp_path_factory.mktemp("study")
    sweep(load_study(write_study(folder, rounds=20)), out=folder, jobs=1)
    return folder / "small"


def test_sweep_runs_a_study_and_the_second_time_only_shows_it(wayfare_command: Type, tmp_path: Path) -> None:
    file = write_study(tmp_path, rounds=20)
    words = ("sweep", file, "--out", tmp_path, "--jobs", 1)
    before = wayfare_command(*words, "--dry-run")
    assert "8 of 8 runs to do: no estimate of the time before the first run is finished" in " ".join(before.out.split())
    assert not (tmp_path / "small").exists()
    done = wayfare_command(*words, "--json")
    assert done.code == 0
    assert (done.json["finished"], done.json["failed"], done.json["failures"]) == (8, 0, {})
    row = done.json["rows"][1]
    assert (row["scheme"], row["point"], row["seeds"]) == ("afl", {"mobility.speed_mps": 10}, [0, 1])
    assert set(row["metrics"]["score"]) == {"mean", "sd", "ci95", "seeds"}
    assert row["difference_to_reference"]["pairs"] == 2
    assert [target["seeds"] for target in row["targets"]] == [2, 2]
    again = wayfare_command(*words)
    assert "8 of 8 runs are already finished" in again.err
    assert "0 of 8 runs to do: all are finished" in wayfare_command(*words, "--dry-run").out
    assert wayfare_command(*words, "--dry-run", "--json").json["waiting"] == []


def test_the_table_of_a_study_tells_how_sure_it_is(
    wayfare_command: Type, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = wayfare_command("show", study).out
    for words in ("speed_mps 10", "±", "sd", "difference", "sign-flip permutation test; 2 seeds give 0.5 at best"):
        assert words in shown
    assert "0 of 2" in shown
    assert "> 20" in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80


def test_points_are_called_by_their_labels(wayfare_command: Type, tmp_path: Path) -> None:
    file = write_study(tmp_path, rounds=20, seeds=1, speeds="[10]")
    with file.open("a", encoding="utf-8") as more:
        more.write('[[paired]]\nlabel = "a wide radio"\nradio = { bandwidth_hz = 1e6, range_m = 90.0 }\n')
        more.write('[[paired]]\nlabel = "a narrow radio"\nradio = { bandwidth_hz = 1e4, range_m = 110.0 }\n')
    shown = wayfare_command("sweep", file, "--out", tmp_path, "--jobs", 1).out
    assert "speed_mps 10, a narrow radio" in shown
    assert "bandwidth" not in shown
    assert wayfare_command("report", tmp_path / "small", "--out", tmp_path).code == 0
    assert "| mobility.speed_mps | point | scheme |" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "a narrow radio" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_one_seed_is_said_to_be_one(wayfare_command: Type, tmp_path: Path) -> None:
    file = write_study(tmp_path, rounds=20, seeds=1, speeds="[10]", more='metrics = ["accuracy", "loss", "fame"]')
    shown = wayfare_command("sweep", file, "--out", tmp_path, "--jobs", 1).out
    assert "numbers without ± are not a result" in shown
    assert "fame: not recorded; recorded: score, loss" in " ".join(shown.split())
    assert "95 %" not in shown


def test_a_run_that_fails_gives_exit_code_1_and_the_table_of_the_others(wayfare_command: Type, tmp_path: Path) -> None:
    file = write_study(tmp_path, rounds=20, seeds=1)
    file.write_text(file.read_text().replace("mobility.speed_mps = [10, 20]", "fleet.devices = [20000, 6]"))
    done = wayfare_command("sweep", file, "--out", tmp_path, "--jobs", 1)
    assert done.code == 1
    assert "devices 6" in done.out
    told = " ".join(done.err.split())
    assert "error: 2 of 4 runs failed: mads, devices 20000, seed 0: fleet.devices = 20000: must not exceed" in told
    assert "The other 2 are finished, in " in told
    assert "incomplete 2 runs missing (2 failed" in " ".join(wayfare_command("show", tmp_path / "small").out.split())


def test_export_writes_a_row_for_each_run_and_each_evaluation(
    wayfare_command: Type, study: Path, tmp_path: Path
) -> None:
    from pyarrow import parquet

    done = wayfare_command("export", study, "--csv", "--parquet", "--out", tmp_path, "--json")
    assert (done.code, done.json["runs"], done.json["evaluations"]) == (0, 8, 16)
    with (tmp_path / "runs.csv").open(encoding="utf-8", newline="") as file:
        runs = list(csv.DictReader(file))
    table = parquet.read_table(tmp_path / "runs.parquet").to_pylist()
    assert len(runs) == len(table) == 8
    assert [float(run["score"]) for run in runs] == [run["score"] for run in table]
    assert {(run["mobility.speed_mps"], run["scheme"], run["seed"]) for run in table} == {
        (speed, scheme, seed) for speed in (10, 20) for scheme in ("mads", "afl") for seed in (0, 1)
    }
    assert all(run["rounds_to_0.99"] is None for run in table)
    evaluations = parquet.read_table(tmp_path / "evaluations.parquet").to_pylist()
    assert {row["round"] for row in evaluations} == {0, 20}


def test_export_writes_for_tensorboard(wayfare_command: Type, study: Path, tmp_path: Path) -> None:
    assert wayfare_command("export", study, "--tensorboard", "--out", tmp_path).code == 0
    assert len(list(tmp_path.rglob("events.out.tfevents.*"))) == 8


def test_a_comparison_can_be_exported_and_reported_too(wayfare_command: Type, tmp_path: Path) -> None:
    words = ["--set", "rounds=20", "--set", "fleet.devices=4", "--schemes", "mads,afl", "--seeds", 2, "--jobs", 1]
    folder = wayfare_command("compare", "fashion-small", *words, "--out", tmp_path, "--json").json["folder"]
    assert wayfare_command("export", folder, "--csv", "--json").json["runs"] == 4
    assert wayfare_command("report", folder).code == 0


def test_report_writes_one_page_and_the_same_as_markdown(wayfare_command: Type, study: Path, tmp_path: Path) -> None:
    done = wayfare_command("report", study, "--out", tmp_path)
    assert done.code == 0
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'src="' not in page.split("<script>")[0]
    assert "| mobility.speed_mps | scheme |" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "score.png").read_bytes().startswith(b"\x89PNG")


def test_presets_are_listed_without_building_their_networks(
    wayfare_command: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wayfare.studies.store.model_of", None)
    assert "fleet-size" in wayfare_command("sweep", "--list-presets").out
    listed = wayfare_command("sweep", "--list-presets", "--json").json["presets"]
    assert {preset["name"]: preset["runs"] for preset in listed} == {
        "beyond-cifar10": 30,
        "beyond-cifar10-controls": 6,
        "beyond-cifar10-rate": 24,
        "beyond-cifar10-tuned": 6,
        "beyond-mads": 200,
        "beyond-settings": 90,
        "beyond-tuned": 40,
        "fleet-size": 60,
        "paper-bits": 100,
        "paper-open": 291,  # 324 rows: 33 runs serve two points
        "pretrained-cifar10": 360,
        "pretrained-cifar10-continued": 30,
        "pretrained-cifar10-continued-adapters": 9,
        "pretrained-cifar10-scratch": 90,
        "pretrained-cifar10-scratch-best": 90,
        "pretrained-cifar10-trained": 450,
        "pretrained-fashion": 360,
        "pretrained-fashion-continued": 30,
        "pretrained-fashion-scratch": 90,
        "pretrained-fashion-scratch-best": 90,
        "pretrained-fashion-scratch-best-rate": 12,
        "pretrained-fashion-scratch-rate": 12,
        "pretrained-fashion-trained": 450,
        "private": 33,
        "private-head": 78,
        "schemes-by-speed": 60,
        "tuned-rate": 48,
        "weight-against-energy": 30,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep"], "name a study preset or a study file"),
        (["sweep", "nowhere.toml"], "study = 'nowhere.toml': neither a preset"),
        (["sweep", "fleet-size", "--jobs", "0"], "jobs = 0: must be at least 1"),
        (["sweep", "fleet-size", "--jobs", "2", "--ray", "auto"], "--jobs = 2: cannot be combined with --ray"),
        (["sweep", "fleet-size", "--ray", "nowhere", "--dry-run"], "must be auto or HOST:PORT"),
        (["sweep", "fleet-size", "--out", "/proc/nowhere"], "/proc/nowhere/fleet-size: cannot write here"),
        (["export", "/nowhere", "--csv"], "/nowhere: no such folder"),
        (["export", "."], "choose at least one of --csv, --parquet"),
        (["report", "/nowhere"], "/nowhere: no such folder"),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    words: list[str], message: str, wayfare_command: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = wayfare_command(*words)
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_a_damaged_study_is_told(wayfare_command: Type, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"version": 1}')
    done = wayfare_command("show", tmp_path)
    assert done.code == 2
    assert "not a study, or damaged" in done.err


@pytest.mark.parametrize("option", ["--parquet", "--tensorboard"])
def test_optional_parts_that_are_missing_say_how_to_get_them(
    option: str, wayfare_command: Type, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyarrow", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    done = wayfare_command("export", study, option, "--out", tmp_path)
    assert done.code == 2
    assert "pip install 'wayfare[" in done.err
