"""The figures of the paper, each with its study and drawing."""

from __future__ import annotations

from wayfare.errors import ScenarioError
from wayfare.studies.paper.base import PaperFigure
from wayfare.studies.paper.figures import FIGURES

__all__ = ["FIGURES", "PaperFigure", "paper_figure"]


def paper_figure(name: str) -> PaperFigure:
    if name not in FIGURES:
        raise ScenarioError("figure", name, f"must be one of {', '.join(FIGURES)}")
    return FIGURES[name]
