"""`wayfare show`: what a run or a comparison gave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wayfare.cli.contact_tables import working
from wayfare.cli.results import print_results
from wayfare.cli.terminal import JsonOption, output, print_json


def show_command(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, a folder of runs of one scenario, or a study's folder.")
    ],
    plot: Annotated[
        Path | None, typer.Option(help="Also draw into this file (.png, .svg, .pdf): curves, or scores of a study.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the table and curves of a run or a comparison, or the table of a study.

    Example: `wayfare show runs/fashion-small-1a2b3c4d --plot curves.svg`
    """
    from wayfare.report.figures import score_curves
    from wayfare.report.study_figures import study_figure
    from wayfare.report.study_json import results_json
    from wayfare.report.terminal_curves import terminal_curves
    from wayfare.studies.results import read_results

    with working(f"Reading {folder}"):
        results = read_results(folder)
    one_point = results.rows and not results.manifest.axes
    if plot is not None and one_point:
        score_curves(results.schemes, results.runs, plot)
    elif plot is not None:
        study_figure(results, "score", plot)
    if as_json:
        print_json(results_json(results))
        return
    print_results(results)
    if one_point:
        output.print()
        output.print(terminal_curves(results.schemes, results.runs, width=output.width))
