from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.report.conftest import HOSTILE

import wayfare
from wayfare.records import RunRecord, find_runs, read_run, summarise_run
from wayfare.report.digest import RunDigest, detail_of, digest_run, group_json, numbers, thinned
from wayfare.report.page import page_json, read_material
from wayfare.report.palette import look_of, mark_of
from wayfare.report.repeat import recipe_of
from wayfare.report.tables import comparison_table
from wayfare.report.terminal_curves import terminal_curves
from wayfare.report.write import write_report
from wayfare.scenario import Scenario, load
from wayfare.studies import summarise
from wayfare.studies.results import read_results, results_of
from wayfare.studies.single import Execution
from wayfare.studies.store import manifest_of
from wayfare.studies.study import load_study


def test_names_cannot_leave_their_place_in_the_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert HOSTILE not in text
    assert "&lt;script&gt;window.hacked" in text
    data = text.split('id="data">')[1].split("</script>")[0]
    assert "<" not in data
    assert HOSTILE in json.loads(data)["looks"]
    assert "Content-Security-Policy" in text


@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_figures_fit_one_column(kind: str, comparison: Path, tmp_path: Path) -> None:
    written = write_report(comparison, tmp_path, figures=kind)  # type: ignore[arg-type]
    figures = [file for file in written if file.suffix == f".{kind}"]
    assert {file.stem for file in figures} >= {"accuracy-rounds", "accuracy-energy", "energy-devices", "staleness"}
    assert all(file.stat().st_size > 1000 for file in figures)
    assert all(f"({file.name})" in (tmp_path / "report.md").read_text() for file in figures)
    if kind == "svg":
        curves = (tmp_path / "accuracy-rounds.svg").read_text()
        assert 'width="252pt"' in curves  # 3.5 inches
        assert "&lt;script&gt;" in curves
        assert "#0072b2" in curves.lower()


def test_markdown_shows_names_as_text(comparison: Path, tmp_path: Path) -> None:
    write_report(comparison, tmp_path)
    assert "&lt;script>" in (tmp_path / "report.md").read_text()


def test_the_recipe_of_a_comparison_makes_the_same_scenario(comparison: Path, tmp_path: Path) -> None:
    material = read_material(comparison)
    recipe = recipe_of(material.results, material.world[0].meta)
    (tmp_path / "scenario.toml").write_text(recipe.files["scenario.toml"])
    assert load(str(tmp_path / "scenario.toml")) == material.world[0].scenario
    assert recipe.commands == [f"wayfare compare scenario.toml --schemes 'mads,afl,{HOSTILE}' --seeds 2"]
    assert HOSTILE in recipe.notes[0]


def test_the_recipe_of_a_run_names_scheme_and_seed(comparison: Path) -> None:
    (run,) = comparison.glob("runs/afl-seed1-*")
    material = read_material(run)
    recipe = recipe_of(material.results, {"execution": {"precision": "tf32", "fast": True}})
    assert recipe.commands == ["wayfare run scenario.toml --scheme afl --seed 1 --precision tf32 --fast"]


def test_the_recipe_of_a_study_asks_for_the_same_runs(study: Path, tmp_path: Path) -> None:
    results = read_results(study)
    recipe = recipe_of(results, {})
    for name, content in recipe.files.items():
        (tmp_path / name).write_text(content)
    assert recipe.commands == ["wayfare sweep small.toml"]
    again = manifest_of(load_study(tmp_path / "small.toml"), Execution())
    assert [run.key for run in again.runs] == [run.key for run in results.manifest.runs]
    assert (again.targets, again.metrics) == (results.manifest.targets, results.manifest.metrics)


def test_a_study_over_kinds_is_asked_for_in_full(tmp_path: Path) -> None:
    grid = "learning.partition = [{ kind = 'iid' }, { kind = 'shards', shards_per_device = 3 }, { kind = 'dirichlet' }]"
    file = tmp_path / "kinds.toml"
    settings = "rounds = 5\nlearning.partition = { kind = 'dirichlet', concentration = 7.0 }"
    file.write_text(f"schemes = ['mads']\nseeds = 1\n[set]\n{settings}\n[grid]\n{grid}\n")
    plan = load_study(file)
    results = results_of(tmp_path, manifest_of(plan, Execution()), [], 0)
    (tmp_path / "study.json").write_text("{}")
    recipe = recipe_of(results, {})
    assert len(recipe.commands) == len(recipe.files) == 3
    for (name, content), point in zip(recipe.files.items(), plan.points, strict=True):
        (tmp_path / name).write_text(content)
        assert load(str(tmp_path / name)) == point.scenario


def test_the_page_of_a_study_has_every_point_and_measure(study: Path) -> None:
    content = page_json(read_material(study))
    assert [point["name"] for point in content["points"]] == ["speed_mps 10", "speed_mps 20"]
    assert content["study"]["axis"] == "speed (m/s)"
    assert {row["x"] for row in content["study"]["rows"]} == {10, 20}
    assert content["study"]["metrics"] == ["score", "energy_joules", "kept_fraction"]
    json.dumps(content, allow_nan=False)


def test_digests_are_what_the_records_say(comparison: Path) -> None:
    records = [read_run(folder) for folder in find_runs(comparison) if folder.name.startswith("afl")]
    group = group_json([digest_run(record) for record in records], 60, 10.0)
    scores = np.array([record.evaluations["score"] for record in records])
    assert group["curves"]["score"]["mean"] == pytest.approx(scores.mean(0), rel=1e-4)
    assert group["curves"]["score"]["high"] == pytest.approx(scores.max(0), rel=1e-4)
    age = np.concatenate([record.contacts["staleness_rounds"] for record in records])
    for value, percent in zip(group["staleness"]["at_least"], group["staleness"]["percent"], strict=True):
        assert percent == pytest.approx(100 * np.mean(age >= value), abs=0.01)
    spent = [
        record.contacts["energy_joules"][record.contacts["device"] == device].sum() / record.budgets_joules[device]
        for record in records
        for device in range(6)
    ]
    assert sorted(group["budget_shares"]) == pytest.approx(sorted(spent), rel=1e-4)


def test_six_hundred_groups_leave_room_for_the_rest_of_a_page() -> None:
    def run(seed: int) -> RunDigest:
        chance = np.random.default_rng(seed)  # any numbers will do
        return RunDigest(
            seed=seed,
            evaluations={
                name: chance.random(240) for name in ("round", "time_s", "score", "loss", "energy_joules", "bits")
            },
            budget_shares=chance.random(300),
            kept_fractions=chance.random(400),
            staleness_rounds=chance.random(400),
            backlog_joules=chance.random(60),
            backlog_high_joules=chance.random(60),
            contacts=400,
            silent=0,
            failed=0,
            failed_joules=0.0,
            parameters=100,
            contact_s=1.0,
            gap_s=10.0,
            full_rates_bps=chance.random(400),
        )

    group = json.dumps(group_json([run(seed) for seed in range(5)], 1000, 10.0, detail_of(600)))
    # The charting library takes 5 MB, the map of a large study at most 2 and a half, its tables less than one.
    assert 600 * len(group) < 6_500_000


def test_thinning_keeps_both_ends_and_numbers_that_are_none_become_null() -> None:
    assert thinned(10_000, 240)[[0, -1]].tolist() == [0, 9_999]
    assert len(thinned(10_000, 240)) == 240
    assert thinned(3, 240).tolist() == [0, 1, 2]
    assert numbers(np.array([1.234567, np.nan, np.inf])) == [1.2346, None, None]


def test_a_scheme_has_one_colour_whatever_stands_beside_it() -> None:
    assert look_of("afl", ["afl"]) == look_of("afl", ["mads", "mine", "afl"])
    many = [f"mine-{number}" for number in range(20)]
    assert len({look_of(name, many) for name in many}) == 20
    ours = ["mads", "optimal", "afl-spar", "afl-spar:paced", "afl", "sfl-spar", "fedmobile", "fedasync", "mads-rd"]
    some = [*ours, *many[:9]]
    assert len({look_of(name, some) for name in some}) == len(some)


def test_variants_have_the_colour_of_their_scheme_and_lines_and_marks_of_their_own() -> None:
    dense = ["afl", "afl:fitting", "afl:paced", "afl:fitting:paced"]
    assert {look_of(name, dense).light for name in dense} == {look_of("afl", ["afl"]).light}
    assert len({look_of(name, dense).dash for name in dense}) == len(dense)
    assert len({tuple(mark_of(name, dense).values()) for name in dense}) == len(dense)


def test_curves_in_the_terminal_rise_where_scores_do(comparison: Path) -> None:
    from rich.console import Console

    records = [read_run(folder) for folder in comparison.glob("runs/mads-seed0-*")]
    console = Console(width=80, record=True, file=(comparison / "terminal.txt").open("w"))
    with console.file:
        console.print(terminal_curves(summarise(records), records, width=80))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line[9:] for line in lines if "│" in line or "┤" in line]
    first = next(row for row, line in enumerate(rows) if line[0] not in (" ", "\u2800"))
    last = next(row for row, line in enumerate(rows) if line.rstrip() and len(line.rstrip()) >= 60)
    score = records[0].evaluations["score"]
    assert (last < first) == (score[-1] > score[0])
    assert "60 rounds" in lines[-2]


def test_what_relays_cost_is_on_the_account_of_who_gave(small: Scenario, tmp_path: Path) -> None:
    record = wayfare.run(small, "fedmobile:billed", out=tmp_path)
    relayed = sum(relay.energy_joules for relay in record.relays)
    assert relayed > 0
    digest = digest_run(record)
    spent = (np.sort(digest.budget_shares) * record.budgets_joules[np.argsort(_shares(record))]).sum()
    assert spent == pytest.approx(summarise_run(record).energy_joules)
    assert digest.failed_joules >= sum(relay.energy_joules for relay in record.relays if not relay.completed)


def _shares(record: RunRecord) -> np.ndarray:
    """Spent over budget, device by device, from the rows of the record."""
    spent = np.zeros(len(record.budgets_joules))
    for device, joules in zip(record.contacts["device"], record.contacts["energy_joules"], strict=True):
        spent[int(device)] += joules
    for relay in record.relays:
        spent[relay.giver] += relay.energy_joules
    return spent / record.budgets_joules


@pytest.mark.parametrize("width", [80, 160])
def test_runs_that_diverged_have_a_table_and_a_page(width: int, comparison: Path, tmp_path: Path) -> None:
    runs = [read_run(folder) for folder in find_runs(comparison)]
    gone = [replace(run, evaluations=run.evaluations | {"score": np.full(4, np.nan)}) for run in runs]
    console = Console(width=width)
    with console.capture() as captured:
        console.print(comparison_table(summarise(gone), gone, width=width))
    assert "nan" in captured.get()
    digest = group_json([digest_run(run) for run in gone], gone[0].scenario.rounds, gone[0].scenario.round_s)
    json.dumps(digest, allow_nan=False)
