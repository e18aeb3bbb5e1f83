"""``wayfare theory``: the paper's bound against one parameter, as printed and as corrected, with Monte Carlo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from wayfare.cli.contact_tables import working
from wayfare.cli.options import takes
from wayfare.cli.terminal import JsonOption, SetOption, facts, output, print_json, say
from wayfare.errors import ScenarioError
from wayfare.scenario import DEFAULT_PRESET, load
from wayfare.theory.curves import Curve, Dot, Parameter, Setting, curves, dots

if TYPE_CHECKING:
    from wayfare.theory.constants import MeasuredRun

theory_app = typer.Typer(
    name="theory",
    help="""Evaluate the convergence bound over speed, contact time or inter-contact time, as printed and corrected.

    Example: `wayfare theory speed --rate-mbps 15 --plot speed.png`
    """,
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_LABELS: dict[Parameter, tuple[str, str]] = {
    "speed": ("Speed [m/s]", "m/s"),
    "contact": ("Mean contact time [s]", "s"),
    "inter-contact": ("Mean inter-contact time [s]", "s"),
}
_POINTS = 241
_DOTS = 9
_DEFAULT = Setting()

From = Annotated[float, typer.Option("--from", help="Start of the range.")]
To = Annotated[float, typer.Option("--to", help="End of the range.")]
ContactS = Annotated[float, typer.Option("--contact-s", help="Mean contact time c in seconds.")]
InterContactS = Annotated[float, typer.Option("--inter-contact-s", help="Mean inter-contact time lambda in seconds.")]
ContactM = Annotated[float, typer.Option("--contact-m", help="C = contact time x speed (`wayfare contacts speeds`).")]
InterContactM = Annotated[float, typer.Option("--inter-contact-m", help="Lambda = inter-contact time x speed.")]
Plot = Annotated[Path | None, typer.Option(help="Draw a figure (.png, .svg, .pdf).")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundOptions:
    """The options that all bounds share."""

    rate_mbps: Annotated[float, typer.Option("--rate-mbps", help="Upload rate A in Mbit/s.")] = _DEFAULT.rate_bps / 1e6
    round_s: Annotated[float, typer.Option("--round-s", help="Length of a round in seconds.")] = _DEFAULT.round_s
    parameters: Annotated[int, typer.Option("--parameters", help="Number of parameters s of the model.")] = (
        _DEFAULT.parameters
    )
    value_bits: Annotated[int, typer.Option("--value-bits", help="Bits per value, u.")] = _DEFAULT.value_bits
    seed: Annotated[int, typer.Option(min=0, help="The seed of the Monte Carlo simulation.")] = 0
    plot: Plot = None
    as_json: JsonOption = False

    def setting(self, **times: float) -> Setting:
        positive = {"rate_mbps": self.rate_mbps, "value_bits": self.value_bits, **times, "round_s": self.round_s}
        for name, value in positive.items():
            if not value > 0 or not np.isfinite(value):
                raise ScenarioError(f"--{name.replace('_', '-')}", value, "must be above 0")
        if self.parameters < 2:
            raise ScenarioError("--parameters", self.parameters, "must be at least 2")
        return Setting(
            rate_bps=self.rate_mbps * 1e6,
            round_s=self.round_s,
            parameters=self.parameters,
            value_bits=self.value_bits,
            **times,
        )


@theory_app.command("speed")
@takes("options", BoundOptions)
def speed(
    begin: From = 1.0,
    end: To = 5000.0,
    contact_m: ContactM = _DEFAULT.contact_m,
    inter_contact_m: InterContactM = _DEFAULT.inter_contact_m,
    *,
    options: BoundOptions,
) -> None:
    """Evaluate the bound over device speed and find its minimum (Corollary 1).

    Example: `wayfare theory speed --rate-mbps 10 --plot speed.png`
    """
    _show("speed", begin, end, options, contact_m=contact_m, inter_contact_m=inter_contact_m)


@theory_app.command("contact")
@takes("options", BoundOptions)
def contact(
    begin: From = 0.5,
    end: To = 64.0,
    inter_contact_s: InterContactS = _DEFAULT.inter_contact_s,
    *,
    options: BoundOptions,
) -> None:
    """Evaluate the bound over the mean contact time (Theorem 2, Fig. 2).

    Example: `wayfare theory contact --inter-contact-s 200 --plot contact.png`
    """
    _show("contact", begin, end, options, inter_contact_s=inter_contact_s)


@theory_app.command("inter-contact")
@takes("options", BoundOptions)
def inter_contact(
    begin: From = 10.0, end: To = 1600.0, contact_s: ContactS = _DEFAULT.contact_s, *, options: BoundOptions
) -> None:
    """Evaluate the bound over the mean inter-contact time (Theorem 2, Fig. 3).

    Example: `wayfare theory inter-contact --contact-s 8 --plot inter-contact.png`
    """
    _show("inter-contact", begin, end, options, contact_s=contact_s)


@theory_app.command("run")
def run(
    source: Annotated[
        str, typer.Argument(metavar="[PRESET|FILE.toml|RUN]", help="A scenario, or the folder of a finished run.")
    ] = DEFAULT_PRESET,
    scheme: Annotated[str, typer.Option(help="A scheme, see `wayfare schemes`; ignored for a finished run.")] = "mads",
    seed: Annotated[int, typer.Option(min=0, help="The seed of the world; ignored for a finished run.")] = 0,
    set_: SetOption = [],  # noqa: B006
    plot: Plot = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat a run to estimate L, G, sigma and F(w0) - F*, and compare the bound with its gradients.

    Example: `wayfare theory run fashion-small --set rounds=300 --plot bound.png`
    """
    from wayfare.theory.constants import measure_run

    scenario = None
    if Path(source).is_dir():
        from wayfare.records import read_run

        record = read_run(Path(source))
        scenario, scheme, seed = record.scenario, record.scheme, record.seed
    scenario = scenario or load(source, set_)
    with working(f"Running {scheme}, seed {seed}", total=scenario.rounds, quiet=True) as advance:
        measured = measure_run(
            scenario, scheme, seed=seed, on_round=lambda _: advance(f"Running {scheme}, seed {seed}")
        )
    if plot is not None:
        from wayfare.report.theory_figures import plot_measured

        plot_measured(measured, plot)
    if as_json:
        print_json(_measured_json(measured))
        return
    _print_measured(measured)
    if plot is not None:
        say(f"Wrote {plot}")


def _print_measured(measured: MeasuredRun) -> None:
    constants, eta = measured.constants, measured.scenario.learning.learning_rate
    rows = (
        ("L, from secants", f"{constants.smoothness:.3g}"),
        ("G², largest of a minibatch", f"{constants.gradient_sq:.3g}"),
        ("sigma², largest of a minibatch", f"{constants.noise_sq:.3g}"),
        ("F(w0) - least F seen", f"{constants.initial_gap:.3g}"),
        ("mean k/s over contacts", f"{measured.kept_share:.3g}"),
        ("mean square of staleness, rounds²", f"{measured.staleness_square:.3g}"),
        ("mean |grad F(w)|² over the run", f"{measured.mean_gradient_sq()[-1]:.3g}"),
        ("Theorem 1, corrected and sharp", f"{measured.bound('sharp')[-1]:.3g}"),
        ("Theorem 1, as printed", f"{measured.bound('printed')[-1]:.3g}"),
    )
    output.print(facts(rows))
    if not constants.rate_is_small_enough(eta):
        limit = 1 / (2 * constants.smoothness)
        output.print(
            f"[yellow]warning[/yellow]  The learning rate {eta:g} is above 1 / (2 L) = {limit:.2g}, so the theorems do "
            "not apply to this run.",
            highlight=False,
        )


def _measured_json(measured: MeasuredRun) -> dict[str, Any]:
    constants = measured.constants
    return {
        "scenario": measured.scenario.name,
        "scheme": measured.scheme,
        "seed": measured.seed,
        "constants": asdict(constants),
        "learning_rate_small_enough": constants.rate_is_small_enough(measured.scenario.learning.learning_rate),
        "kept_share": measured.kept_share,
        "staleness_square": measured.staleness_square,
        "rounds": measured.rounds.tolist(),
        "gradient_sq": measured.gradient_sq.tolist(),
        "loss": measured.loss.tolist(),
        "mean_gradient_sq": measured.mean_gradient_sq().tolist(),
        "bound": {variant: measured.bound(variant).tolist() for variant in ("printed", "corrected", "sharp")},
    }


def _show(parameter: Parameter, begin: float, end: float, options: BoundOptions, **times: float) -> None:
    setting, plot = options.setting(**times), options.plot
    if not 0 < begin < end < np.inf:
        raise ScenarioError("--from", begin, f"must be above 0 and below --to ({end:g})")
    values = np.geomspace(begin, end, _POINTS)
    found = curves(parameter, setting, values)
    label, unit = _LABELS[parameter]
    drawn: list[Dot] = []
    with working("Monte Carlo", total=_DOTS) as advance:
        for dot in dots(parameter, setting, np.geomspace(begin, end, _DOTS).tolist(), options.seed):
            drawn.append(dot)
            advance(f"Monte Carlo at {_place(dot)} {unit}")
    if plot is not None:
        from wayfare.report.theory_figures import plot_curves

        plot_curves(label, values, found, drawn, plot, title=f"The bound against {parameter}: {_fixed(setting)}")
    if options.as_json:
        print_json(_json(parameter, setting, values, found, drawn))
        return
    output.print(_fixed(setting), highlight=False)
    for title, table in _tables(unit, drawn, parameter, setting):
        output.print(f"\n{title}", table, sep="\n", highlight=False)
    for curve in found:
        where = f"{curve.best:,.1f} {unit}"
        where = where if curve.inside else f"the end of the range, {where}"
        output.print(f"{curve.variant:10} minimum at {where}: {_short(curve.best_factor)}", highlight=False)
    if plot is not None:
        say(f"Wrote {plot}")


def _tables(unit: str, found: list[Dot], parameter: Parameter, setting: Setting) -> Iterator[tuple[str, Table]]:
    """The bounds at the values of the dots, beside what was simulated there."""
    at = np.array([dot.at for dot in found])
    by_name = {curve.variant: curve for curve in curves(parameter, setting, at)}
    values = [_place(dot) for dot in found]
    divergences = {
        unit: values,
        "simulated": [_short(dot.divergence) for dot in found],
        **{name: list(map(_short, by_name[name].factor)) for name in ("sharp", "corrected", "printed")},
    }
    yield "D = mean |v - w|² / (η²G²), and Theorem 2's bound on it", _beside(divergences)
    errors = {
        unit: values,
        "simulated": [f"{dot.sparsification_error:.3f}" for dot in found],
        "corrected": [f"{error:.3f}" for error in by_name["corrected"].sparsification_error],
        "printed": [f"{error:.0e}" for error in by_name["printed"].sparsification_error],
    }
    yield "Share of |x|² that is not sent, and Lemma 3's", _beside(errors)


def _beside(columns: Mapping[str, Sequence[str]]) -> Table:
    table = Table()
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def _place(dot: Dot) -> str:
    return f"{dot.at:.3g}" if dot.at < 1000 else f"{dot.at:,.0f}"


def _short(number: float) -> str:
    """Three digits and an SI prefix, because the bound spans many powers of ten."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g}"


def _fixed(setting: Setting) -> str:
    return f"A = {setting.rate_bps / 1e6:g} Mbit/s, s = {setting.parameters:,}, rounds of {setting.round_s:g} s"


def _json(parameter: Parameter, setting: Setting, values: Any, found: list[Curve], drawn: list[Dot]) -> dict[str, Any]:
    return {
        "parameter": parameter,
        "setting": asdict(setting),
        "values": values.tolist(),
        "curves": {
            curve.variant: {
                "factor": curve.factor.tolist(),
                "sparsification_error": curve.sparsification_error.tolist(),
                "staleness_square": curve.staleness_square.tolist(),
                "best": curve.best if curve.inside else None,
                "least_factor": curve.best_factor,
            }
            for curve in found
        },
        "monte_carlo": [asdict(dot) for dot in drawn],
    }
