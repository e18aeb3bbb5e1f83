"""What the commands of a fleet share: the scenario and the method that its machines run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from wayfare.errors import InputError
from wayfare.scenario import load

if TYPE_CHECKING:
    from wayfare.field.runtime.work import Work

GuardOption: TypeAlias = Annotated[
    bool,
    typer.Option("--guard/--no-guard", help="Clip unusual updates and quarantine outliers; `guard(...)` sets values."),
]


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
