"""A scenario as a TOML file that loads back into the same scenario."""

from __future__ import annotations

import hashlib
import json
import re
from math import isfinite
from typing import Any

from wayfare.scenario.model import Scenario


def to_toml(scenario: Scenario) -> str:
    """All fields, including defaults, so that the file keeps its meaning if a default changes."""
    return "\n".join(_table(scenario.model_dump(mode="json", exclude_none=True), ())) + "\n"


def digest(scenario: Scenario) -> str:
    """A hash of eight characters over all fields except the name and the list of schemes."""
    content = scenario.model_dump(mode="json", exclude={"name", "schemes"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def _table(table: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    """Lines of a table; TOML requires values before subtables."""
    lines = [f"[{'.'.join(map(_key, path))}]"] if path else []
    lines += [f"{_key(key)} = {toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += ["", *_table(value, (*path, key))]
    return lines


def toml_value(value: Any) -> str:
    """A TOML value, with inline tables.

    TOML differs from JSON's escapes in two ways: DEL must be escaped, and surrogate pairs are invalid. So text is not
    escaped to ASCII.
    """
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(key)} = {toml_value(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def _key(key: str) -> str:
    """A key, quoted if necessary; the dotted fields of a study stay unquoted."""
    return key if re.fullmatch(r"[A-Za-z0-9_.-]+", key) else toml_value(key)
