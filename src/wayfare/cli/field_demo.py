"""`wayfare field demo`, and what it shares with the commands that run a fleet."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.progress import MofNCompleteColumn, TextColumn, TimeElapsedColumn

from wayfare.cli.terminal import JsonOption, ScenarioArgument, SetOption, bars, errors, output, print_json
from wayfare.errors import InputError
from wayfare.scenario import DEFAULT_PRESET, load

if TYPE_CHECKING:
    from wayfare.field.rig.demo import DemoOutcome
    from wayfare.field.runtime.work import Work

SchemeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help="A scheme, see `wayfare schemes`; default: the scenario's first.", show_default=False),
]
GuardOption: TypeAlias = Annotated[
    bool,
    typer.Option("--guard/--no-guard", help="Clip unusual updates and quarantine outliers; `guard(...)` sets values."),
]

# The demo reduces devices and rounds of these presets, with the same energy per device and round.
_EMBEDDED = (DEFAULT_PRESET, "recommended")
_DEMO_DEVICES, _DEMO_ROUNDS, _DEMO_JOULES_PER_DEVICE_ROUND = 8, 200, 0.025


def demo_command(
    scenario: ScenarioArgument = DEFAULT_PRESET,
    set_: SetOption = [],  # noqa: B006
    seed: Annotated[int, typer.Option(help="The seed of the world.")] = 0,
    scheme: SchemeOption = None,
    guard: GuardOption = True,
    faults: Annotated[int, typer.Option(help="Number of faults: cut links and killed processes.")] = 0,
    fault_seed: Annotated[int, typer.Option("--fault-seed", help="The seed of the faults.")] = 0,
    strict: Annotated[
        bool, typer.Option("--strict-clock", help="End contacts at the planned time; devices act on what they measure.")
    ] = False,
    speedup: Annotated[
        float | None, typer.Option(help="Planned seconds per second; default: 60, or 20 with --strict-clock.")
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder in which to keep keys, stores and logs.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a fleet on this machine: broker, server and devices are real processes that follow a contact plan.

    Without --strict-clock, all planned exchanges take place and the global model equals the simulator's.

    Examples: `wayfare field demo`, `wayfare field demo --faults 30`
    """
    from wayfare.field.rig.demo import DemoOptions, run_demo

    if faults < 0:
        raise InputError(f"--faults = {faults}: must be at least 0")
    work = _demo_work(scenario, set_, seed, scheme, guarded=guard)
    progress = bars(MofNCompleteColumn(), TextColumn("rounds"), TimeElapsedColumn())
    shown = progress.add_task("keys", total=work.scenario.rounds)

    def on_stage(text: str) -> None:
        progress.update(shown, description=text)
        if not errors.is_terminal:
            errors.print(text, highlight=False)

    with tempfile.TemporaryDirectory(prefix="wayfare-field-") as temporary, progress:
        options = DemoOptions(
            folder=keep or Path(temporary) / "demo",
            speedup=speedup if speedup is not None else 20.0 if strict else 60.0,
            strict=strict,
            faults=faults,
            fault_seed=fault_seed,
            on_round=lambda round_: progress.update(shown, completed=round_),
            on_stage=on_stage,
        )
        outcome = run_demo(work, options)
    if as_json:
        print_json(asdict(outcome))
        return
    _print_outcome(work, outcome)
    if keep is not None:
        output.print(f"Keys, stores and logs: {keep}", markup=False, soft_wrap=True)


def work_of(
    scenario: str, set_: list[str], seed: int, scheme: str | None, engine: str = "auto", *, guarded: bool = True
) -> Work:
    from wayfare.field.runtime.work import Work
    from wayfare.methods.guard import Guard

    if seed < 0:
        raise InputError(f"--seed = {seed}: must be at least 0")
    resolved = load(scenario, set_)
    named = scheme if scheme is not None else next(iter(resolved.schemes), "mads")
    return Work(scenario=resolved, seed=seed, scheme_name=named, engine_name=engine, guard=Guard() if guarded else None)


def _demo_work(scenario: str, set_: list[str], seed: int, scheme: str | None, *, guarded: bool) -> Work:
    """Use plain PyTorch in the field and in the simulator, so that their models are bit-identical."""
    if scenario in _EMBEDDED:
        given = dict(text.partition("=")[::2] for text in set_)
        devices = given.get("fleet.devices", str(_DEMO_DEVICES))
        rounds = given.get("rounds", str(_DEMO_ROUNDS))
        if devices.isdigit() and rounds.isdigit():
            joules = _DEMO_JOULES_PER_DEVICE_ROUND * max(int(devices) * int(rounds), 1)
            sized = [f"fleet.devices={devices}", f"rounds={rounds}", f"fleet.energy_total_joules={joules:g}"]
            set_ = [*sized, *set_]
    return work_of(scenario, set_, seed, scheme, "reference", guarded=guarded)


def _print_outcome(work: Work, outcome: DemoOutcome) -> None:
    metric, found = work.world.task.metric, outcome.audit
    lines = [
        f"{work.scenario.fleet.devices} devices, {work.scenario.rounds} rounds, {outcome.contacts} contacts "
        f"in {outcome.seconds:.0f} s; {outcome.sent_bytes / 1e6:.1f} MB up, {outcome.received_bytes / 1e6:.1f} MB down",
        f"{metric.name} {metric.text(outcome.evaluation.score)}"
        + (f" (simulator: {metric.text(outcome.simulated.score)})" if outcome.simulated else ""),
    ]
    if outcome.faults:
        total = sum(outcome.faults.values())
        lines.append(f"{total} faults: " + ", ".join(f"{count} x {kind}" for kind, count in outcome.faults.items()))
    lines.append(
        f"{found.recorded:,} chunks recorded exactly once; {found.returned:,} taken back by their device, "
        f"{found.promised:,} still promised"
    )
    lines.append(
        f"the replay of the ledger equals the model in every bit ({found.versions:,} versions), "
        "also after a backup, a rollback and a compaction"
    )
    if outcome.difference is not None:
        exact = (
            "in every bit" if outcome.difference == 0 else f"up to a relative difference of {outcome.difference:.1e}"
        )
        differs = f"the model differs from the simulator's (relative difference {outcome.difference:.1e})"
        lines.append(f"the model equals the simulator's {exact}" if outcome.difference <= 1e-6 else differs)
    for line in lines:
        output.print(line, highlight=False, soft_wrap=True)
