"""`wayfare resume`: continue interrupted runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wayfare.cli.execution import takes_safeguards
from wayfare.cli.terminal import JsonOption, Line, RunProgress, SetOption, output, print_json

if TYPE_CHECKING:
    from wayfare.studies import Safeguards


@takes_safeguards
def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or a folder of runs.")],
    set_: SetOption = [],  # noqa: B006
    as_json: JsonOption = False,
    *,
    safeguards: Safeguards,
) -> None:
    """Resume a run, or every unfinished run of a folder or study, from the last checkpoint to the same bits.

    Only `rounds` may be set, to more than the run had, and only for schemes that do not pace their energy over them.

    Example: `wayfare resume runs/fashion-small-1a2b3c4d/mads-seed0`
    """
    from wayfare.records import run_json, summarise_run
    from wayfare.report.tables import comparison_table
    from wayfare.studies import resume, summarise
    from wayfare.studies.resuming import unfinished_runs

    # A run that is to become longer may be finished; otherwise only what is not can go on.
    runs = [folder] if set_ else unfinished_runs(folder)
    records = []
    with RunProgress() as progress:
        progress.begin([Line(f"{run.parent.name}/{run.name}") for run in runs])
        for place, run in enumerate(runs):
            record = resume(
                run,
                overrides=set_,
                safeguards=safeguards,
                on_round=lambda round_, place=place: progress.advance(place, round_),  # type: ignore[misc]
            )
            records.append(record)
            progress.done(place, summarise_run(record))
    if as_json:
        print_json({"runs": [run_json(record) for record in records]})
        return
    for scenario in dict.fromkeys(record.scenario for record in records):
        same = [record for record in records if record.scenario == scenario]
        output.print(comparison_table(summarise(same), same, width=output.width))
    for record in records:
        output.print(f"Records: {record.folder}", markup=False, soft_wrap=True)
