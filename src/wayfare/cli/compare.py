"""`wayfare compare`: the main job."""

from __future__ import annotations

from typing import Annotated

import typer

from wayfare.cli.terminal import (
    CheckpointRoundsOption,
    CheckpointSecondsOption,
    DeviceOption,
    DeviceStateOption,
    DivergenceOption,
    EngineOption,
    FastOption,
    FreshOption,
    JsonOption,
    KeepOption,
    NoModelsOption,
    OutOption,
    ParanoidOption,
    PrecisionOption,
    RunProgress,
    ScenarioArgument,
    SetOption,
    output,
    print_json,
)
from wayfare.places import RUNS
from wayfare.scenario import DEFAULT_PRESET, load


def compare_command(
    scenario: ScenarioArgument = DEFAULT_PRESET,
    set_: SetOption = [],  # noqa: B006
    schemes: Annotated[
        str | None, typer.Option(help="Schemes to compare, with commas; see `wayfare schemes`.", metavar="A,B,...")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds; all schemes of a seed meet the same world.")] = 3,
    jobs: Annotated[int | None, typer.Option(help="Runs at the same time; all cores if not given.")] = None,
    only_missing: Annotated[
        bool, typer.Option("--only-missing", help="Take finished runs of the same version as they are.")
    ] = False,
    out: OutOption = RUNS,
    engine: EngineOption = "auto",
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
    fast: FastOption = False,
    no_models: NoModelsOption = False,
    device_state: DeviceStateOption = "memory",
    checkpoint_every_s: CheckpointSecondsOption = None,
    checkpoint_every_rounds: CheckpointRoundsOption = None,
    keep_checkpoint: KeepOption = False,
    allow_divergence: DivergenceOption = False,
    paranoid: ParanoidOption = False,
    fresh: FreshOption = False,
    open_: Annotated[bool, typer.Option("--open", help="Write the report and open it in a browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare schemes on the same fleet, contacts and channels. Runs that broke off go on where they were.

    Example: `wayfare compare fashion-small --set mobility.speed_mps=10 --schemes mads,afl-spar:paced --seeds 5`
    """
    from wayfare.engine.compute import checked_precision
    from wayfare.engine.shelf import checked_place
    from wayfare.records import summary_json
    from wayfare.report.tables import comparison_table
    from wayfare.studies import Execution, Safeguards, compare

    resolved = load(scenario, set_)
    execution = Execution(
        engine=engine,
        device=device,
        precision=checked_precision(precision),
        fast=fast,
        device_state=checked_place(device_state),
        keep_model=not no_models,
        safeguards=Safeguards(
            checkpoint_every_s=checkpoint_every_s,
            checkpoint_every_rounds=checkpoint_every_rounds,
            keep_checkpoint=keep_checkpoint,
            allow_divergence=allow_divergence,
            paranoid=paranoid,
            fresh=fresh,
        ),
    )
    names = None if schemes is None else [name.strip() for name in schemes.split(",") if name.strip()]
    with RunProgress() as progress:
        result = compare(
            resolved,
            names,
            seeds=seeds,
            jobs=jobs,
            out=out,
            execution=execution,
            progress=progress,
            only_missing=only_missing,
        )
    if open_:
        from wayfare.cli.report import open_page
        from wayfare.report.write import write_report

        page = write_report(result.folder)[0]
        open_page(page)
    if as_json:
        print_json(
            {
                "scenario": resolved.name,
                "folder": str(result.folder),
                "seeds": seeds,
                "schemes": [summary_json(scheme) for scheme in result.schemes],
            }
        )
        return
    output.print(comparison_table(result.schemes, result.runs, width=output.width))
    again = f"Records: {result.folder}   Look: wayfare report {result.folder} --open"
    output.print(again, markup=False, soft_wrap=True)
