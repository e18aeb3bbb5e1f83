"""The execution options: declared once, for every command that runs something."""

from __future__ import annotations

from functools import partial
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wayfare.cli.options import Command, replace_parameter

if TYPE_CHECKING:
    from wayfare.studies import Execution, Safeguards

WORKERS = "wayfare.studies.local"  # what worker processes import
ENGINES = "auto, reference, stacked, vmap, cuda_graphs or batched: same results, different speeds."


def _option(name: str, kind: Any, default: object, help_: str) -> Parameter:
    option = typer.Option(f"--{name.replace('_', '-')}", help=help_, rich_help_panel="Execution")
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


_EXECUTION = (
    _option("engine", str, "auto", ENGINES),
    _option("device", str, "auto", "auto, cpu, cuda or cuda:NUMBER."),
    _option("precision", str, "fp32", "fp32 (strict); on a GPU also tf32 and bf16."),
    _option("fast", bool, False, "Run faster; repeats may not be bit-identical."),
    _option("no_models", bool, False, "Record only the hash of the final model; saves disk space for large networks."),
    _option("device_state", str, "memory", "memory or disk: where to keep the devices' state between contacts."),
    _option("fresh", bool, False, "Ignore finished runs and checkpoints; run everything again."),
)
_SAFEGUARDS = (
    _option("checkpoint_every_s", float | None, None, "Seconds between checkpoints; default: 30, more if slow."),
    _option("checkpoint_every_rounds", int | None, None, "Rounds between checkpoints."),
    _option("keep_checkpoint", bool, False, "Keep a checkpoint, so that a finished run can be extended."),
    _option("allow_divergence", bool, False, "Record NaN and infinity and continue instead of stopping."),
    _option("paranoid", bool, False, "Check all invariants, such as conservation of mass; slower."),
)


def takes_execution(command: Command) -> Command:
    """Replace the parameter `make_execution` of a command by all execution options.

    The command calls it when all else is valid, because it imports PyTorch.
    """
    return replace_parameter("make_execution", (*_EXECUTION, *_SAFEGUARDS), partial(partial, _execution), command)


def takes_safeguards(command: Command) -> Command:
    """Replace the parameter `make_safeguards` of a command by the options that a resumed run accepts."""
    return replace_parameter("make_safeguards", _SAFEGUARDS, partial(partial, _safeguards), command)


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
