"""What a figure of the paper is: a study, how it is drawn, and what the paper says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Drawing: TypeAlias = Literal["curves", "metric", "rounds to target", "contact times"]
"""Score against rounds; a number against what varies; rounds to a target against it; or no training at all."""

SCHEMES = ["mads", "optimal", "afl-spar:paced", "afl-spar", "fedmobile", "afl", "fedasync", "sfl-spar"]
"""All schemes of the paper, baselines with greedy energy and AFL-Spar with both rules."""

QUICK = {"scenario": "fashion-small", "seeds": 1}
"""The embedded default stands in for CIFAR-10; one seed, to see the shape and nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFigure:
    """One figure: the study at full size, what is different in the quick one, and what to set beside it."""

    name: str
    title: str
    claim: str  # what the paper reads from it
    drawing: Drawing
    full: Mapping[str, Any]
    quick: Mapping[str, Any]
    metric: str = "score"
    numbers: Mapping[str, str] = field(default_factory=dict)  # the paper's, by what they belong to

    def study(self, *, quick: bool) -> dict[str, Any]:
        """The study as a table; figures of one study share its name, and so its runs."""
        chosen = {**self.full, **(self.quick if quick else {})}
        return {**chosen, "name": f"paper-{'quick-' if quick else ''}{chosen['name']}"}
