"""The errors a user of Wayfare can meet.

::

    WayfareError                 anything this package raises on purpose
    ├── InputError               what you gave cannot be used; the command line exits with 2
    │   ├── ScenarioError        a field of a scenario: names field, value, rule
    │   ├── TraceError           a line of a trace or contact file: names file, line, reason
    │   └── RunFolderError       a folder that is not a run, or not a whole one
    ├── UnavailableError         a part that is optional and not installed, or not built yet; exits with 2
    ├── RunError                 a run that began and could not end; exits with 1
    │   ├── DivergenceError      training came to a number that is none, or infinite
    │   ├── InvariantError       something came out that cannot be: a fault of a scheme, or of Wayfare
    │   └── StorageError         the disk is full, or takes nothing more
    └── FieldError               something between real machines went wrong; exits with 1
        ├── LinkLostError        the other side cannot be reached now; later it may
        └── RefusedError         the broker, or we, refused: a key, a certificate, a subject, an unsafe line
"""

from __future__ import annotations

from pathlib import Path


class WayfareError(Exception):
    """The root of the tree above. A message is one line, whatever it quotes."""

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())


class InputError(WayfareError):
    """What was given cannot be used."""


class ScenarioError(InputError):
    """One field of a scenario breaks a rule."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field, self.value, self.rule = field, value, rule
        super().__init__(f"{field} = {value!r}: {rule}")

    def __reduce__(self) -> tuple[type[ScenarioError], tuple[str, object, str]]:
        return ScenarioError, (self.field, self.value, self.rule)


class TraceError(InputError):
    """One line of a trace or contact file cannot be read."""

    def __init__(self, file: Path | str, line: int | None, reason: str) -> None:
        self.file, self.line, self.reason = file, line, reason
        where = str(file) if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {reason}")

    def __reduce__(self) -> tuple[type[TraceError], tuple[Path | str, int | None, str]]:
        return TraceError, (self.file, self.line, self.reason)


class RunFolderError(InputError):
    """A folder is not a run, or not a whole one."""


class UnavailableError(WayfareError):
    """An optional part is not installed, or not built yet."""


class RunError(WayfareError):
    """A run began and could not end."""


class DivergenceError(RunError):
    """Training came to a number that is none, or infinite."""


class InvariantError(RunError):
    """Something came out that cannot be."""


class StorageError(RunError):
    """The disk is full, or takes nothing more."""


class FieldError(WayfareError):
    """Something between real machines went wrong."""


class LinkLostError(FieldError):
    """The other side cannot be reached now; later it may."""


class RefusedError(FieldError):
    """A key, a certificate, a subject or an unsafe line was refused."""
