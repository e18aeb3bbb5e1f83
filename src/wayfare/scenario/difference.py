"""The differences of two nested tables, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """One line per changed field: `radio.range_m: 100.0 -> 50.0`."""
    lines: list[str] = []
    for key in dict.fromkeys((*before, *now)):
        name = f"{path}{key}"
        one, other = before.get(key), now.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            lines += differences(one, other, f"{name}.")
        elif one != other:
            lines.append(f"{name}: {one!r} -> {other!r}")
    return lines
