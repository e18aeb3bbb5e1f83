"""The identity of a run: the code and content of its method, its task and the files that it reads.

Keys of studies, records of runs and stores of the field use this description. Equal identities mean equal results.
Code or data that cannot be identified is rejected, unless its author gives it a `version`.

Design decisions:

- A key covers the user's code. Your own objects are hashed by their values and code, with the functions, classes and
  constants they use. An object that cannot be read completely is rejected, because a wrong match would be silent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel

from wayfare.errors import ScenarioError
from wayfare.identity.changes import changes
from wayfare.identity.files import content_of, files_of
from wayfare.identity.fingerprint import UnreadableError, fingerprint, imported_by, is_users
from wayfare.learning.known import KNOWN
from wayfare.learning.tasks import Task, load_task
from wayfare.learning.tasks.pretrained import backbone_digest
from wayfare.methods import Method, Part
from wayfare.methods.from_file import module_of
from wayfare.scenario import Scenario
from wayfare.scenario.load import names_python_file

__all__ = ["UnreadableError", "changes", "fingerprint", "identity_of", "method_identity", "without_parts"]

_SCRIPTS = ("__main__", "__mp_main__")
# Only parts of a method read these fields. A part that does so holds them among its values, so they already count.
_HELD_BY_PARTS = (("control", "weight"), ("control", "variant"), ("mixing",), ("relays",))


@runtime_checkable
class Versioned(Protocol):
    """An object with a version, which its author changes whenever its results change."""

    version: str


def identity_of(scenario: Scenario, method: Method, task: Task | None = None) -> dict[str, Any]:
    """Method, task and files of a run as a table. ``task`` replaces the scenario's task.

    Wayfare's tasks have no entry, because the scenario describes them and their data are verified.
    """
    if task is None and scenario.learning.task not in KNOWN:
        task = load_task(scenario.learning)
    identity: dict[str, Any] = {"scheme": method_identity(method), "files": files_of(scenario)}
    backbone = backbone_digest(scenario.learning)
    if backbone is not None:
        identity["backbone"] = backbone + _imported_by_backbone(scenario.learning.backbone)
    if task is not None:
        version = task.version if isinstance(task, Versioned) else ""
        identity["task"] = _described(task, f"the task {task.name}", version, files=True)
    return identity


def _imported_by_backbone(backbone: str) -> str:
    """The fingerprint of the user's code that the file of a backbone imports. The digest covers the file itself."""
    imported = imported_by(module_of(backbone, "learning.backbone")[0]) if names_python_file(backbone) else []
    try:
        return f" {fingerprint(imported, of=type)}" if imported else ""
    except UnreadableError as error:
        rule = f"imports code that cannot be identified ({error}); move that code into the file"
        raise ScenarioError("learning.backbone", backbone, rule) from None


def without_parts(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a scenario without the fields that count as values of the method's parts."""
    table = dict(scenario)
    for section, *field in _HELD_BY_PARTS:
        if field and isinstance(table.get(section), Mapping):
            table[section] = {name: value for name, value in table[section].items() if name not in field}
        elif not field:
            table.pop(section, None)
    return table


def method_identity(method: Method, *, files: bool = True) -> dict[str, Any]:
    """Every part of a method by its kind: class, values, and code unless it is Wayfare's.

    Without ``files`` the identity uses the code in memory and ignores its files.
    """
    return {kind: _part_identity(part, files) for kind, part in method.parts.items()}


def _part_identity(part: Part, files: bool) -> dict[str, Any]:
    name = _class_name(part)
    if name.startswith("wayfare."):
        values = {field: _plain(value) for field, value in _attributes(part)}
        return {"class": name, "values": values, **({"code": part.version} if part.version else {})}
    return _described(part, name, part.version, files)


def _described(thing: object, name: str, version: str, files: bool) -> dict[str, Any]:
    """Class, values and version; for the user's own classes also the code and its file."""
    kind = type(thing)

    def hashed(what: str, part: object) -> str | None:
        """The fingerprint, or None if the object cannot be read but has a version."""
        try:
            return fingerprint(part, of=kind, files=files)
        except UnreadableError as error:
            if version:
                return None
            rule = (
                f"{what} cannot be identified ({error}), so Wayfare could not detect a change; "
                "give the class a `version` and change it whenever its results change"
            )
            raise ScenarioError("version", name, rule) from None

    values = {
        field: value if _is_plain(value) else hashed(f"its `{field}`", value) or _class_name(value)
        for field, value in _attributes(thing)
    }
    described: dict[str, Any] = {"class": _class_name(thing), "values": values}
    if is_users(kind, kind):
        described["code"] = hashed("its code", kind)
        # Scripts change often outside their classes; the code of the classes is enough.
        by_file = files and kind.__module__ not in _SCRIPTS
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) if by_file else None
        described["file"] = content_of(file) if file else None
    described["version"] = version or None
    return {key: value for key, value in described.items() if value is not None}


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    """All attributes of an object in the order of their names, except cached ones."""
    kind = type(thing)
    slots = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = {name for some in slots for name in ([some] if isinstance(some, str) else some)}
    names |= {field.name for field in fields(thing)} if is_dataclass(thing) else set()
    names |= vars(thing).keys() if hasattr(thing, "__dict__") else set()
    cached = {name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, cached_property)}
    for name in sorted(names - cached - {"__dict__", "__weakref__"}):
        if hasattr(thing, name):
            yield name, getattr(thing, name)


def _class_name(thing: object) -> str:
    kind = type(thing)
    module = "__main__" if kind.__module__ in _SCRIPTS else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return value if _is_plain(value) else repr(value)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
