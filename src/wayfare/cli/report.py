"""`wayfare report`: what was run, for people to look at."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from wayfare.cli.contact_tables import working
from wayfare.cli.terminal import JsonOption, print_json, say
from wayfare.errors import ScenarioError


def report_command(
    folder: Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a run, a comparison or a study.")],
    out: Annotated[
        Path | None, typer.Option(help="A folder, or an .html file for the page alone; `report` in PATH if not given.")
    ] = None,
    figures: Annotated[
        str | None,
        typer.Option(metavar="pdf|svg|png", help="Also write figures for a paper, one column wide; png for a study."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The seed whose world the map shows; else the first.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write one HTML page with everything inside: table, curves, map, energy, contacts and how to repeat it.

    Example: `wayfare report runs/fashion-small-1a2b3c4d --figures pdf --open`
    """
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
    """Show a page in the reader's browser; where there is none, say where it lies."""
    if not webbrowser.open(page.resolve().as_uri()):
        say(f"No browser was found; open {page.resolve()}")
