"""What a fleet has measured becomes a contact list that the planner and the simulator replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import wayfare
from tests.field.parts import LINK, open_ledger
from wayfare.cli.app import app
from wayfare.errors import InputError, ScenarioError
from wayfare.field.runtime.contact_log import ContactLog, measured_contacts
from wayfare.field.runtime.ledger import FILE
from wayfare.field.runtime.life_cycle import ledger_in
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
        "start_s,end_s,a,b,up_bytes,down_bytes,joules,up_s",
        "0.000,8.000,bus-1,server,5000,2500,1,8.000",
        "10.000,18.000,bus-2,server,5000,2500,1,8.000",
    ]
    assert found.up_bps == pytest.approx(8 * 5000 / 8)
    assert found.down_bps == pytest.approx(8 * 2500 / 8)
    assert found.joules_per_device == pytest.approx(4.0)
    assert found.joules_per_bit == pytest.approx(12 / (12 * 40_000))
    assert found.rates_bps == pytest.approx({"bus-1": 5000.0, "bus-2": 5000.0, "drone": 5000.0})


def test_the_rate_of_an_upload_does_not_count_the_time_in_which_nothing_is_sent(tmp_path: Path) -> None:
    ledger, clock = open_ledger(tmp_path), Clock()
    log = ContactLog(ledger._database, clock)
    # A question, ten chunks within a second, a download, and twenty seconds of rest, three times.
    for _ in range(3):
        log.heard(0, 0.0)
        for _ in range(10):
            clock.now_s += 0.1
            log.heard(0, 0.0, up_bytes=25_000)
        for _ in range(5):
            clock.now_s += 0.1
            log.heard(0, 0.0, down_bytes=50_000)
        clock.now_s += 20.0
    log.flush(everything=True)
    ledger.close()
    found = measured_contacts(tmp_path / FILE)
    assert found.contacts == 1
    assert found.rates_bps["bus-1"] == pytest.approx(2e6)
    assert found.up_bps < 0.2e6


def plan_of(folder: Path, *words: str) -> Any:
    found = CliRunner().invoke(app, ["plan", "--from-field", str(folder), "--json", *words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return json.loads(found.stdout)["plans"][0]


def test_a_plan_uses_the_rates_and_the_energy_that_were_measured(tmp_path: Path) -> None:
    measured(tmp_path / "mes" / "state", contacts=12)
    # The folder of the fleet, or of the state.
    plans = [plan_of(tmp_path), plan_of(tmp_path / "mes" / "state")]
    assert plans[0] == plans[1]
    assert plans[0]["full_power"]["median_rate_bps"] == pytest.approx(5000.0)
    assert plans[0]["budget_joules"] == pytest.approx(36.0)
    assert plan_of(tmp_path, "--budget-joules", "7")["budget_joules"] == pytest.approx(21.0)
    with pytest.raises(ScenarioError, match=r"bandwidth_hz = 100\.0: too small for a measured rate of 0\.005 Mbit/s"):
        plan_of(tmp_path, "--set", "radio.bandwidth_hz=100")


def test_the_gain_of_a_rate_is_the_one_at_which_full_power_reaches_it() -> None:
    for rate_bps in (1.0, 5e3, 1e6, 3.9e7):
        assert LINK.rate_bps(LINK.max_power_watts, LINK.gain_per_watt(rate_bps)) == pytest.approx(rate_bps)
    assert LINK.gain_per_watt(1e12) == LINK.gain_per_watt(4e7)


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
    with pytest.raises(InputError, match="no contact has ended yet; a contact ends 30 s after"):
        measured_contacts(tmp_path / FILE)
    with pytest.raises(InputError, match="no ledger; give the folder of the server's state, or of the fleet"):
        ledger_in(tmp_path / "nothing")


def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wayfare.field.runtime.contact_log._MOST_ROWS", 5)
    measured(tmp_path)
    assert measured_contacts(tmp_path / FILE).contacts == 5
