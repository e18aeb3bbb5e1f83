"""What ties a store to a fleet: the fleet, the model, the method. Other settings may change between two starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wayfare.errors import RunFolderError


def check_identity(file: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise RunFolderError, with the differences, if a store belongs to another fleet, model or method."""
    found = [*_differences(before, now, "")]
    if found:
        raise RunFolderError(f"{file}: belongs to other work: {'; '.join(found)}; use a new folder for this one")


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str) -> Iterator[str]:
    """The values that differ. A name on one side only is a setting of another version, which has its default here."""
    for name in filter(now.__contains__, before):
        one, other = before[name], now[name]
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, f"{path}{name}.")
        elif one != other:
            yield f"{path}{name}: {one!r} -> {other!r}"
