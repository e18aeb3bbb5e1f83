"""The options that say how runs are carried out: declared once, for every command that runs something."""

from __future__ import annotations

from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wayfare.cli.options import Command, in_place_of

if TYPE_CHECKING:
    from wayfare.studies import Execution, Safeguards

ENGINES = "auto, reference, stacked, vmap or cuda_graphs: equal results, other speeds."


def _option(name: str, kind: Any, default: object, help_: str) -> Parameter:
    option = typer.Option(f"--{name.replace('_', '-')}", help=help_, rich_help_panel="How runs are carried out")
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


_EXECUTION = (
    _option("engine", str, "auto", ENGINES),
    _option("device", str, "auto", "auto, cpu, cuda or cuda:NUMBER."),
    _option("precision", str, "fp32", "fp32 (strict); on a GPU also tf32 and bf16."),
    _option("fast", bool, False, "Speed may cost bit-identical repeats."),
    _option("no_models", bool, False, "Keep the hash of final models only: records of large networks stay small."),
    _option("device_state", str, "memory", "memory or disk: where a large fleet's memory lies between contacts."),
    _option("fresh", bool, False, "Run everything anew: take no finished run, resume none."),
)
_SAFEGUARDS = (
    _option(
        "checkpoint_every_s", float | None, None, "Seconds between checkpoints; 30 by default, more if they are slow."
    ),
    _option("checkpoint_every_rounds", int | None, None, "Rounds between checkpoints."),
    _option("keep_checkpoint", bool, False, "Keep one after the end, so that the run can be made longer."),
    _option("allow_divergence", bool, False, "Record NaN and infinity and continue, instead of stopping."),
    _option("paranoid", bool, False, "Check everything that must hold, mass conservation too; slower."),
)


def takes_execution(command: Command) -> Command:
    """Give a command all options in place of its parameter `execution`."""
    return in_place_of("execution", (*_EXECUTION, *_SAFEGUARDS), _execution, command)


def takes_safeguards(command: Command) -> Command:
    """Give a command the options for runs that began before in place of its parameter `safeguards`."""
    return in_place_of("safeguards", _SAFEGUARDS, _safeguards, command)


def _execution(
    *, engine: str, device: str, precision: str, fast: bool, no_models: bool, device_state: str, **safeguards: Any
) -> Execution:
    from wayfare.engine.compute import checked_device, checked_precision
    from wayfare.engine.shelf import checked_place
    from wayfare.studies import Execution

    checked_device(device)
    return Execution(
        engine=engine,
        device=device,
        precision=checked_precision(precision),
        fast=fast,
        device_state=checked_place(device_state),
        keep_model=not no_models,
        safeguards=_safeguards(**safeguards),
    )


def _safeguards(**given: Any) -> Safeguards:
    from wayfare.studies import Safeguards

    return Safeguards(**given)
