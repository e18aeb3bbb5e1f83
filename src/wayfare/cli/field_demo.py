"""`wayfare field demo`, and what it shares with the commands that run a fleet."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def task_setting(task: str | None) -> list[str]:
    return [] if task is None else [f"learning.task={task}"]


def demo_command(
    scenario: ScenarioArgument = DEFAULT_PRESET,
    set_: SetOption = [],  # noqa: B006
    seed: Annotated[int, typer.Option(help="The seed of the world.")] = 0,
    scheme: Annotated[
        list[str],
        typer.Option(
            help="A scheme, see `wayfare schemes`; repeat it for several fleets in turn, which share the faults."
        ),
    ] = [],  # noqa: B006
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

    Examples: `wayfare field demo`, `wayfare field demo --faults 30`,
    `wayfare field demo --scheme mads --scheme afl --faults 30`
    """
    from wayfare.field.rig.demo import DemoOptions, run_demo

    if faults < 0:
        raise InputError(f"--faults = {faults}: must be at least 0")
    works = [_demo_work(scenario, set_, seed, each, guarded=guard) for each in scheme] or [
        _demo_work(scenario, set_, seed, None, guarded=guard)
    ]
    outcomes = []
    for place, work in enumerate(works):
        # Every fleet gets its share; the first ones get what is left over.
        share = faults // len(works) + (place < faults % len(works))
        folder = keep if keep is None or len(works) == 1 else keep / f"{place + 1}-{work.scheme_name.partition(' ')[0]}"
        with tempfile.TemporaryDirectory(prefix="wayfare-field-") as temporary, _progress(work) as (on_stage, on_round):
            options = DemoOptions(
                folder=folder or Path(temporary) / "demo",
                speedup=speedup if speedup is not None else 20.0 if strict else 60.0,
                strict=strict,
                faults=share,
                fault_seed=fault_seed,
                on_round=on_round,
                on_stage=on_stage,
            )
            outcome = run_demo(work, options)
        outcomes.append({"scheme": work.scheme_name, **asdict(outcome)})
        if not as_json:
            _print_outcome(work, outcome, named=len(works) > 1)
    if as_json:
        print_json(outcomes[0] if len(outcomes) == 1 else outcomes)
    elif keep is not None:
        output.print(f"Keys, stores and logs: {keep}", markup=False, soft_wrap=True)


@contextmanager
def _progress(work: Work) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """A bar of rounds, and its functions for stages and rounds."""
    progress = bars(MofNCompleteColumn(), TextColumn("rounds"), TimeElapsedColumn())
    shown = progress.add_task("keys", total=work.scenario.rounds)

    def on_stage(text: str) -> None:
        progress.update(shown, description=text)
        if not errors.is_terminal:
            errors.print(text, highlight=False)

    with progress:
        yield on_stage, lambda round_: progress.update(shown, completed=round_)


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


def _print_outcome(work: Work, outcome: DemoOutcome, *, named: bool) -> None:
    metric, found = work.world.task.metric, outcome.audit
    lines = [
        f"{work.scheme_name}: "
        * named
        + f"{work.scenario.fleet.devices} devices, {work.scenario.rounds} rounds, {outcome.contacts} contacts "
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
        "also after a backup, a migration, a rollback and a compaction"
    )
    if outcome.difference is not None:
        exact = (
            "in every bit" if outcome.difference == 0 else f"up to a relative difference of {outcome.difference:.1e}"
        )
        differs = f"the model differs from the simulator's (relative difference {outcome.difference:.1e})"
        lines.append(f"the model equals the simulator's {exact}" if outcome.difference <= 1e-6 else differs)
    for line in lines:
        output.print(line, highlight=False, soft_wrap=True)
