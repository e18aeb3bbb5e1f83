"""What `wayfare field init` writes is what the hosts of a fleet can start."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.field.brokers import needs_broker
from wayfare.cli.app import app
from wayfare.field.fleet import Fleet, load_fleet
from wayfare.field.fleet.needs import broker_program


def unit(fleet: Fleet, name: str) -> configparser.SectionProxy:
    # Units repeat keys now and then, and their keys are not in small letters.
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read_string((fleet.folder / "systemd" / f"wayfare-{name}.service").read_text())
    return parser["Service"]


@pytest.mark.system
def test_the_unit_of_the_broker_starts_a_configuration_that_nats_server_accepts(fleet: Fleet, tmp_path: Path) -> None:
    needs_broker()
    service = unit(fleet, "broker")
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "nats-server"
    assert service["EnvironmentFile"] == "/etc/wayfare/broker.env"
    options = (fleet.folder / "systemd" / "broker.env").read_text().splitlines()[-1]
    variable, _, _ = options.partition("=")
    checked = subprocess.run(
        [broker_program(), *words, "-t"],
        cwd=fleet.broker_folder,
        env={**os.environ, variable: str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("name", ["mes", "device"])
def test_units_call_commands_and_options_that_there_are(fleet: Fleet, name: str) -> None:
    service = unit(fleet, name)
    assert service["EnvironmentFile"] == f"/etc/wayfare/{name}.env"
    options = (fleet.folder / "systemd" / f"{name}.env").read_text().splitlines()[-1]
    variable, _, value = options.partition("=")
    line = service["ExecStart"].replace(f"${variable}", value)
    assert "$" not in line
    program, *words = shlex.split(line)
    assert Path(program).name == "wayfare"
    # Everything is there but the bundle, and that is what is said.
    outcome = CliRunner().invoke(app, words)
    assert f"/etc/wayfare/{name}: is not a bundle" in str(outcome.exception)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_every_line(fleet: Fleet) -> None:
    units = sorted((fleet.folder / "systemd").glob("*.service"))
    assert len(units) == 3
    said = subprocess.run(
        ["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, check=False
    ).stderr
    # The programs of another host need not be here.
    assert [line for line in said.splitlines() if "wayfare" in line and "is not executable" not in line] == []


def test_init_add_and_remove_from_the_command_line(tmp_path: Path) -> None:
    run, folder = CliRunner(), str(tmp_path / "fleet")
    made = run.invoke(
        app, ["field", "init", folder, "--devices", "2", "--device", "bus-1", "--host", "depot", "--json"]
    )
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["devices"] == [
        {"name": name, "number": number, "member": True}
        for number, name in enumerate(["bus-1", "device-0", "device-1"])
    ]
    assert run.invoke(app, ["field", "remove", folder, "bus-1"]).exit_code == 0
    assert run.invoke(app, ["field", "add", folder, "bus-2"]).exit_code == 0
    fleet = load_fleet(tmp_path / "fleet")
    assert fleet.url == "tls://depot:4222"
    assert [name for name in fleet.devices if fleet.public_keys[name]] == ["device-0", "device-1", "bus-2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["init", "x"], "--devices = 0: must be at least 1"),
        (["init", "x", "--devices", "1", "--store-mb", "1"], "--store-mb = 1: must be at least 16"),
        (["init", "x", "--device", "No"], "device = 'No': must be 1 to 32 lowercase letters"),
        (["add", "nowhere", "a"], "nowhere: is not a fleet"),
        (["mes", "nowhere"], "nowhere: is not a bundle"),
        (["status", "nowhere"], "address = 'nowhere': must be HOST:PORT"),
    ],
)
def test_wrong_words_get_one_clear_message(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in str(CliRunner().invoke(app, ["field", *words]).exception)
    assert list(tmp_path.iterdir()) == []


def test_bundles_are_not_mixed_up(fleet: Fleet) -> None:
    mixed = CliRunner().invoke(app, ["field", "mes", str(fleet.device_folder("drone"))])
    assert "is the bundle of drone; the server's bundle is FLEET/mes" in str(mixed.exception)
    mixed = CliRunner().invoke(app, ["field", "device", str(fleet.server_folder)])
    assert "is the server's bundle" in str(mixed.exception)
