"""A scenario as a TOML file that loads back into the same scenario."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from wayfare.scenario.model import Scenario


def to_toml(scenario: Scenario) -> str:
    """Every field, defaults included, so that the file means the same when a default changes."""
    return "\n".join(_table(scenario.model_dump(mode="json", exclude_none=True), ())) + "\n"


def digest(scenario: Scenario) -> str:
    """Eight characters that stand for the experiment, whatever it is called and whatever schemes are compared on it."""
    content = scenario.model_dump(mode="json", exclude={"name", "schemes"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def _table(table: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    """Values first, then the tables below: TOML wants it so."""
    lines = [f"[{'.'.join(path)}]"] if path else []
    lines += [f"{key} = {_literal(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += ["", *_table(value, (*path, key))]
    return lines


def _literal(value: Any) -> str:
    """A TOML literal; JSON's numbers, booleans, strings and lists are also TOML's, but for DEL."""
    return json.dumps(value).replace("\x7f", "\\u007F")
