"""systemd units for broker, server and devices."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

ENVIRONMENT_NAME = "work.env"


def unit_files(devices: int) -> Iterator[tuple[str, str]]:
    """The name and the text of each file: the units, and what they have in common on all hosts of a fleet."""
    for unit in sorted(files("wayfare.field").joinpath("systemd").iterdir(), key=lambda unit: unit.name):
        if unit.name.endswith(".service"):
            yield unit.name, unit.read_text(encoding="utf-8")
    yield (
        ENVIRONMENT_NAME,
        "# Options of `wayfare field mes` and `wayfare field device`: the same file on every host of the fleet.\n"
        f"WAYFARE_WORK=--scenario fashion-small --set fleet.devices={devices} --seed 0 --scheme mads\n",
    )
