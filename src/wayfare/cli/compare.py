"""`wayfare compare`: the main job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wayfare.cli.execution import takes_execution
from wayfare.cli.results import print_sweep
from wayfare.cli.terminal import (
    JobsOption,
    JsonOption,
    OutOption,
    RunProgress,
    ScenarioArgument,
    SeedsOption,
    SetOption,
    seeds_of,
)
from wayfare.places import RUNS
from wayfare.scenario import DEFAULT_PRESET, load

if TYPE_CHECKING:
    from wayfare.studies import Execution


@takes_execution
def compare_command(
    scenario: ScenarioArgument = DEFAULT_PRESET,
    set_: SetOption = [],  # noqa: B006
    schemes: Annotated[
        str | None, typer.Option(help="Schemes to compare, with commas; see `wayfare schemes`.", metavar="A,B,...")
    ] = None,
    seeds: SeedsOption = "3",
    jobs: JobsOption = None,
    out: OutOption = RUNS,
    open_: Annotated[bool, typer.Option("--open", help="Write the report and open it in a browser.")] = False,
    as_json: JsonOption = False,
    *,
    execution: Execution,
) -> None:
    """Compare schemes on the same fleet, contacts and channels: a study of one point.

    Finished runs are taken as they are, and interrupted ones resume.

    Example: `wayfare compare fashion-small --set mobility.speed_mps=10 --schemes mads,afl-spar:paced --seeds 5`
    """
    from wayfare.methods import split_names
    from wayfare.studies.study import comparison_plan
    from wayfare.studies.sweeping import sweep

    names = None if schemes is None else split_names(schemes)
    plan = comparison_plan(load(scenario, set_), names, seeds=seeds_of(seeds))
    with RunProgress() as progress:
        done = sweep(plan, out=out, jobs=jobs, execution=execution, progress=progress)
    if open_ and done.results.results:
        from wayfare.cli.report import open_page
        from wayfare.report.write import write_report

        open_page(write_report(done.results.folder)[0])
    print_sweep(done, as_json=as_json)
