"""The figures of the paper: one small module each, a study and how it is drawn."""

from __future__ import annotations

from collections.abc import Mapping

from wayfare.errors import ScenarioError
from wayfare.studies.paper import fig2, fig3, fig4, fig5, fig6, fig7, fig8, fig9, fig10, fig11
from wayfare.studies.paper.base import PaperFigure

_ALL = (fig2.FIGURE, fig3.FIGURE, fig4.FIGURE, fig5.FIGURE, fig6.FIGURE, fig7.FIGURE, *fig8.FIGURES, fig9.FIGURE)

FIGURES: Mapping[str, PaperFigure] = {figure.name: figure for figure in (*_ALL, fig10.FIGURE, fig11.FIGURE)}


def paper_figure(name: str) -> PaperFigure:
    if name not in FIGURES:
        raise ScenarioError("figure", name, f"must be one of {', '.join(FIGURES)}")
    return FIGURES[name]


__all__ = ["FIGURES", "PaperFigure", "paper_figure"]
