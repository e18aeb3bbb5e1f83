"""Describes the differences of two identities."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from wayfare.scenario.difference import differences

_HASH = re.compile(r"[0-9a-f]{64}")


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase per difference: `the code of scheme.upload (mine.Patient)`, `the content of task.train`."""
    lines: dict[str, None] = {}
    for group in ("scheme", "task", "files"):
        one, other = before.get(group), now.get(group)
        if not isinstance(one, Mapping) or not isinstance(other, Mapping):
            lines |= dict.fromkeys([] if one == other else [_only(group, one, other)])
        elif group == "scheme":
            for kind in dict.fromkeys((*one, *other)):
                path = f"scheme.{kind}"
                lines |= dict.fromkeys(_changes_of(path, f"{path}.values.", one.get(kind), other.get(kind)))
        elif group == "task":
            lines |= dict.fromkeys(_changes_of("task", "task.", one, other))
        else:
            lines |= dict.fromkeys(_change("", name, one.get(name), other.get(name)) for name in _differ(one, other))
    if before.get("backbone") != now.get("backbone"):
        lines["the content of learning.backbone"] = None
    return list(lines)


def _changes_of(path: str, inside: str, before: object, now: object) -> list[str]:
    """The differences of a part or task; of a changed class, only the class is named."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return [] if before == now else [_only(path, before, now)]
    if before.get("class") != now.get("class"):
        return [f"{path}.class: {before.get('class')!r} -> {now.get('class')!r}"]
    code = next((name for name in ("code", "file", "version") if before.get(name) != now.get(name)), None)
    lines = [f"the {code} of {path} ({now.get('class')})"] if code else []
    one, other = (each["values"] if isinstance(each.get("values"), Mapping) else {} for each in (before, now))
    return lines + [_change(inside, name, one.get(name), other.get(name)) for name in _differ(one, other)]


def _differ(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]


def _change(path: str, name: str, before: object, now: object) -> str:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return "; ".join(differences(before, now, f"{path}{name}."))
    if any(_HASH.search(str(value)) for value in (before, now)):
        return f"the content of {path}{name}"
    return f"{path}{name}: {before!r} -> {now!r}"


def _only(path: str, before: object, now: object) -> str:
    if before is None:
        return f"{path} is new"
    return f"{path} is missing" if now is None else f"{path} cannot be read"
