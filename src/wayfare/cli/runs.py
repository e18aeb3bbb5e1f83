"""`wayfare run`, `compare` and `resume`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wayfare.cli.execution import WORKERS, takes_execution, takes_safeguards
from wayfare.cli.results import print_sweep, require_contact
from wayfare.cli.terminal import (
    JobsOption,
    JsonOption,
    Line,
    OutOption,
    RunProgress,
    ScenarioArgument,
    SeedsOption,
    SetOption,
    output,
    print_json,
    seeds_of,
)
from wayfare.forking import start_early
from wayfare.places import RUNS
from wayfare.scenario import DEFAULT_PRESET, load

if TYPE_CHECKING:
    from wayfare.studies import Execution, Safeguards


@takes_execution
def run_command(
    scenario: ScenarioArgument = DEFAULT_PRESET,
    set_: SetOption = [],  # noqa: B006
    scheme: Annotated[
        str | None,
        typer.Option(help="A scheme, see `wayfare schemes`; default: the scenario's first.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the world.")] = 0,
    out: OutOption = RUNS,
    as_json: JsonOption = False,
    *,
    make_execution: Callable[[], Execution],
) -> None:
    """Run one scheme with one seed. An interrupted run resumes where it stopped.

    Example: `wayfare run fashion-small --scheme mads --seed 7 --set control.weight=1e-3`
    """
    resolved = load(scenario, set_)
    from wayfare.records import run_json, summarise_run
    from wayfare.report.tables import comparison_table
    from wayfare.studies import run, summarise

    execution = make_execution()
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
    require_contact([summarise_run(record)])


@takes_execution
def compare_command(
    scenario: ScenarioArgument = DEFAULT_PRESET,
    set_: SetOption = [],  # noqa: B006
    schemes: Annotated[
        str | None, typer.Option(help="Schemes, separated by commas; see `wayfare schemes`.", metavar="A,B,...")
    ] = None,
    seeds: SeedsOption = "3",
    jobs: JobsOption = None,
    out: OutOption = RUNS,
    open_: Annotated[bool, typer.Option("--open", help="Write the report and open it in a browser.")] = False,
    as_json: JsonOption = False,
    *,
    make_execution: Callable[[], Execution],
) -> None:
    """Compare schemes on the same fleet, contacts and channels.

    Finished runs are reused, and interrupted runs resume.

    Example: `wayfare compare fashion-small --set mobility.speed_mps=10 --schemes mads,afl-spar:paced --seeds 5`
    """
    resolved = load(scenario, set_)
    start_early(WORKERS, jobs)
    from wayfare.methods import split_names
    from wayfare.studies.study import comparison_plan
    from wayfare.studies.sweeping import sweep

    execution = make_execution()
    names = None if schemes is None else split_names(schemes)
    plan = comparison_plan(resolved, names, seeds=seeds_of(seeds))
    with RunProgress() as progress:
        done = sweep(plan, out=out, jobs=jobs, execution=execution, progress=progress)
    if open_ and done.results.results:
        from wayfare.cli.finished import open_page
        from wayfare.report.write import write_report

        open_page(write_report(done.results.folder)[0])
    print_sweep(done, as_json=as_json)


@takes_safeguards
def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, of several runs or of a study.")],
    set_: SetOption = [],  # noqa: B006
    as_json: JsonOption = False,
    *,
    make_safeguards: Callable[[], Safeguards],
) -> None:
    """Resume a run, or every unfinished run of a folder or study. The result is bit-identical.

    `--set rounds=N` extends a run. This needs a scheme that does not pace its energy over the rounds.

    Example: `wayfare resume runs/fashion-small-1a2b3c4d/mads-seed0`
    """
    from wayfare.records import run_json, summarise_run
    from wayfare.report.tables import comparison_table
    from wayfare.studies import resume, summarise
    from wayfare.studies.resuming import unfinished_runs

    safeguards = make_safeguards()
    # A finished run can be extended; without an override only unfinished runs resume.
    runs = [folder] if set_ else unfinished_runs(folder)
    records = []
    with RunProgress() as progress:
        progress.begin([Line(f"{run.parent.name}/{run.name}") for run in runs])
        for index, run in enumerate(runs):
            record = resume(
                run,
                overrides=set_,
                safeguards=safeguards,
                on_round=lambda round_, index=index: progress.advance(index, round_),  # type: ignore[misc]
            )
            records.append(record)
            progress.done(index, summarise_run(record))
    if as_json:
        print_json({"runs": [run_json(record) for record in records]})
        return
    for scenario in dict.fromkeys(record.scenario for record in records):
        same = [record for record in records if record.scenario == scenario]
        output.print(comparison_table(summarise(same), same, width=output.width))
    for record in records:
        output.print(f"Records: {record.folder}", markup=False, soft_wrap=True)
