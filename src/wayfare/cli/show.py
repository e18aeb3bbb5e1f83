"""`wayfare show`: what a run or a comparison gave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wayfare.cli.contact_tables import working
from wayfare.cli.terminal import JsonOption, output, print_json
from wayfare.errors import RunFolderError
from wayfare.places import STUDY_FILE


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
    if (folder / STUDY_FILE).is_file():
        _show_study(folder, plot, as_json)
        return
    from wayfare.records import find_runs, read_run, summary_json
    from wayfare.report.figures import score_curves
    from wayfare.report.tables import comparison_table
    from wayfare.report.terminal_curves import terminal_curves
    from wayfare.studies import summarise

    records = [read_run(run) for run in find_runs(folder)]
    scenarios = {record.scenario.model_copy(update={"schemes": (), "name": ""}) for record in records}
    if len(scenarios) > 1:
        raise RunFolderError(f"{folder}: holds runs of {len(scenarios)} scenarios; show one of them at a time")
    # In the order of the scenario's own list; others after it.
    wanted = [*records[0].scenario.schemes]
    records.sort(key=lambda record: wanted.index(record.scheme) if record.scheme in wanted else len(wanted))
    schemes = summarise(records)
    if plot is not None:
        score_curves(schemes, records, plot)
    if as_json:
        print_json({"folder": str(folder), "schemes": [summary_json(scheme) for scheme in schemes]})
        return
    output.print(comparison_table(schemes, records, width=output.width))
    output.print()
    output.print(terminal_curves(schemes, records, width=output.width))


def _show_study(folder: Path, plot: Path | None, as_json: bool) -> None:
    from wayfare.report.study_figures import study_figure
    from wayfare.report.study_json import results_json
    from wayfare.report.study_tables import study_table
    from wayfare.studies.results import read_results

    with working(f"Reading {folder}"):
        results = read_results(folder)
    if plot is not None:
        study_figure(results, "score", plot)
    if as_json:
        print_json(results_json(results))
        return
    output.print(study_table(results))
