"""The container files name commands, options and files that there are."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from wayfare.cli.app import app
from wayfare.field.fleet.broker_config import CONFIG_NAME, STORE_VARIABLE

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "src" / "wayfare" / "field" / "fleet" / "systemd"
SERVICES: dict[str, Any] = {
    name: about
    for file in ("compose.yaml", "compose.device.yaml")
    for name, about in yaml.safe_load((ROOT / "docker" / file).read_text())["services"].items()
}


@pytest.mark.parametrize("name", ["mes", "device"])
def test_server_and_device_are_started_with_options_that_there_are(name: str) -> None:
    service = SERVICES[name]
    (command,) = service["command"]
    # Each has its own file of options, the one that its unit has.
    file = UNITS / Path(service["env_file"]).name
    assert file.name == f"{name}.env"
    variable, _, value = file.read_text().splitlines()[-1].partition("=")
    words = shlex.split(command.replace(f"$${variable}", value))
    assert words[:3] == ["eval", "exec", "wayfare"]
    assert "$" not in " ".join(words)
    # Everything is there but the bundle, and that is what is said.
    outcome = CliRunner().invoke(app, words[3:])
    assert f"/etc/wayfare/{name}: is not a bundle" in str(outcome.exception)
    mounted = [volume.split(":")[1] for volume in service["volumes"]]
    for path in (word for word in words if word.startswith("/")):
        assert any(path.startswith(folder) for folder in mounted), path


@pytest.mark.parametrize("name", ["mes", "device"])
def test_options_in_quotes_stay_together(name: str) -> None:
    # The shell of the image is that of Debian.
    (command,) = SERVICES[name]["command"]
    shown = command.replace("exec wayfare", "set --").replace("$$", "$") + '\nfor word do echo "$word"; done'
    variable = f"WAYFARE_{name.upper()}"
    found = subprocess.run(
        ["/bin/sh", "-c", shown],
        env={variable: "--task /etc/wayfare/task.py --scheme 'mads + guard(clip=3)'"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.splitlines()[-4:] == ["--task", "/etc/wayfare/task.py", "--scheme", "mads + guard(clip=3)"]


def test_a_volume_of_a_device_belongs_to_the_user_of_the_image() -> None:
    (path,) = [volume.split(":")[1] for volume in SERVICES["device"]["volumes"] if not volume.startswith(".")]
    assert f"install -d -o wayfare {path}\n" in (ROOT / "docker" / "Dockerfile").read_text()


@pytest.mark.parametrize(("name", "port"), [("mes", 9464), ("device", 9465)])
def test_the_health_of_a_container_is_asked_where_it_is_told(name: str, port: int) -> None:
    assert f"127.0.0.1:{port}/healthz" in SERVICES[name]["healthcheck"]["test"][-1]


def test_every_example_in_a_file_of_options_is_an_option() -> None:
    for command in ("mes", "device"):
        known = CliRunner().invoke(app, ["field", command, "--help"], env={"COLUMNS": "200"}).output
        lines = [line for line in (UNITS / f"{command}.env").read_text().splitlines() if line.startswith("#   --")]
        options = [word for line in lines for word in line.split() if word.startswith("--")]
        assert len(options) >= 5
        assert [option for option in options if option not in known] == []


def test_the_broker_gets_its_configuration_and_its_store() -> None:
    broker = SERVICES["broker"]
    assert broker["command"] == ["-c", CONFIG_NAME]
    assert broker["environment"] == {STORE_VARIABLE: "/var/lib/wayfare/broker"}


def test_the_image_copies_files_that_there_are() -> None:
    lines = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert copied
    assert all((ROOT / name).exists() for name in copied)
