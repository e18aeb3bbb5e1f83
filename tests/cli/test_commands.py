from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import wayfare
from tests.cli.conftest import Finished
from tests.conftest import SMALL
from tests.processes import start_command
from wayfare.cli.terminal import Line, RunProgress
from wayfare.records import find_runs, read_run
from wayfare.scenario import load

Type = Callable[..., Finished]
SETTINGS = [word for override in SMALL for word in ("--set", override)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison; tests of this file may run in different processes, so that none leaves it to another."""
    folder = tmp_path_factory.mktemp("runs")
    wayfare.compare(load("fashion-small", SMALL), ["mads", "afl"], seeds=2, jobs=1, out=folder)
    return folder


def test_compare_prints_one_json_object_with_the_promised_fields(wayfare_command: Type, tmp_path: Path) -> None:
    done = wayfare_command(
        "compare",
        "fashion-small",
        *SETTINGS,
        "--schemes",
        "mads, afl",
        "--seeds",
        2,
        "--jobs",
        1,
        "--out",
        tmp_path,
        "--json",
    )
    assert done.code == 0
    assert (done.json["study"], done.json["metric"], done.json["failures"]) == ("fashion-small", "accuracy", {})
    assert [row["scheme"] for row in done.json["rows"]] == ["mads", "afl"]
    for row in done.json["rows"]:
        assert (row["point"], row["seeds"]) == ({}, [0, 1])
        assert all(set(numbers) == {"mean", "sd", "ci95", "seeds"} for numbers in row["metrics"].values())
        assert set(row["metrics"]) >= {
            "score",
            "energy_joules",
            "budget_joules",
            "kept_fraction",
            "uploads_per_device",
            "failed_uploads_per_device",
            "staleness_rounds",
            "relayed_per_device",
            "delivered_per_device",
            "models_taken_per_device",
            "failed_relays_per_device",
        }


def test_show_prints_what_compare_left(wayfare_command: Type, folder: Path, tmp_path: Path) -> None:
    (comparison,) = folder.iterdir()
    assert len(wayfare_command("show", comparison, "--json").json["rows"]) == 2
    picture = tmp_path / "curves.png"
    done = wayfare_command("show", comparison, "--plot", picture)
    assert done.code == 0
    assert "fashion-small: 6 devices, 60 rounds" in done.out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_table_fits_a_terminal_of_eighty_columns(wayfare_command: Type, folder: Path) -> None:
    done = wayfare_command("show", folder)
    assert max(len(line.rstrip()) for line in done.out.splitlines()) <= 80
    assert "age" in done.out


def test_errors_in_metres_fit_too(wayfare_command: Type, tmp_path: Path) -> None:
    small = ("rounds=6", "fleet.devices=3", "learning.argoverse.synthetic_scenes=16", "learning.argoverse.width=8")
    settings = [word for one in small for word in ("--set", one)]
    schemes = ("--schemes", "mads,afl", "--seeds", "2")
    done = wayfare_command("compare", "argoverse-small", *schemes, *settings, "--out", tmp_path, "--no-models")
    table = [line for line in done.out.splitlines() if line.startswith(("MADS", "AFL"))]
    assert len(table) == 2
    assert not any("…" in line for line in table)
    assert "ADE" in done.out
    assert " age" in done.out


def test_run_leaves_a_folder_that_show_reads(wayfare_command: Type, tmp_path: Path) -> None:
    done = wayfare_command("run", *SETTINGS, "--scheme", "optimal", "--seed", 3, "--out", tmp_path, "--json")
    assert done.code == 0
    assert (done.json["scheme"], done.json["seed"]) == ("optimal", 3)
    assert "a single seed is not a result" in wayfare_command("show", done.json["folder"]).out


def test_progress_and_results_do_not_mix(wayfare_command: Type, tmp_path: Path) -> None:
    done = wayfare_command("run", *SETTINGS, "--out", tmp_path)
    assert "mads, seed 0: accuracy" in done.err
    assert "mads, seed 0" not in done.out


def test_relays_are_told_below_the_table(wayfare_command: Type, tmp_path: Path) -> None:
    words = [*SETTINGS, "--seeds", "1", "--jobs", "1", "--out", tmp_path, "--schemes"]
    done = wayfare_command("compare", *words, "afl,fedmobile:billed:paced")
    assert done.code == 0
    assert "relays    paced billed FedMobile, per device: " in done.out
    assert "relays    AFL" not in done.out
    told = wayfare_command("compare", *words, "fedasync:hinge,fedmobile:billed", "--json").json["rows"]
    assert [row["scheme"] for row in told] == ["fedasync:hinge", "fedmobile:billed"]
    failed = [row["metrics"]["failed_relays_per_device"]["mean"] for row in told]
    assert failed[0] == 0 < failed[1]


def test_relays_need_devices_that_meet(wayfare_command: Type, tmp_path: Path) -> None:
    words = ["run", "--set", "mobility.model=exponential", "--scheme", "fedmobile", "--out", tmp_path]
    done = wayfare_command(*words)
    assert done.code == 2
    assert "mobility.model = 'exponential': has no contacts between devices" in done.err
    assert not list(tmp_path.rglob("*.sqlite"))


def test_lists(wayfare_command: Type) -> None:
    assert "MADS: power by drift plus penalty" in wayfare_command("schemes").out
    told = {scheme["name"]: scheme["choices"] for scheme in wayfare_command("schemes", "--json").json["schemes"]}
    assert told["mads"] == []
    assert told["afl"] == [["fitting"], ["greedy", "paced", "unlimited"]]
    assert "afl, fedasync, fedmobile: :fitting skips uploads" in " ".join(wayfare_command("schemes").out.split())
    parts = {part["name"]: part["kind"] for part in wayfare_command("schemes", "--parts", "--json").json["parts"]}
    assert (parts["buffer"], parts["random-k"], parts["sgd"]) == ("server", "compressor", "local")
    assert "momentum-correction" in wayfare_command("schemes", "--parts").out
    assert "paper-cifar10-waypoint" in wayfare_command("presets").out
    assert "fashion-small" in {preset["name"] for preset in wayfare_command("presets", "--json").json["presets"]}


def test_a_preset_is_printed_as_a_file_to_start_from(wayfare_command: Type, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(wayfare_command("presets", "fashion-small").out)
    assert load(file) == load("fashion-small")
    assert wayfare_command("presets", "fashion-small", "--json").json["rounds"] == load("fashion-small").rounds
    done = wayfare_command("presets", "nosuch")
    assert (done.code, "preset = 'nosuch': must be one of" in done.err) == (2, True)


def test_a_narrow_window_costs_no_digits(wayfare_command: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    done = wayfare_command("plan", "fashion-small", "--set", "rounds=100")
    assert done.code == 0
    assert "…" not in done.out


def test_a_long_run_says_how_far_it_is_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wayfare.cli.terminal._SILENCE_S", 0.05)
    with RunProgress() as progress:
        progress.begin([Line("mads, seed 0", rounds=4000)])
        progress.advance(0, 1000)
        time.sleep(0.06)
        progress.advance(0, 2000)
        progress.advance(0, 2001)
    told = capsys.readouterr().err
    assert "mads, seed 0: round 2,000 of 4,000" in told
    assert "1,000" not in told
    assert "2,001" not in told


@pytest.mark.parametrize("command", ["compare", "run", "resume", "show", "schemes", "presets", "contacts"])
def test_every_command_has_help_with_an_example(command: str, wayfare_command: Type) -> None:
    done = wayfare_command(command, "--help")
    assert done.code == 0
    assert "wayfare " + command in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "--set", "radio.bandwith_hz=1"], "radio.bandwith_hz = 1: unknown key"),
        (
            ["compare", "--set", "radio.bandwidth_hz=wide"],
            "radio.bandwidth_hz = 'wide': input should be a valid number",
        ),
        (["compare", "--set", "radio.bandwidth_hz=-5"], "radio.bandwidth_hz = -5: input should be greater than 0"),
        (["compare", "--set", "fleet.devices=0"], "fleet.devices = 0: input should be greater than or equal to 1"),
        (["compare", "--set", "mobility.speed_mps=0"], "mobility.speed_mps = 0: input should be greater than 0"),
        (
            ["compare", "--set", "fleet.devices=20000", "--jobs", "1"],
            "fleet.devices = 20000: must not exceed the 10000",
        ),
        (["compare", "no-such-preset"], "scenario = 'no-such-preset': neither a preset"),
        (["compare", "--schemes", "mads,gossip"], "schemes = 'gossip': unknown"),
        (["compare", "--schemes", ","], "must name at least one scheme"),
        (["compare", "--seeds", "0"], "seeds = 0: must be at least 1"),
        (["compare", "--jobs", "-1"], "jobs = -1: must be at least 1"),
        (["compare", "paper-cifar10-waypoint", "--jobs", "1"], "fetch it with `wayfare data fetch cifar10`"),
        (["compare", "--seeds", "many"], "--seeds = 'many': must be an integer"),
        (["run", "--engine", "steam"], "--engine = 'steam': must be one of auto"),
        (["run", "--device", "abacus"], "--device = 'abacus': must be auto, cpu, cuda or cuda:NUMBER"),
        (["run", "--precision", "fp8"], "--precision = 'fp8': must be one of fp32, tf32, bf16"),
        (["run", "--precision", "tf32", "--device", "cpu"], "needs a CUDA device"),
        (["compare", "--device-state", "tape"], "--device-state = 'tape': must be one of memory, disk"),
        (["run", "--seed", "-1"], "seed = -1: must be at least 0"),
        (["run", "--out", "/proc/nowhere"], "cannot write here"),
        (["show", "/nowhere"], "/nowhere: no such folder"),
        (["resume", "/nowhere"], "/nowhere: no such run or folder of runs"),
        (["resume", "."], "contains no unfinished run"),
        (["run", "--checkpoint-every-s", "0"], "--checkpoint-every-s = 0.0: must be above 0"),
        (["show", "."], "neither a run nor a folder of runs"),
        (["compare", "--set", "name=a:x:b"], "name = 'a:x:b': string should match pattern"),
        (["run", "--set", "rounds"], "--set = 'rounds': must be written as section.field=value"),
        (["run", "--engine", "cuda_graphs", "--device", "cpu"], "needs a CUDA device; set --device cuda"),
        (["run", "--engine", "batched"], "'batched': does not work here: the network of fashion-small is not"),
        (["contacts", "sumo", "--grid", "1"], "--grid = 1: must be 2 to 200 a side"),
        (["frobnicate"], "No such command 'frobnicate'"),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    words: list[str], message: str, wayfare_command: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path))
    done = wayfare_command(*words)
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err
    assert done.out == ""


def test_a_gpu_that_is_not_there_is_told(wayfare_command: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = wayfare_command("run", "--device", "cuda")
    assert done.code == 2
    assert "PyTorch finds no CUDA device here" in done.err


def test_runs_of_two_scenarios_are_not_thrown_together(wayfare_command: Type, tmp_path: Path) -> None:
    for rounds in (20, 40):
        assert wayfare_command("run", *SETTINGS, "--set", f"rounds={rounds}", "--out", tmp_path).code == 0
    done = wayfare_command("show", tmp_path)
    assert done.code == 2
    assert "has runs of 2 scenarios" in done.err


def test_bad_input_in_a_worker_is_told_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYFARE_DATA", str(tmp_path / "no data"))
    done = start_command("compare", "paper-cifar10-waypoint", "--out", tmp_path, "--json", logs=tmp_path / "logs")
    assert done.ended() == 2
    assert done.errors.count("error: ") == 1
    assert "Traceback" not in done.errors


def test_the_version_is_told(wayfare_command: Type) -> None:
    assert wayfare_command("--version").out.strip() == "0.1.0"


@pytest.mark.parametrize("words", [["run"], ["compare", "--schemes", "mads,afl", "--seeds", "1", "--jobs", "1"]])
def test_records_may_do_without_models(wayfare_command: Type, words: list[str], tmp_path: Path) -> None:
    command, *options = words
    done = wayfare_command(command, "fashion-small", *SETTINGS, *options, "--no-models", "--out", tmp_path)
    assert done.code == 0
    assert {read_run(folder).model for folder in find_runs(tmp_path)} == {None}


def test_run_compare_sweep_and_paper_have_one_set_of_execution_options(
    wayfare_command: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    panels = [
        wayfare_command(command, "--help").out.partition(" Execution ")[2]
        for command in ("run", "compare", "sweep", "paper")
    ]
    assert len(set(panels)) == 1
    for option in ("engine", "device", "precision", "fast", "no-models", "device-state", "fresh", "paranoid"):
        assert f"--{option} " in panels[0]
    resumed = wayfare_command("resume", "--help").out
    assert "--paranoid" in resumed
    assert "--engine" not in resumed


def test_compare_takes_finished_runs_and_says_so(wayfare_command: Type, tmp_path: Path) -> None:
    words = ["compare", *SETTINGS, "--schemes", "afl", "--seeds", "1", "--jobs", "1", "--out", tmp_path]
    first = wayfare_command(*words)
    assert "seed 0: accuracy" in first.err
    again = wayfare_command(*words)
    assert "1 of 1 runs are already finished" in again.err
    assert again.out == first.out
    assert "seed 0: accuracy" in wayfare_command(*words, "--fresh").err
