"""The figures of the paper: every one is a sound study, and comes out of runs of the smallest size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wayfare.errors import ScenarioError
from wayfare.report.paper_figures import draw
from wayfare.studies.paper import FIGURES, paper_figure
from wayfare.studies.study import plan_of
from wayfare.studies.sweeping import sweep

TRAINED = [name for name, figure in FIGURES.items() if figure.drawing != "contact times"]


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("quick", [False, True])
def test_every_figure_is_a_sound_study(name: str, quick: bool) -> None:
    plan = plan_of(FIGURES[name].study(quick=quick))
    assert plan.study.name.startswith("quick-") == quick
    assert (plan.study.scenario.startswith("paper-")) != quick


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


def test_unknown_figures_are_refused() -> None:
    with pytest.raises(ScenarioError, match="figure = 'fig1': must be one of fig2, fig3"):
        paper_figure("fig1")
