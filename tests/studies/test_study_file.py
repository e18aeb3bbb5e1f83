from __future__ import annotations

import re
from pathlib import Path

import pytest

from wayfare.errors import InputError, ScenarioError
from wayfare.scenario import load
from wayfare.studies.keys import run_key
from wayfare.studies.single import Execution
from wayfare.studies.source import study_presets
from wayfare.studies.store import manifest_of
from wayfare.studies.study import load_study

EXAMPLES = Path(__file__).parents[2] / "examples" / "studies"


def study(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "study.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_grid_gives_every_combination_and_pairs_stay_together(tmp_path: Path) -> None:
    plan = load_study(
        study(
            tmp_path,
            """
            schemes = ["mads", "afl"]
            seeds = [3, 5]
            targets = ["60 %", 0.7]
            [set]
            rounds = 50
            [grid]
            mobility.speed_mps = [5, 10]
            "radio.bandwidth_hz" = [1e4, 2e4]
            [[paired]]
            fleet = { devices = 5, energy_total_joules = 100 }
            [[paired]]
            fleet.devices = 10
            fleet.energy_total_joules = 200
            """,
        )
    )
    assert plan.study.name == "study"
    assert plan.axes == ["mobility.speed_mps", "radio.bandwidth_hz", "fleet.devices", "fleet.energy_total_joules"]
    assert len(plan.points) == 8
    assert {(p.scenario.fleet.devices, p.scenario.fleet.energy_total_joules) for p in plan.points} == {
        (5, 100.0),
        (10, 200.0),
    }
    assert all(point.scenario.rounds == 50 for point in plan.points)
    assert (plan.schemes, plan.seeds, plan.study.targets) == (["mads", "afl"], [3, 5], (0.6, 0.7))


def test_kinds_can_vary_and_files_lie_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('extends = "fashion-small"\nrounds = 7\n')
    plan = load_study(
        study(
            tmp_path,
            """
            scenario = "base.toml"
            [grid]
            mobility = [{ model = "walk" }, { model = "trace", file = "log.csv" }]
            """,
        )
    )
    assert [point.scenario.mobility.model for point in plan.points] == ["walk", "trace"]
    assert [point.scenario.rounds for point in plan.points] == [7, 7]
    assert getattr(plan.points[1].scenario.mobility, "file", None) == str(tmp_path / "log.csv")


LABELLED = """
schemes = ["mads"]
[grid]
mobility.speed_mps = [5.0, 10.0]
[[paired]]
label = "few"
fleet = { devices = 3, energy_total_joules = 30.0 }
[[paired]]
label = "many"
fleet = { devices = 6, energy_total_joules = 60.0 }
"""


def test_paired_values_may_have_a_name(tmp_path: Path) -> None:
    manifest = manifest_of(load_study(study(tmp_path, LABELLED)), Execution())
    assert manifest.varies == ["mobility.speed_mps", "point"]
    assert [manifest.point_name(point) for point in (0, 3)] == ["speed_mps 5, few", "speed_mps 10, many"]
    assert manifest.place_of(1) == {"mobility.speed_mps": 5.0, "point": "many"}
    assert manifest.points[1]["fleet.devices"] == 6, "exports have every field"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('label = "many"', "", "paired.1.label = '': must be a string; either all"),
        ('label = "many"', "label = 7", "paired.1.label = 7: must be a string"),
        ('label = "many"', 'label = "few"', "paired.label = 'few': must not be listed twice"),
    ],
)
def test_labels_that_say_nothing_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(message)):
        load_study(study(tmp_path, LABELLED.replace(old, new)))


def test_presets_load_and_say_what_they_ask() -> None:
    assert study_presets() == [
        "beyond-cifar10",
        "beyond-cifar10-controls",
        "beyond-cifar10-rate",
        "beyond-cifar10-tuned",
        "beyond-mads",
        "beyond-settings",
        "beyond-tuned",
        "fleet-size",
        "paper-bits",
        "paper-open",
        "pretrained-cifar10",
        "pretrained-cifar10-continued",
        "pretrained-cifar10-continued-adapters",
        "pretrained-cifar10-scratch",
        "pretrained-cifar10-scratch-best",
        "pretrained-cifar10-trained",
        "pretrained-fashion",
        "pretrained-fashion-continued",
        "pretrained-fashion-scratch",
        "pretrained-fashion-scratch-best",
        "pretrained-fashion-scratch-best-rate",
        "pretrained-fashion-scratch-rate",
        "pretrained-fashion-trained",
        "private",
        "private-head",
        "schemes-by-speed",
        "tuned-rate",
        "weight-against-energy",
    ]
    for name in study_presets():
        plan = load_study(name)
        assert plan.study.name == name
        assert plan.study.title.endswith("?")
        assert plan.axes


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_example_studies_load(file: Path) -> None:
    assert len(load_study(file).points) >= 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grid = 3", "grid = 3: input should be"),
        ("[grid]\nmobility.speed_mps = 5", "grid.mobility.speed_mps = 5: must be a list with at least one value"),
        ("[grid]\nmobility.speed_mps = []", "must be a list with at least one value"),
        ("[grid]\nmobility.speed_mps = [5, 5]", "must not be listed twice"),
        ("[grid]\nmobility.speed_mps = [5, 5.0]", "gives the same scenario"),
        ("[grid]\nmobility.sped_mps = [5]", "mobility.sped_mps = 5: unknown key"),
        ("[grid]\nmobility.speed_mps = [-5]", "mobility.speed_mps = -5: input should be greater than 0"),
        ('[grid]\nschemes = [["mads"]]', "set the schemes with `schemes`"),
        ('schemes = ["gossip"]', "schemes = 'gossip': unknown"),
        ('schemes = ["mads", "mads"]', "must not be listed twice"),
        ("schemes = []", "must name at least one scheme"),
        ("seeds = 0", "seeds"),
        ("seeds = [1, 1]", "must not repeat"),
        ("sedes = 3", "sedes = 3: unknown key; known keys: name"),
        ('targets = ["soon"]', "targets"),
        ("targets = [60]", 'targets = 60.0: must be an accuracy above 0 and at most 1, or in per cent: "60 %"'),
        ('scenario = "nowhere.toml"', "neither a preset"),
        ('metrics = ["score", "score"]', "must not repeat"),
        ("[[paired]]\nrounds = 5\n[[paired]]\nround_s = 5", "must set the same fields as the first: rounds"),
        ("[grid]\nrounds = [5]\n[[paired]]\nrounds = 6", "is already in the grid"),
        ("[set]\nradio.bandwith_hz = 5", "radio.bandwith_hz = 5: unknown key"),
        ("this is no toml", "not a TOML file"),
        ("seeds = 1979-05-27", "seeds"),
    ],
)
def test_studies_that_make_no_sense_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as told:
        load_study(study(tmp_path, text))
    assert message in str(told.value)


def test_a_study_that_is_nowhere_is_refused_with_the_presets() -> None:
    with pytest.raises(
        ScenarioError,
        match=r"study = 'nowhere': neither a preset \(beyond-cifar10, .*\) nor a readable file",
    ):
        load_study("nowhere")


def test_the_key_of_a_run_is_all_that_its_numbers_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_study("weight-against-energy")
    point, other = plan.points[:2]
    scheme, default = plan.scheme_at(point, "mads"), Execution()
    key = run_key(point.scenario, scheme, 0, default)
    assert key == run_key(point.scenario.model_copy(update={"name": "else", "schemes": ("afl",)}), scheme, 0, default)
    assert key == run_key(point.scenario, scheme, 0, Execution(engine="reference"))
    # The weight is a value of the scheme, and counts once.
    weighed = plan.scheme_at(other, "mads")
    assert run_key(point.scenario, weighed, 0, default) == run_key(other.scenario, weighed, 0, default)
    different = {
        run_key(other.scenario, weighed, 0, default),
        run_key(point.scenario.model_copy(update={"rounds": 7}), scheme, 0, default),
        run_key(point.scenario, plan.scheme_at(point, "afl"), 0, default),
        run_key(point.scenario, plan.scheme_at(point, "afl:paced"), 0, default),
        run_key(point.scenario, scheme, 1, default),
        run_key(point.scenario, scheme, 0, Execution(precision="bf16")),
    }
    monkeypatch.setattr("wayfare.studies.keys.ALGORITHM", 99)
    different.add(run_key(point.scenario, scheme, 0, default))
    assert len(different | {key}) == 8


def test_a_trace_counts_by_its_content_and_not_by_its_place(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for file, text in zip(files, ("same", "same", "other"), strict=True):
        file.write_text(text)
    scenarios = [load("fashion-small", ["mobility.model=trace", f"mobility.file={file}"]) for file in files]
    scheme = load_study("weight-against-energy").scheme_at(load_study("weight-against-energy").points[0], "afl")
    one, same, other = (run_key(scenario, scheme, 0, Execution()) for scenario in scenarios)
    assert one == same != other


def test_a_folder_of_logs_is_a_trace_with_content_too(tmp_path: Path) -> None:
    scheme = load_study("weight-against-energy").scheme_at(load_study("weight-against-energy").points[0], "afl")
    keys = []
    for name, text in (("a", "same"), ("b", "same"), ("c", "other")):
        (tmp_path / name / "log").mkdir(parents=True)
        (tmp_path / name / "log" / "1.gpx").write_text(text)
        scenario = load("fashion-small", ["mobility.model=trace", f"mobility.file={tmp_path / name}"])
        keys.append(run_key(scenario, scheme, 0, Execution()))
    assert keys[0] == keys[1] != keys[2]


def test_sequences_count_by_what_there_is_and_not_by_their_place(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d")
    for name in names:
        for split in ("train", "val"):
            (tmp_path / name / split / "data").mkdir(parents=True)
            (tmp_path / name / split / "data" / "1.csv").write_text("same size")
    (tmp_path / "c" / "train" / "data" / "2.csv").write_text("one more")
    (tmp_path / "d" / "scenes.npz").write_bytes(b"prepared")
    (tmp_path / "alone.npz").write_bytes(b"prepared")
    scheme = load_study("weight-against-energy").scheme_at(load_study("weight-against-energy").points[0], "afl")

    def key(place: Path) -> str:
        settings = [f"learning.argoverse.folder={place}", "learning.argoverse.map=none"]
        return run_key(load("argoverse-small", settings), scheme, 0, Execution())

    one, same, more, prepared = (key(tmp_path / name) for name in names)
    assert one == same
    assert len({one, more, prepared, key(tmp_path / "nowhere")}) == 4
    assert prepared == key(tmp_path / "alone.npz")
    (tmp_path / "alone.npz").write_bytes(b"prepared anew")
    assert prepared != key(tmp_path / "alone.npz")
