"""`wayfare export`: what was run, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wayfare.cli.contact_tables import working
from wayfare.cli.terminal import JsonOption, print_json, say
from wayfare.errors import InputError
from wayfare.files import writing

_WHERE = "Where to write; `{}` in the folder if not given."
StudyArgument = Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of a study, a comparison or a run.")]


def export_command(
    folder: StudyArgument,
    as_csv: Annotated[bool, typer.Option("--csv", help="Write runs.csv and evaluations.csv.")] = False,
    as_parquet: Annotated[bool, typer.Option("--parquet", help="Write runs.parquet and evaluations.parquet.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write every run for TensorBoard.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help=_WHERE.format("export"))] = None,
    as_json: JsonOption = False,
) -> None:
    """Write tidy tables: one row for each run, and one for each evaluation.

    Example: `wayfare export runs/schemes-by-speed --csv --parquet`
    """
    if not (as_csv or as_parquet or tensorboard):
        raise InputError("say what to write: --csv, --parquet or --tensorboard")
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
        for result in results.results:
            write_tensorboard(read_run(result.folder), written[-1] / result.folder.name)
    if as_json:
        print_json(
            {"runs": len(tables["runs"]), "evaluations": len(tables["evaluations"]), "files": list(map(str, written))}
        )
        return
    for file in written:
        say(f"Wrote {file}")
