"""Every run of a recorded figure is in its CSV file or listed as not done, and the tables agree with the CSV file."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from runpy import run_path
from statistics import fmean
from typing import Any

import pytest

from wayfare.methods import scheme_label
from wayfare.records.statistics import estimate
from wayfare.report.columns import OVER_BUDGET
from wayfare.studies.paper import FIGURES
from wayfare.studies.study import plan_of

RECORDED = Path(__file__).parent.parent.parent / "docs/results/paper"
TRAINED = [name for name, figure in FIGURES.items() if figure.drawing != "contact times"]


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def first_table(page: Path) -> list[dict[str, str]]:
    lines = page.read_text(encoding="utf-8").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("| --- ")) - 1
    cells = []
    for line in lines[begin:]:
        if not line.startswith("|"):
            break
        cells.append([cell.strip() for cell in line.strip("|").split("|")])
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_page_with_its_picture(name: str) -> None:
    text = (RECORDED / f"{name}.md").read_text(encoding="utf-8")
    assert f"wayfare paper {name}" in text
    assert f"]({name}.png)" in text
    not_run = len([row for row in rows_of(RECORDED / "not-run.csv") if row["figure"] == name])
    assert (f"incomplete {not_run} runs missing" in text) if not_run else ("missing" not in text)


@pytest.mark.parametrize("name", TRAINED)
def test_every_run_of_a_figure_is_on_record_or_said_not_to_be_done(name: str) -> None:
    plan = plan_of(FIGURES[name].study(quick=False))
    runs = rows_of(RECORDED / f"{name}-runs.csv")
    seeds = {run["seed"] for run in runs}
    assert len(seeds) >= len(plan.seeds)
    points = [tuple(str(point.values[axis]) for axis in plan.axes) for point in plan.points]
    expected = [(point, scheme, seed) for point in points for scheme in plan.schemes for seed in seeds]
    found = [(tuple(run[axis] for axis in plan.axes), run["scheme"], run["seed"]) for run in runs]
    lacking = [
        (tuple(row["point"].split()), row["scheme"], row["seed"])
        for row in rows_of(RECORDED / "not-run.csv")
        if row["figure"] == name
    ]
    assert sorted(found + lacking) == sorted(expected)


@pytest.mark.parametrize("name", TRAINED)
def test_a_score_is_the_mean_of_the_last_evaluations(name: str) -> None:
    last = plan_of(FIGURES[name].study(quick=False)).points[0].scenario.learning.final_evaluations
    evaluations = defaultdict(list)
    for row in rows_of(RECORDED / f"{name}-evaluations.csv"):
        evaluations[row["key"]].append((int(row["round"]), float(row["score"])))
    runs = rows_of(RECORDED / f"{name}-runs.csv")
    assert evaluations.keys() == {run["key"] for run in runs}
    for run in runs:
        scores = [score for _, score in sorted(evaluations[run["key"]])[-last:]]
        assert float(run["score"]) == pytest.approx(fmean(scores), rel=1e-9)


@pytest.mark.parametrize("name", TRAINED)
def test_the_table_on_the_page_is_that_of_the_runs(name: str) -> None:
    table = first_table(RECORDED / f"{name}.md")
    runs = rows_of(RECORDED / f"{name}-runs.csv")
    axis = next((column for column in table[0] if "." in column), None)
    for row in table:
        named = [run for run in runs if scheme_label(run["scheme"]) == row["scheme"]]
        mine = [run for run in named if not axis or run[axis] == row[axis]]
        assert len(mine) == int(row["seeds"])
        metres = "ADE m" in row
        found = estimate([float(run["score"]) * (1 if metres else 100) for run in mine])
        shown, _, half = row["ADE m" if metres else "accuracy %"].partition(" ± ")
        least = 0.0005 if metres else 0.05
        assert float(shown) == pytest.approx(found.mean, abs=least * 1.001)
        if half:
            assert found.ci95 is not None
            assert float(half) == pytest.approx(found.ci95, abs=least * 1.001)
        joules = fmean(float(run["energy_joules"]) for run in mine)
        assert float(row["energy J"].replace(",", "").removesuffix("!")) == pytest.approx(joules, rel=5e-3)
        budget = fmean(float(run["budget_joules"]) for run in mine)
        assert row["energy J"].endswith("!") == (joules > OVER_BUDGET * budget)
        kept = 100 * fmean(float(run["kept_fraction"]) for run in mine)
        assert float(row["kept %"]) == pytest.approx(kept, rel=5e-3)


def percents(name: str, scheme: str) -> list[float]:
    rows = rows_of(RECORDED / f"{name}-runs.csv")
    runs = {int(run["seed"]): run for run in rows if scheme in (run["scheme"], scheme_label(run["scheme"]))}
    return [100 * float(runs[seed]["score"]) for seed in sorted(runs)]


def differences(name: str, pair: str) -> list[float]:
    scheme, _, other = pair.partition(" to ")
    return [mine - its for mine, its in zip(percents(name, scheme), percents(name, other), strict=True)]


def agrees(cell: str, values: list[float]) -> bool:
    found = estimate(values)
    assert found.ci95 is not None
    shown, _, half = cell.partition(" ± ")
    return float(shown) == pytest.approx(found.mean, abs=0.051) and float(half) == pytest.approx(found.ci95, abs=0.051)


def table_after(page: Path, head: str) -> list[list[str]]:
    lines = page.read_text(encoding="utf-8").splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(f"| {head} |"))
    end = next(number for number in range(begin, len(lines)) if not lines[number].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[begin + 2 : end]]


@pytest.mark.parametrize("name", ["fig8a", "fig8b", "fig8c"])
def test_paired_differences_on_a_page_are_those_of_the_runs(name: str) -> None:
    for pair, mean, by_seed in table_after(RECORDED / f"{name}.md", "paired difference, points"):
        assert agrees(mean, differences(name, pair)), pair
        assert [float(shown) for shown in by_seed.split(", ")] == pytest.approx(differences(name, pair), abs=0.051)


def test_the_readings_of_fig9_say_what_the_runs_say() -> None:
    rows = rows_of(RECORDED / "fig9-runs.csv")
    runs = {(scheme_label(run["scheme"]), run["mobility.speed_mps"], run["seed"]): run for run in rows}
    for scheme, *cells in table_after(RECORDED / "fig9.md", "points below MADS in seeds 0, 1; energy J"):
        for speed, cell in zip(["1.0", "5.0", "10.0", "20.0", "40.0"], cells, strict=True):
            below, _, joules = cell.partition("; ")
            mine, mads = ([runs[name, speed, seed] for seed in ("0", "1")] for name in (scheme, "MADS"))
            points = [100 * (float(b["score"]) - float(a["score"])) for a, b in zip(mine, mads, strict=True)]
            assert [float(shown) for shown in below.split(", ")] == pytest.approx(points, abs=0.051), (scheme, speed)
            mean = fmean(float(run["energy_joules"]) for run in mine)
            assert float(joules.replace(",", "")) == pytest.approx(mean, abs=0.51)


@pytest.mark.parametrize(("place", "name"), [(0, "fig8a"), (1, "fig8b"), (2, "fig8c")])
def test_the_overview_of_dense_schemes_says_what_the_runs_say(place: int, name: str) -> None:
    for pair, *cells in table_after(RECORDED / "README.md", "paired difference, points"):
        assert agrees(cells[place], differences(name, pair)), pair
    for scheme, *cells in table_after(RECORDED / "README.md", "accuracy %"):
        assert agrees(cells[place], percents(name, scheme)), scheme


def test_the_readme_quotes_the_means_of_the_runs() -> None:
    schemes = ["mads", "afl-spar:paced", "afl-spar", "fedmobile", "afl", "afl:fitting"]
    table = table_after(RECORDED.parent.parent.parent / "README.md", "CIFAR-10, 20 m/s, three seeds")
    for scheme, (_, *cells) in zip(schemes, table, strict=True):
        for name, cell in zip(["fig8a", "fig8b", "fig8c"], cells, strict=False):
            assert float(cell.removesuffix(" %")) == pytest.approx(fmean(percents(name, scheme)), abs=0.051)


def test_a_missing_run_can_be_done_alone_and_belongs_to_its_figure() -> None:
    study_of = run_path(str(RECORDED.parent.parent.parent / "scripts/run_missing.py"))["study_of"]
    nameless = {"name": "", "schemes": ()}
    for row in rows_of(RECORDED / "not-run.csv"):
        one = study_of(row)
        plan = plan_of(FIGURES[row["figure"]].study(quick=False))
        assert (one.schemes, one.seeds) == ([row["scheme"]], [int(row["seed"])])
        (scenario,) = [point.scenario.model_copy(update=nameless) for point in one.points]
        assert scenario in [point.scenario.model_copy(update=nameless) for point in plan.points]


def script_of(name: str) -> dict[str, Any]:
    return run_path(str(RECORDED.parent.parent.parent / f"scripts/{name}.py"))


@pytest.mark.parametrize("name", TRAINED)
def test_writing_a_page_again_changes_nothing(name: str, tmp_path: Path) -> None:
    script, plan = script_of("record_figure"), plan_of(FIGURES[name].study(quick=False))
    results = script["results_from"](plan, rows_of(RECORDED / f"{name}-runs.csv"))
    before = (RECORDED / f"{name}.md").read_text(encoding="utf-8")
    (tmp_path / "page.md").write_text(before, encoding="utf-8")
    script["write_page"](FIGURES[name], results, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == before


def test_a_page_keeps_the_tables_behind_its_first() -> None:
    end_of_table = script_of("record_figure")["end_of_table"]
    table = ["| a |", "| --- |", "| 1 |"]
    for notes in ([], ["", "- a note", "- another", "  in two lines"]):
        assert end_of_table([*table, *notes, "", *table], 0) == len(table) + len(notes)
        assert end_of_table([*table, *notes], 0) == len(table) + len(notes)


def test_a_run_on_record_counts_the_uploads_it_started() -> None:
    script, plan = script_of("record_figure"), plan_of(FIGURES["fig10"].study(quick=False))
    first, *_ = script["results_from"](plan, rows_of(RECORDED / "fig10-runs.csv")).results
    assert first.summary.contacts == round(20 * 23.45)


def test_a_target_that_a_run_never_reached_is_an_empty_cell() -> None:
    reached = script_of("record_figure")["reached"]
    row = {"rounds_to_0.5": "", "time_s_to_0.5": "", "energy_joules_to_0.5": ""}
    assert reached(row, 0.5).rounds is None
    assert reached(dict.fromkeys(row, "3.0"), 0.5).energy_joules == 3.0


def test_nothing_left_to_run_is_a_table_without_rows(tmp_path: Path) -> None:
    write_not_run = script_of("record_figure")["write_not_run"]
    write_not_run.__globals__["RECORDED"] = tmp_path
    plan = plan_of(FIGURES["fig10"].study(quick=False))
    write_not_run(FIGURES["fig10"], plan, rows_of(RECORDED / "fig10-runs.csv"))
    assert (tmp_path / "not-run.csv").read_text(encoding="utf-8").strip() == "figure,point,scheme,seed"
