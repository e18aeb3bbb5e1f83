"""Every figure of the paper is a valid study and can be drawn from the smallest runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from wayfare.errors import ScenarioError
from wayfare.report.paper_figures import draw
from wayfare.report.paper_page import write_figure_page
from wayfare.studies.paper import FIGURES, paper_figure
from wayfare.studies.paper.base import Quoted, QuotedGain
from wayfare.studies.results import read_results
from wayfare.studies.single import Execution
from wayfare.studies.study import plan_of
from wayfare.studies.sweeping import sweep

TRAINED = [name for name, figure in FIGURES.items() if figure.drawing != "contact times"]


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("quick", [False, True])
def test_every_figure_is_a_sound_study(name: str, quick: bool) -> None:
    plan = plan_of(FIGURES[name].study(quick=quick))
    assert plan.study.name.startswith("quick-") == quick
    assert (plan.study.scenario.startswith("paper-")) != quick


@pytest.mark.parametrize("name", ["fig10", "fig11"])
@pytest.mark.parametrize("quick", [False, True])
def test_scenes_are_divided_uniformly_as_in_the_paper(name: str, quick: bool) -> None:
    points = plan_of(FIGURES[name].study(quick=quick)).points
    assert {point.scenario.learning.partition.kind for point in points} == {"iid"}


def smallest(table: dict[str, Any]) -> dict[str, Any]:
    """Two schemes, two values of what varies, and hardly any training."""
    settings = dict(table.get("set", {}))
    learning = {**settings.get("learning", {}), "evaluate_every_rounds": 4, "hidden": [8]}
    if table["scenario"].startswith("argoverse"):
        learning |= {"argoverse": {"synthetic_scenes": 60, "width": 8}}
    settings |= {"rounds": 8, "fleet": {"devices": 3}, "learning": learning}
    grid = {part: {key: values[:2] for key, values in fields.items()} for part, fields in table.get("grid", {}).items()}
    return {**table, "set": settings, "grid": grid, "schemes": table["schemes"][:2], "seeds": 1}


@pytest.mark.parametrize("name", TRAINED)
def test_every_figure_is_drawn_from_runs(name: str, tmp_path: Path) -> None:
    figure = paper_figure(name)
    done = sweep(plan_of(smallest(figure.study(quick=True))), out=tmp_path, jobs=1)
    assert not done.failures
    draw(figure, done.results, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_figures_of_one_study_share_its_runs() -> None:
    assert paper_figure("fig6").study(quick=True) == paper_figure("fig7").study(quick=True)


def test_figures_that_need_the_same_runs_share_them(tmp_path: Path) -> None:
    one = smallest(paper_figure("fig8b").study(quick=True))
    other = {**one, "name": "other", "schemes": [one["schemes"][1], "afl"]}
    for table in (one, other):
        done = sweep(plan_of(table), out=tmp_path, pool=tmp_path, jobs=1)
        # The folder of a study knows where its runs are.
        assert [row.scheme for row in read_results(done.results.folder).rows] == table["schemes"]
    assert len(list((tmp_path / "runs").iterdir())) == 3


def test_numbers_of_the_paper_stand_beside_ours(tmp_path: Path) -> None:
    table = smallest(paper_figure("fig9").study(quick=True))
    results = sweep(plan_of(table), out=tmp_path, jobs=1).results
    mads, optimal = (row for row in results.rows if results.manifest.points[row.point]["mobility.speed_mps"] == 10.0)
    score = Quoted(paper=71.15, scheme="mads", at=10.0)
    assert score.ours(results) == pytest.approx(100 * mads.estimates["score"].mean)
    below = Quoted(paper=1.0, scheme="optimal", below="mads", at=10.0)
    difference = mads.estimates["score"].mean - optimal.estimates["score"].mean
    assert below.ours(results) == pytest.approx(100 * difference, abs=1e-9)
    energy = Quoted(paper=2000.0, scheme="mads", at=10.0, metric="energy_joules")
    assert energy.ours(results) == pytest.approx(mads.estimates["energy_joules"].mean)
    assert Quoted(paper=1.0, scheme="mads", at=99.0).ours(results) is None
    assert Quoted(paper=1.0, scheme="mads").ours(results) is None  # at which speed?
    write_figure_page(paper_figure("fig9"), results, tmp_path / "page", command="wayfare paper fig9")
    page = (tmp_path / "page" / "fig9.md").read_text(encoding="utf-8")
    assert "wayfare paper fig9" in page
    assert "| MADS at 20 | 71.15 | - |" in page
    assert "mean of the last 2 evaluations of a run" in page  # it has no more
    written = sorted(file.name for file in (tmp_path / "page").iterdir())
    assert written == ["fig9-evaluations.csv", "fig9-runs.csv", "fig9.md", "fig9.png"]


def test_a_difference_is_that_of_the_seeds_both_have(tmp_path: Path) -> None:
    plan = plan_of({**smallest(paper_figure("fig8b").study(quick=True)), "seeds": 2})
    whole = sweep(plan, out=tmp_path, jobs=1).results
    gone = next(one for one in whole.results if one.run.scheme == "optimal" and one.run.seed == 1)
    shutil.rmtree(gone.folder)
    part = sweep(plan, out=tmp_path, run_missing=False).results
    assert (len(part.results), part.missing) == (3, 1)
    mads, optimal = (next(one for one in part.results if one.run.scheme == name) for name in ("mads", "optimal"))
    difference = 100 * (mads.measures["score"] - optimal.measures["score"])
    assert Quoted(paper=1.0, scheme="optimal", below="mads").ours(part) == pytest.approx(difference, abs=1e-9)


def test_a_gain_is_over_the_best_of_the_others(tmp_path: Path) -> None:
    results = sweep(plan_of(smallest(paper_figure("fig8b").study(quick=True))), out=tmp_path, jobs=1).results
    mads, optimal = (row.estimates["score"].mean for row in results.rows)
    gain = QuotedGain(paper=9.46, scheme="mads", others=("optimal",))
    assert gain.ours(results) == pytest.approx(100 * (1 - mads / optimal))
    assert QuotedGain(paper=9.46, scheme="mads", others=("mads", "optimal")).ours(results) == pytest.approx(
        100 * (1 - mads / min(mads, optimal))
    )
    assert QuotedGain(paper=9.46, scheme="mads", others=("optimal", "afl")).ours(results) is None


def test_runs_of_a_gpu_are_shown_where_there_is_none(tmp_path: Path) -> None:
    plan = plan_of(smallest(paper_figure("fig8b").study(quick=True)))
    assert sweep(plan, out=tmp_path, execution=Execution(precision="tf32"), run_missing=False).results.missing == 2


def test_unknown_figures_are_refused() -> None:
    with pytest.raises(ScenarioError, match="figure = 'fig1': must be one of fig2, fig3"):
        paper_figure("fig1")


def svg_of(name: str, table: dict[str, Any], tmp_path: Path, *, quick: bool) -> str:
    results = sweep(plan_of(table), out=tmp_path, jobs=1).results
    draw(paper_figure(name), results, tmp_path / "figure.svg", quick=quick)
    return (tmp_path / "figure.svg").read_text(encoding="utf-8")


def test_schemes_beside_those_of_the_paper_are_told_apart_in_curves(tmp_path: Path) -> None:
    table = smallest(paper_figure("fig2").study(quick=True))
    picture = svg_of("fig2", {**table, "schemes": ["optimal", "mads"]}, tmp_path, quick=True)
    for label in ("Optimal, contact 1 s", "MADS, contact 1 s", "Optimal, contact 2 s", "MADS, contact 2 s"):
        assert picture.count(f"<!-- {label} -->") == 1
    assert "quick: fashion-small instead of the paper's task" in picture


def test_targets_that_no_run_reaches_are_marked(tmp_path: Path) -> None:
    table = smallest(paper_figure("fig5").study(quick=True))
    picture = svg_of("fig5", {**table, "targets": ["1 %", "100 %"]}, tmp_path, quick=False)
    assert "<!-- not in 8 rounds -->" in picture
    assert "<!-- 100% -->" in picture
    assert "quick" not in picture
    assert "<!-- not in" not in svg_of("fig5", {**table, "name": "easy", "targets": ["1 %"]}, tmp_path, quick=False)
