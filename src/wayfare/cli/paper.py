"""`wayfare paper`: repeat the figures of the paper."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wayfare.cli.execution import takes_execution
from wayfare.cli.results import print_results
from wayfare.cli.terminal import (
    JobsOption,
    JsonOption,
    OutOption,
    RunProgress,
    SetOption,
    listing,
    output,
    print_json,
    seeds_of,
)
from wayfare.cli.terminal import errors as messages
from wayfare.errors import InputError, ScenarioError, UnavailableError
from wayfare.places import RUNS

if TYPE_CHECKING:
    from wayfare.studies import Execution
    from wayfare.studies.paper import PaperFigure
    from wayfare.studies.results import StudyResults


@takes_execution
def paper_command(
    figure: Annotated[str, typer.Argument(metavar="list|FIG", help="A figure such as fig8b, or `list`.")],
    quick: Annotated[bool, typer.Option("--quick", help="A small version of the study, on the built-in data.")] = False,
    also: Annotated[str, typer.Option(metavar="SCHEME,...", help="Further schemes: Wayfare's, or your own.")] = "",
    set_: SetOption = [],  # noqa: B006
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N|A,B,...",
            help="Number of seeds, or a list such as `1,2,3`; `7,` is seed 7 alone; default: those of the figure.",
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="The file of the figure; default: in the study's folder.")
    ] = None,
    jobs: JobsOption = None,
    out: OutOption = RUNS,
    finished: Annotated[
        bool, typer.Option("--finished", help="Use finished runs from any machine; start no run.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(help="Write a page with figure, tables, command and hardware, and CSV files, to this folder."),
    ] = None,
    as_json: JsonOption = False,
    *,
    make_execution: Callable[[], Execution],
) -> None:
    """Run what a figure of the paper needs, draw it, and compare the paper's numbers with ours.

    At full size a figure needs CIFAR-10 or Argoverse and a GPU. With --quick it takes about a minute on two cores.
    Figures share finished runs.

    Examples: `wayfare paper list`, `wayfare paper fig8b --quick --also mads-rd`
    """
    from wayfare.studies.paper import FIGURES, paper_figure

    if figure == "list":
        _list(list(FIGURES.values()), as_json)
        return
    from wayfare.methods import split_names

    chosen = paper_figure(figure).changed(set_, split_names(also), None if seeds is None else seeds_of(seeds))
    _check_options(jobs, picture)
    execution = make_execution()
    home = out / "paper"
    file = picture or home / f"{chosen.study(quick=quick)['name']}" / f"{chosen.name}.png"
    if chosen.drawing == "contact times":
        _contact_times(chosen, quick, file, record, as_json)
        return
    from wayfare.report.paper_figures import draw
    from wayfare.report.paper_page import write_figure_page
    from wayfare.report.study_json import results_json
    from wayfare.studies.study import plan_of
    from wayfare.studies.sweeping import sweep

    plan = plan_of(chosen.study(quick=quick))
    with RunProgress() as progress:
        done = sweep(
            plan,
            out=home,
            pool=home,
            jobs=jobs,
            execution=execution,
            progress=progress,
            run_missing=not finished,
            same_input=True,
        )
    if finished and not done.results.results:
        raise InputError(
            f"{home}: contains no finished run of {chosen.name} in {execution.precision}; omit --finished to start runs"
        )
    if record is not None and done.results.results:
        command = _command(chosen, quick, execution)
        write_figure_page(chosen, done.results, record, command=command, quick=quick)
    drawn = False
    if done.results.results:
        try:
            draw(chosen, done.results, file, quick=quick)
            drawn = True
        except UnavailableError as error:
            # Hours of runs must not fail for a missing library: the same command draws them elsewhere.
            messages.print(f"warning: cannot draw the figure: {error}", markup=False, soft_wrap=True)
    if as_json:
        print_json(
            results_json(done.results)
            | {
                "figure": chosen.name,
                "quick": quick,
                "claim": chosen.claim,
                "paper": [
                    {"what": quoted.what, "paper": quoted.paper, "ours": quoted.ours(done.results)}
                    for quoted in chosen.numbers
                ],
                "picture": str(file) if drawn else None,
            }
        )
    else:
        print_results(done.results)
        _print_paper(chosen, done.results, quick)
        if drawn:
            output.print(f"Figure: {file}", markup=False, soft_wrap=True)
    done.raise_failures()


def _check_options(jobs: int | None, picture: Path | None) -> None:
    """Reject invalid options before hours of runs, also for a figure that needs none."""
    from wayfare.report.canvas import checked_picture

    if jobs is not None and jobs < 1:
        raise ScenarioError("--jobs", jobs, "must be at least 1")
    if picture is not None:
        checked_picture("--picture", picture)


def _command(figure: PaperFigure, quick: bool, execution: Execution | None = None) -> str:
    """The command that repeats the figure."""
    options = {
        "--quick": quick,
        f"--also {shlex.quote(','.join(figure.also))}": bool(figure.also),
        " ".join(f"--set {shlex.quote(override)}" for override in figure.overrides): bool(figure.overrides),
        f"--seeds {figure.seeds_text}": figure.seeds is not None,
    }
    if execution is not None:
        options |= {
            f"--device {execution.device}": execution.device != "auto",
            f"--precision {execution.precision}": execution.precision != "fp32",
            "--fast": execution.fast,
        }
    return " ".join(["wayfare paper", figure.name, *(option for option, given in options.items() if given)])


def _list(figures: list[PaperFigure], as_json: bool) -> None:
    if as_json:
        print_json({"figures": [{"name": one.name, "title": one.title, "claim": one.claim} for one in figures]})
        return
    headings = "figure", "title", "the paper's claim"
    output.print(listing(headings, ((one.name, one.title, one.claim) for one in figures)))


def _print_paper(figure: PaperFigure, results: StudyResults | None, quick: bool) -> None:
    output.print(f"The paper: {figure.claim}.", highlight=False, soft_wrap=True)
    if figure.numbers and results is not None:
        here = [(quoted, quoted.ours(results)) for quoted in figure.numbers]
        rows = [(of.what, f"{of.paper:,.6g}", "-" if ours is None else f"{ours:,.4g}") for of, ours in here]
        output.print(listing(("", "paper", "here"), rows))
    if quick:
        smaller = "another task, fewer rounds" + (", one seed" if figure.seeds is None else "")
        output.print(
            f"Quick: {smaller}. It shows how the figure is made; it does not test the paper's claim.",
            style="dim",
            soft_wrap=True,
        )


def _contact_times(figure: PaperFigure, quick: bool, file: Path, record: Path | None, as_json: bool) -> None:
    from wayfare.contacts.speeds import contact_times_by_speed
    from wayfare.report.contact_figures import plot_speeds
    from wayfare.report.paper_page import write_contact_times_page
    from wayfare.scenario import load

    if figure.also:
        raise ScenarioError("--also", ",".join(figure.also), f"{figure.name} compares no schemes; it needs no training")
    if figure.seeds is not None:
        raise ScenarioError("--seeds", figure.seeds_text, f"{figure.name} is one long draw of contacts")
    scenario, seed = load(figure.study(quick=quick)["scenario"], figure.overrides), 0
    points = list(contact_times_by_speed(scenario, models=["waypoint"], seed=seed))
    file.parent.mkdir(parents=True, exist_ok=True)
    plot_speeds(points, file, title=figure.title)
    if record is not None:
        write_contact_times_page(figure, points, record, command=_command(figure, quick), seed=seed)
    if as_json:
        rows = [[one.speed_mps, one.contact_s, one.inter_contact_s] for one in points]
        print_json(
            {"figure": figure.name, "quick": quick, "claim": figure.claim, "picture": str(file)}
            | {"columns": ["speed_mps", "contact_s", "inter_contact_s"], "rows": rows}
        )
        return
    cells = [(f"{one.speed_mps:g}", f"{one.contact_s or 0:.1f}", f"{one.inter_contact_s or 0:.0f}") for one in points]
    output.print(listing(("speed m/s", "contact s", "inter-contact s"), cells))
    # This figure is the same with and without --quick.
    _print_paper(figure, None, quick=False)
    output.print(f"Figure: {file}", markup=False, soft_wrap=True)
