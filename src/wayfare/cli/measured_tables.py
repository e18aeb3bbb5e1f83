"""What ``wayfare theory run`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from wayfare.theory.constants import MeasuredRun


def print_measured(console: Console, measured: MeasuredRun) -> None:
    """The constants, the bound after the last round, and what was measured."""
    constants, eta = measured.constants, measured.scenario.learning.learning_rate
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in (
        ("L, by secants", f"{constants.smoothness:.3g}"),
        ("G², largest of a minibatch", f"{constants.gradient_sq:.3g}"),
        ("sigma², largest of a minibatch", f"{constants.noise_sq:.3g}"),
        ("F(w0) - least F seen", f"{constants.initial_gap:.3g}"),
        ("mean k/s over contacts", f"{measured.kept_share:.3g}"),
        ("mean square of staleness, rounds²", f"{measured.staleness_square:.3g}"),
        ("mean |grad F(w)|² over the run", f"{measured.mean_gradient_sq()[-1]:.3g}"),
        ("Theorem 1, corrected and sharp", f"{measured.bound('sharp')[-1]:.3g}"),
        ("Theorem 1, as printed", f"{measured.bound('printed')[-1]:.3g}"),
    ):
        table.add_row(*row)
    console.print(table)
    if not constants.rate_is_small_enough(eta):
        limit = 1 / (2 * constants.smoothness)
        console.print(
            f"[yellow]mind[/yellow]  The learning rate {eta:g} is above 1 / (2 L) = {limit:.2g}: the theorems do not "
            "speak of this run.",
            highlight=False,
        )


def measured_json(measured: MeasuredRun) -> dict[str, Any]:
    """The same for programs, with the curves."""
    constants = measured.constants
    return {
        "scenario": measured.scenario.name,
        "scheme": measured.scheme,
        "seed": measured.seed,
        "constants": {name: getattr(constants, name) for name in constants.__slots__},
        "learning_rate_small_enough": constants.rate_is_small_enough(measured.scenario.learning.learning_rate),
        "kept_share": measured.kept_share,
        "staleness_square": measured.staleness_square,
        "rounds": measured.rounds.tolist(),
        "gradient_sq": measured.gradient_sq.tolist(),
        "loss": measured.loss.tolist(),
        "mean_gradient_sq": measured.mean_gradient_sq().tolist(),
        "bound": {variant: measured.bound(variant).tolist() for variant in ("printed", "corrected", "sharp")},
    }
