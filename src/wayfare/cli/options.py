"""Options that several commands share, declared once as the fields of a dataclass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, TypeAlias, get_type_hints

Command: TypeAlias = Callable[..., None]


def takes(name: str, kind: type[Any]) -> Callable[[Command], Command]:
    """Replace one parameter of a command by the fields of a dataclass, which are annotated as options."""
    hints = get_type_hints(kind, include_extras=True)
    options = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(kind)
    ]
    return lambda command: replace_parameter(name, options, kind, command)


def replace_parameter(
    name: str, options: Sequence[Parameter], build: Callable[..., object], command: Command
) -> Command:
    """Replace a parameter of a command by options; `build` turns their values into the argument."""
    # Commands import these types when they run, because PyTorch takes seconds to import.
    late = dict.fromkeys(("Execution", "Safeguards"), object)
    hints = get_type_hints(command, localns=late, include_extras=True)
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
