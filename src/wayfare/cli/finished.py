"""`wayfare show`, `report` and `export`: finished runs, for people and for other programs."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from wayfare.cli.contact_tables import working
from wayfare.cli.results import print_results
from wayfare.cli.terminal import JsonOption, output, print_json, say
from wayfare.errors import InputError, ScenarioError
from wayfare.files import require_folder, writing


def show_command(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run, of several runs of one scenario, or of a study.")
    ],
    plot: Annotated[
        Path | None, typer.Option(help="Draw curves, or the scores of a study, into this file (.png, .svg, .pdf).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the table and curves of a run or a comparison, or the table of a study.

    Example: `wayfare show runs/fashion-small-1a2b3c4d --plot curves.svg`
    """
    require_folder(folder)
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


def report_command(
    folder: Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a run, a comparison or a study.")],
    out: Annotated[
        Path | None, typer.Option(help="A folder, or an .html file for the page alone; default: PATH/report.")
    ] = None,
    figures: Annotated[
        str | None,
        typer.Option(
            metavar="pdf|svg|png", help="Also write figures for a paper, one column wide; a study has png by default."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The seed whose world the map shows; default: the first.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write one self-contained HTML page: table, curves, map, energy, contacts and how to repeat the runs.

    Example: `wayfare report runs/fashion-small-1a2b3c4d --figures pdf --open`
    """
    require_folder(folder)
    from wayfare.report.figures import Format
    from wayfare.report.write import write_report

    if figures is not None and figures not in get_args(Format):
        raise ScenarioError("--figures", figures, f"must be one of {', '.join(get_args(Format))}")
    with working(f"Reading {folder}") as step:
        written = write_report(folder, out, figures=cast("Format | None", figures), seed=seed, on_run=step)
    if open_:
        open_page(written[0])
    if as_json:
        print_json({"page": str(written[0]), "files": [str(file) for file in written]})
        return
    for file in written:
        say(f"Wrote {file}")


def open_page(page: Path) -> None:
    """Open a page in the default browser; without a browser, print its path."""
    if not webbrowser.open(page.resolve().as_uri()):
        say(f"Found no browser; open {page.resolve()}")


StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of a study, a comparison or a run.")]


def export_command(
    folder: StudyArgument,
    as_csv: Annotated[bool, typer.Option("--csv", help="Write runs.csv and evaluations.csv.")] = False,
    as_parquet: Annotated[bool, typer.Option("--parquet", help="Write runs.parquet and evaluations.parquet.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard files for every run.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write to; default: STUDY/export.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write tidy tables, with one row per run and one row per evaluation.

    Example: `wayfare export runs/schemes-by-speed --csv --parquet`
    """
    if not (as_csv or as_parquet or tensorboard):
        raise InputError("choose at least one of --csv, --parquet and --tensorboard")
    require_folder(folder)
    from wayfare.records import read_run
    from wayfare.studies.export import evaluation_rows, run_rows, write_csv, write_parquet, write_tensorboard
    from wayfare.studies.results import read_results

    with working(f"Reading {folder}"):
        results = read_results(folder)
        tables = {"runs": run_rows(results), "evaluations": evaluation_rows(results)}
    target = out or folder / "export"
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, rows in tables.items():
        if as_csv:
            written.append(target / f"{name}.csv")
            write_csv(rows, written[-1])
        if as_parquet:
            written.append(target / f"{name}.parquet")
            write_parquet(rows, written[-1])
    if tensorboard:
        written.append(target / "tensorboard")
        for run in results.folders:
            write_tensorboard(read_run(run), written[-1] / run.name)
    if as_json:
        print_json(
            {"runs": len(tables["runs"]), "evaluations": len(tables["evaluations"]), "files": list(map(str, written))}
        )
        return
    for file in written:
        say(f"Wrote {file}")
