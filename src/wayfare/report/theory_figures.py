"""Pictures of the bounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wayfare.arrays import Floats
from wayfare.report.canvas import wide_figure, without_frame
from wayfare.theory.curves import Curve, Dot

if TYPE_CHECKING:
    from wayfare.theory.constants import MeasuredRun

_STYLES = {
    "printed": ("#718096", "--", "as printed"),
    "corrected": ("#0072b2", "-", "corrected"),
    "sharp": ("#009e73", "-.", "corrected, sharp"),
}
_DOTS = "#d55e00"


def plot_curves(
    label: str, values: Floats, curves: Sequence[Curve], dots: Sequence[Dot], file: Path | str, *, title: str
) -> None:
    """The mobility factor of Theorem 2 with its minima, and beside it the two lemmas it is made of."""
    with wide_figure(file, width_in=14.0, height_in=4.6, layout=None) as figure:
        figure.subplots_adjust(left=0.05, right=0.985, top=0.83, bottom=0.13, wspace=0.22)
        figure.suptitle(title, x=0.05, ha="left", fontsize=13, fontweight="bold")
        panels = (
            ("Theorem 2: mean |v - w|² / (η²G²)", "factor", "divergence"),
            ("Lemma 3: sparsification error", "sparsification_error", "sparsification_error"),
            ("Lemma 2: second moment of staleness [rounds²]", "staleness_square", "staleness_square"),
        )
        for place, (name, of_curve, of_dot) in enumerate(panels):
            axes = figure.add_subplot(1, 3, place + 1)
            for curve in curves:
                if of_curve != "factor" and curve.variant == "sharp":
                    continue  # Both lemmas are the same in it.
                colour, line, text = _STYLES[curve.variant]
                axes.plot(values, getattr(curve, of_curve), color=colour, linestyle=line, linewidth=1.8, label=text)
                if of_curve == "factor" and curve.inside:
                    _mark(axes, curve, colour)
            axes.plot(
                [dot.at for dot in dots],
                [getattr(dot, of_dot) for dot in dots],
                linestyle="none",
                marker="o",
                markersize=5,
                color=_DOTS,
                label="Monte Carlo",
            )
            axes.set(xscale="log", yscale="log", xlabel=label)
            axes.set_title(name, loc="left", fontsize=11)
            axes.grid(True, which="major", color="#e2e8f0", linewidth=0.8)
            axes.legend(frameon=False, fontsize=9)
        without_frame(figure)


def plot_measured(measured: MeasuredRun, file: Path | str) -> None:
    with wide_figure(file, width_in=8.0, height_in=4.8, layout=None) as figure:
        figure.subplots_adjust(left=0.1, right=0.97, top=0.86, bottom=0.13)
        axes = figure.add_subplot(1, 1, 1)
        title = f"{measured.scenario.name}, {measured.scheme}, seed {measured.seed}: Theorem 1 over what was measured"
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
        for variant in ("printed", "corrected", "sharp"):
            colour, line, text = _STYLES[variant]
            axes.plot(
                measured.rounds[1:], measured.bound(variant), color=colour, linestyle=line, linewidth=1.8, label=text
            )
        axes.plot(measured.rounds[1:], measured.mean_gradient_sq(), color=_DOTS, linewidth=1.8, label="mean so far")
        axes.plot(
            measured.rounds,
            measured.gradient_sq,
            color=_DOTS,
            linestyle="none",
            marker="o",
            markersize=4,
            label="|∇F(w)|²",
        )
        axes.set(yscale="log", xlabel="Round", ylabel="Squared norm of the gradient")
        axes.grid(True, which="major", color="#e2e8f0", linewidth=0.8)
        axes.legend(frameon=False, fontsize=9)
        without_frame(figure)


def _mark(axes: Any, curve: Curve, colour: str) -> None:
    axes.plot([curve.best], [curve.best_factor], marker="v", markersize=8, color=colour)
    # Two minima lie close together: one number goes above its mark, the other below.
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
