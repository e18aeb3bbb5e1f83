"""systemd units for broker, server and devices."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files


def unit_files(devices: int) -> Iterator[tuple[str, str]]:
    """The name and the text of each file: the units, and what they have in common on all hosts of a fleet."""
    for unit in sorted(files("wayfare.field.fleet").joinpath("systemd").iterdir(), key=lambda unit: unit.name):
        text = unit.read_text(encoding="utf-8")
        yield unit.name, text.format(devices=devices) if unit.name == "work.env" else text
