"""The errors that Wayfare raises.

::

    WayfareError                 anything this package raises on purpose
    ├── InputError               invalid input; the command line exits with 2
    │   ├── ScenarioError        an invalid field or argument: names field, value and rule
    │   ├── TraceError           an invalid line of a trace or contact file: names file, line and reason
    │   └── RunFolderError       a folder that is not a run, or is incomplete
    ├── UnavailableError         an optional library is not installed; exits with 2
    ├── RunError                 a run that started and failed; exits with 1
    │   ├── DivergenceError      training produced NaN or infinity
    │   ├── InvariantError       a result breaks an invariant: a bug in a scheme or in Wayfare
    │   └── StorageError         the disk is full or rejects writes
    └── FieldError               a failure between real machines; exits with 1
        ├── LinkLostError        the other side is unreachable; a later attempt may succeed
        └── RefusedError         a key, certificate, subject or unsafe connection was rejected
"""

from __future__ import annotations

from pathlib import Path


class WayfareError(Exception):
    """The root of the tree above. Messages are one line; line breaks in quoted text become spaces."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())


class InputError(WayfareError):
    """Invalid input."""


class ScenarioError(InputError):
    """A field or argument breaks a rule."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field, self.value, self.rule = field, value, rule
        super().__init__(f"{field} = {value!r}: {rule}")

    def __reduce__(self) -> tuple[type[ScenarioError], tuple[str, object, str]]:
        return ScenarioError, (self.field, self.value, self.rule)


class TraceError(InputError):
    """A line of a trace or contact file is invalid."""

    def __init__(self, file: Path | str, line: int | None, reason: str) -> None:
        self.file, self.line, self.reason = file, line, reason
        where = str(file) if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {reason}")

    def __reduce__(self) -> tuple[type[TraceError], tuple[Path | str, int | None, str]]:
        return TraceError, (self.file, self.line, self.reason)


class RunFolderError(InputError):
    """A folder is not a run, or is incomplete."""


class UnavailableError(WayfareError):
    """An optional library is not installed."""


class RunError(WayfareError):
    """A run started and failed."""


class DivergenceError(RunError):
    """Training produced NaN or infinity."""


class InvariantError(RunError):
    """A result breaks an invariant."""


class StorageError(RunError):
    """The disk is full or rejects writes."""


class FieldError(WayfareError):
    """A failure between real machines."""


class LinkLostError(FieldError):
    """The other side is unreachable; a later attempt may succeed."""


class RefusedError(FieldError):
    """A key, certificate, subject or unsafe connection was rejected."""
