"""The container files name commands, options and files that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from wayfare.cli.app import app
from wayfare.field.fleet.broker_config import CONFIG_NAME, STORE_VARIABLE

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]


def test_the_server_is_started_with_options_that_there_are() -> None:
    (command,) = COMPOSE["mes"]["command"]
    default = re.fullmatch(r"\$\{WAYFARE_WORK:-(.*)\}", COMPOSE["mes"]["environment"]["WAYFARE_WORK"])
    assert default is not None
    words = shlex.split(command.replace("$$WAYFARE_WORK", default[1]))
    assert words[:2] == ["exec", "wayfare"]
    # Everything is there but the bundle, and that is what is said.
    outcome = CliRunner().invoke(app, words[2:])
    assert "/etc/wayfare/mes: is not a bundle" in str(outcome.exception)


def test_the_broker_gets_its_configuration_and_its_store() -> None:
    broker = COMPOSE["broker"]
    assert broker["command"] == ["-c", CONFIG_NAME]
    assert broker["environment"] == {STORE_VARIABLE: "/var/lib/wayfare/broker"}


def test_the_image_copies_files_that_there_are() -> None:
    lines = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert copied
    assert all((ROOT / name).exists() for name in copied)
