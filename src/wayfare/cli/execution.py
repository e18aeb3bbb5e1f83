"""The options that say how runs are carried out: declared once, for every command that runs something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import typer

if TYPE_CHECKING:
    from wayfare.studies import Execution, Safeguards

ENGINES = "auto, reference, stacked, vmap or cuda_graphs: equal results, other speeds."
Command: TypeAlias = Callable[..., None]


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
    return _with_options(command, "execution", (*_EXECUTION, *_SAFEGUARDS), _execution)


def takes_safeguards(command: Command) -> Command:
    """Give a command the options for runs that began before in place of its parameter `safeguards`."""
    return _with_options(command, "safeguards", _SAFEGUARDS, _safeguards)


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


def _with_options(command: Command, name: str, options: Sequence[Parameter], build: Callable[..., object]) -> Command:
    """The command with options in place of a parameter, whose value is built from them."""
    # The types of what is built are imported when a command runs: PyTorch takes seconds.
    hints = get_type_hints(command, localns=dict.fromkeys(("Execution", "Safeguards"), object), include_extras=True)
    parameters: list[Parameter] = []
    for own in signature(command).parameters.values():
        kept = own.replace(annotation=hints[own.name], kind=Parameter.KEYWORD_ONLY)
        parameters += options if own.name == name else [kept]

    @wraps(command)
    def complete(**given: Any) -> None:
        value = build(**{option.name: given.pop(option.name) for option in options})
        command(**given, **{name: value})

    complete.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    complete.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return complete
