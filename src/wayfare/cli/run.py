"""`wayfare run`: one scheme, one seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wayfare.cli.execution import takes_execution
from wayfare.cli.results import refuse_silence
from wayfare.cli.terminal import (
    JsonOption,
    Line,
    OutOption,
    RunProgress,
    ScenarioArgument,
    SetOption,
    output,
    print_json,
)
from wayfare.places import RUNS
from wayfare.scenario import DEFAULT_PRESET, load

if TYPE_CHECKING:
    from wayfare.studies import Execution


@takes_execution
def run_command(
    scenario: ScenarioArgument = DEFAULT_PRESET,
    set_: SetOption = [],  # noqa: B006
    scheme: Annotated[
        str | None,
        typer.Option(help="A scheme, see `wayfare schemes`; the scenario's first if not given.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the world.")] = 0,
    out: OutOption = RUNS,
    as_json: JsonOption = False,
    *,
    execution: Execution,
) -> None:
    """Run one scheme with one seed. An interrupted run resumes where it stopped.

    Example: `wayfare run fashion-small --scheme mads --seed 7 --set control.weight=1e-3`
    """
    from wayfare.records import run_json, summarise_run
    from wayfare.report.tables import comparison_table
    from wayfare.studies import run, summarise

    resolved = load(scenario, set_)
    scheme = scheme if scheme is not None else next(iter(resolved.schemes), "mads")
    with RunProgress() as progress:
        progress.begin([Line(f"{scheme}, seed {seed}", resolved.rounds)])
        record = run(
            resolved,
            scheme,
            seed=seed,
            out=out,
            execution=execution,
            on_round=lambda round_: progress.advance(0, round_),
        )
        progress.done(0, summarise_run(record))
    if as_json:
        print_json(run_json(record))
    else:
        output.print(comparison_table(summarise([record]), [record], width=output.width))
        output.print(f"Records: {record.folder}", markup=False, soft_wrap=True)
    refuse_silence([summarise_run(record)])
