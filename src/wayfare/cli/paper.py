"""`wayfare paper`: the figures of the paper, from real runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from wayfare.cli.terminal import DeviceOption, JsonOption, OutOption, PrecisionOption, RunProgress, output, print_json
from wayfare.errors import RunError
from wayfare.places import RUNS

if TYPE_CHECKING:
    from wayfare.studies.paper import PaperFigure


def paper_command(
    figure: Annotated[str, typer.Argument(metavar="list|FIG", help="A figure such as fig8b, or `list`.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="The same study, small, on the data inside the package.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Where the picture goes; beside the runs if not given.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at the same time; all cores if not given.")] = None,
    out: OutOption = RUNS,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    """Do the runs behind a figure of the paper that are not done yet, and draw it.

    At full size a figure needs CIFAR-10 or Argoverse and a GPU; with --quick about a minute on two cores.

    Example: `wayfare paper list`, `wayfare paper fig8b --quick`
    """
    from wayfare.studies.paper import FIGURES, paper_figure

    if figure == "list":
        _list(list(FIGURES.values()), as_json)
        return
    chosen = paper_figure(figure)
    file = plot or out / f"{chosen.study(quick=quick)['name']}" / f"{chosen.name}.png"
    if chosen.drawing == "contact times":
        _contact_times(chosen, quick, file, as_json)
        return
    from wayfare.engine.compute import checked_precision
    from wayfare.report.paper_figures import draw
    from wayfare.report.study_json import results_json
    from wayfare.report.study_tables import study_table
    from wayfare.studies.jobs import failures_text
    from wayfare.studies.single import Execution
    from wayfare.studies.study import plan_of
    from wayfare.studies.sweeping import sweep

    plan = plan_of(chosen.study(quick=quick))
    with RunProgress() as progress:
        done = sweep(
            plan,
            out=out,
            jobs=jobs,
            execution=Execution(device=device, precision=checked_precision(precision)),
            progress=progress,
        )
    if done.results.results:
        draw(chosen, done.results, file)
    if as_json:
        numbers = {"figure": chosen.name, "paper": dict(chosen.numbers), "claim": chosen.claim, "picture": str(file)}
        print_json(results_json(done.results) | numbers)
    else:
        output.print(study_table(done.results))
        _print_paper(chosen, quick)
        output.print(f"Picture: {file}", markup=False, soft_wrap=True)
    if done.failures:
        raise RunError(
            f"{failures_text(done.failures, len(done.results.manifest.runs))}; finished runs are safe, and the same "
            "command tries the others again"
        )


def _list(figures: list[PaperFigure], as_json: bool) -> None:
    if as_json:
        print_json({"figures": [{"name": one.name, "title": one.title, "claim": one.claim} for one in figures]})
        return
    table = Table("figure", "what it shows", "what the paper reads from it", box=None)
    for one in figures:
        table.add_row(one.name, one.title, one.claim)
    output.print(table)


def _print_paper(figure: PaperFigure, quick: bool) -> None:
    output.print(f"The paper: {figure.claim}.", highlight=False, soft_wrap=True)
    for what, number in figure.numbers.items():
        output.print(f"  {what}: {number}", highlight=False, markup=False)
    if quick:
        output.print(
            "Quick: another task, fewer rounds, one seed. It shows how the figure is made, not what the paper's says.",
            style="dim",
            soft_wrap=True,
        )


def _contact_times(figure: PaperFigure, quick: bool, file: Path, as_json: bool) -> None:
    from wayfare.contacts.speeds import contact_times_by_speed
    from wayfare.report.contact_figures import plot_speeds
    from wayfare.scenario import load

    scenario = load(figure.study(quick=quick)["scenario"])
    points = list(contact_times_by_speed(scenario, models=["waypoint"], seed=0))
    file.parent.mkdir(parents=True, exist_ok=True)
    plot_speeds(points, file, title=figure.title)
    if as_json:
        rows = [[one.speed_mps, one.contact_s, one.inter_contact_s] for one in points]
        print_json({"figure": figure.name, "columns": ["speed_mps", "contact_s", "inter_contact_s"], "rows": rows})
        return
    table = Table("speed m/s", "contact s", "inter-contact s", box=None)
    for one in points:
        table.add_row(f"{one.speed_mps:g}", f"{one.contact_s or 0:.1f}", f"{one.inter_contact_s or 0:.0f}")
    output.print(table)
    _print_paper(figure, quick=False)
    output.print(f"Picture: {file}", markup=False, soft_wrap=True)
