"""`wayfare run`: one scheme, one seed."""

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
    Line,
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


def run_command(
    scenario: ScenarioArgument = DEFAULT_PRESET,
    set_: SetOption = [],  # noqa: B006
    scheme: Annotated[
        str | None,
        typer.Option(help="A scheme, see `wayfare schemes`; the scenario's first if not given.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of the world.")] = 0,
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
    as_json: JsonOption = False,
) -> None:
    """Run one scheme with one seed. A run that broke off goes on where it was.

    Example: `wayfare run fashion-small --scheme mads --seed 7 --set control.weight=1e-3`
    """
    from wayfare.engine.compute import checked_precision
    from wayfare.engine.shelf import checked_place
    from wayfare.records import summarise_run, summary_json
    from wayfare.report.tables import comparison_table
    from wayfare.studies import Execution, Safeguards, run, summarise

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
        print_json({"folder": str(record.folder), "wall_s": record.wall_s, **summary_json(summarise_run(record))})
        return
    output.print(comparison_table(summarise([record]), [record], width=output.width))
    output.print(f"Records: {record.folder}", markup=False, soft_wrap=True)
