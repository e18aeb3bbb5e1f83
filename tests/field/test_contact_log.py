"""What a fleet has measured becomes a contact list that the planner and the simulator replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import wayfare
from tests.field.parts import open_ledger
from wayfare.cli.app import app
from wayfare.errors import InputError
from wayfare.field.runtime.contact_log import ContactLog, measured_contacts
from wayfare.field.runtime.ledger import FILE
from wayfare.world import draw_world


class Clock:
    now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


def measured(folder: Path, *, contacts: int = 4) -> None:
    """Three devices meet the server every 100 s for 8 s, one after the other."""
    ledger, clock = open_ledger(folder), Clock()
    log = ContactLog(ledger._database, clock)
    for number in range(contacts):
        for device in range(3):
            for second in range(0, 9, 2):
                clock.now_s = 1e9 + 100 * number + 10 * device + second
                log.heard(device, number + second / 8, up_bytes=1000, down_bytes=500)
    log.flush(everything=True)
    ledger.close()


def test_messages_that_follow_each_other_are_one_contact(tmp_path: Path) -> None:
    measured(tmp_path)
    found = measured_contacts(tmp_path / FILE)
    assert (found.contacts, found.devices) == (12, 3)
    assert found.text.splitlines()[:3] == [
        "start_s,end_s,a,b,up_bytes,down_bytes,joules",
        "0.000,8.000,bus-1,server,5000,2500,1",
        "10.000,18.000,bus-2,server,5000,2500,1",
    ]
    assert found.up_bps == pytest.approx(8 * 5000 / 8)
    assert found.down_bps == pytest.approx(8 * 2500 / 8)
    assert found.joules_per_device == pytest.approx(4.0)


def test_the_simulator_replays_the_contacts(tmp_path: Path) -> None:
    measured(tmp_path)
    file = tmp_path / "field.csv"
    file.write_text(measured_contacts(tmp_path / FILE).text)
    scenario = wayfare.load(
        "fashion-small",
        ["fleet.devices=3", "rounds=30", "mobility.model=trace", f"mobility.file={file}", "learning.hidden=[4]"],
    )
    world = draw_world(scenario, 0)
    assert sorted(world.meets.contact_s.round(3).tolist()) == [8.0] * 9  # in 300 s


def test_a_plan_is_made_from_a_field(tmp_path: Path) -> None:
    measured(tmp_path, contacts=12)
    kept = tmp_path / "kept.csv"
    found = CliRunner().invoke(app, ["plan", "--from-field", str(tmp_path), "--contact-file", str(kept), "--json"])
    assert found.exit_code == 0, found.output
    assert '"devices": 3' in found.output
    assert kept.read_text().startswith("start_s,end_s,a,b")


def test_a_server_without_contacts_is_named(tmp_path: Path) -> None:
    open_ledger(tmp_path).close()
    with pytest.raises(InputError, match="has no contacts yet"):
        measured_contacts(tmp_path / FILE)
    with pytest.raises(InputError, match="no ledger"):
        measured_contacts(tmp_path / "nothing" / FILE)


def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wayfare.field.runtime.contact_log._MOST_ROWS", 5)
    measured(tmp_path)
    assert measured_contacts(tmp_path / FILE).contacts == 5
