"""Figures of the bounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wayfare.arrays import Floats
from wayfare.methods import scheme_label
from wayfare.report.canvas import panels_figure
from wayfare.theory.bounds import BoundVariant
from wayfare.theory.curves import Curve, Dot

if TYPE_CHECKING:
    from wayfare.theory.constants import MeasuredRun

_STYLES: dict[BoundVariant, tuple[str, str, str]] = {
    "printed": ("#718096", "--", "as printed"),
    "corrected": ("#0072b2", "-", "corrected"),
    "sharp": ("#009e73", "-.", "corrected, sharp"),
}
_DOTS = "#d55e00"


def plot_curves(
    label: str, values: Floats, curves: Sequence[Curve], dots: Sequence[Dot], file: Path | str, *, title: str
) -> None:
    """Draw the mobility factor of Theorem 2 with its minima, and the two lemmas that it is made of."""
    panels = (
        ("Theorem 2: mean |v - w|² / (η²G²)", "factor", "divergence"),
        ("Lemma 3: sparsification error", "sparsification_error", "sparsification_error"),
        ("Lemma 2: second moment of staleness [rounds²]", "staleness_square", "staleness_square"),
    )
    edges = {"left": 0.05, "right": 0.985, "top": 0.83, "bottom": 0.13, "wspace": 0.22}
    with panels_figure(file, (14.0, 4.6), title, **edges) as figure:
        for axes, (name, of_curve, of_dot) in zip(figure.subplots(1, 3), panels, strict=True):
            for curve in curves:
                if of_curve != "factor" and curve.variant == "sharp":
                    continue  # The lemmas are those of the corrected variant.
                colour, line, text = _STYLES[curve.variant]
                axes.plot(values, getattr(curve, of_curve), color=colour, linestyle=line, linewidth=1.8, label=text)
                if of_curve == "factor" and curve.inside:
                    _mark(axes, curve, colour)
            at, found = [dot.at for dot in dots], [getattr(dot, of_dot) for dot in dots]
            axes.plot(at, found, "o", markersize=5, color=_DOTS, label="Monte Carlo")
            axes.set(xscale="log", yscale="log", xlabel=label, title=name)
            axes.legend()


def plot_measured(measured: MeasuredRun, file: Path | str) -> None:
    run = f"{measured.scenario.name}, {scheme_label(measured.scheme)}, seed {measured.seed}"
    title = f"{run}: Theorem 1 and measured gradients"
    with panels_figure(file, (8.0, 4.8), "", left=0.1, right=0.97, top=0.86, bottom=0.13) as figure:
        axes, rounds = figure.add_subplot(), measured.rounds
        axes.set_title(title, fontsize=12, fontweight="bold")
        for variant, (colour, line, text) in _STYLES.items():
            axes.plot(rounds[1:], measured.bound(variant), color=colour, linestyle=line, linewidth=1.8, label=text)
        axes.plot(rounds[1:], measured.mean_gradient_sq(), color=_DOTS, linewidth=1.8, label="mean so far")
        axes.plot(rounds, measured.gradient_sq, "o", color=_DOTS, markersize=4, label="|∇F(w)|²")
        axes.set(yscale="log", xlabel="Round", ylabel="Squared norm of the gradient")
        axes.legend()


def _mark(axes: Any, curve: Curve, colour: str) -> None:
    axes.plot([curve.best], [curve.best_factor], marker="v", markersize=8, color=colour)
    # Two minima are close together, so one label is above its marker and the other below.
    above = curve.variant != "sharp"
    axes.annotate(
        f"{curve.best:,.3g}" if curve.best < 1000 else f"{curve.best:,.0f}",
        (curve.best, curve.best_factor),
        textcoords="offset points",
        xytext=(0, 7 if above else -15),
        ha="center",
        fontsize=9,
        color=colour,
    )
