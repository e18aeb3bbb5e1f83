"""Private devices: secret noise, releases that count before anything is sent, and epsilon in the status."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.field.parts import LAYOUT, LINK, METHOD, Fixed, open_ledger, open_outbox, train, undelivered
from wayfare.cli.field_fleet import status_table
from wayfare.device import Terms
from wayfare.field.runtime.exchange import Exchanger
from wayfare.field.runtime.gathering import OnArrival
from wayfare.field.runtime.guide import ByExperience, Occasion
from wayfare.field.runtime.intake import Intake
from wayfare.field.runtime.messages import Finish
from wayfare.field.runtime.outbox import Outbox
from wayfare.field.runtime.radio import Radio
from wayfare.field.runtime.status import DeviceStatus, FleetStatus, metrics_of
from wayfare.field.runtime.work import Work
from wayfare.methods import SKIPPED, Upload
from wayfare.methods.privacy import Private, privacy_report, secret_noise
from wayfare.scenario import Scenario

RULE = Private(noise=0.5, clip_norm=0.1)
PRIVATE = replace(METHOD, privacy=RULE, upload=Fixed(50))
OCCASION = Occasion(round=1, contact_s=1.0, gain_per_watt=1e3, chunk_bytes=300)


def exchanger(outbox: Outbox, method: Any = PRIVATE, samples: int | None = None) -> Exchanger:
    guide = ByExperience(LINK, samples=lambda: samples, loss=lambda: 0.25)
    radio = Radio(terms=Terms(method=method, link=LINK, rounds=100, seed=7))
    client = SimpleNamespace(device_end=lambda name: None)
    return Exchanger(client, "bus", outbox, guide, radio, LAYOUT)  # type: ignore[arg-type]


def test_devices_of_one_seed_and_the_same_training_send_different_noise(tmp_path: Path) -> None:
    sent = []
    for name in ("one", "two", "two again"):
        (tmp_path / name).mkdir()
        outbox = open_outbox(tmp_path / name, method=PRIVATE)
        train(outbox, 1, 1)
        exchanger(outbox)._cut(OCCASION, 1)
        sent.append(torch.cat([outbox.state.memory, torch.zeros(1)]))
    assert not any(torch.equal(one, other) for one, other in ((sent[0], sent[1]), (sent[1], sent[2])))


def test_the_terms_of_a_fleet_draw_secret_noise_whatever_its_seed() -> None:
    work = Work(scenario=Scenario(), seed=3, scheme_name="mads + private(noise=1.0, clip_norm=0.1)")
    assert work.terms.noise is secret_noise


def test_a_release_is_on_disk_before_a_chunk_can_leave_and_stays_when_chunks_come_back(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path, method=PRIVATE)
    train(outbox, 1, 1)
    exchanger(outbox)._cut(OCCASION, 1)
    opened = outbox.open_update()
    assert opened is not None
    outbox.close()
    again = open_outbox(tmp_path, method=PRIVATE)
    assert again.state.releases == 1
    again.take_back(opened.number, [])
    # The entries that come back carry their noise. Sending them again costs nothing.
    assert again.state.releases == 1
    exchanger(again)._cut(replace(OCCASION, round=2), 2)
    assert again.state.releases == 2


@pytest.mark.parametrize(("uses_update", "releases"), [(False, 0), (True, 1)])
def test_a_skipped_contact_counts_only_if_the_rule_saw_the_update(
    uses_update: bool, releases: int, tmp_path: Path
) -> None:
    class Silent(Fixed):
        def decide(self, encounter: Any, link: Any) -> Upload:
            return SKIPPED

    Silent.uses_update = uses_update
    outbox = open_outbox(tmp_path, method=PRIVATE)
    train(outbox, 1, 1)
    exchanger(outbox, replace(PRIVATE, upload=Silent()))._cut(OCCASION, 1)
    assert outbox.state.releases == releases
    assert outbox.open_update() is None
    outbox.close()
    assert open_outbox(tmp_path, method=PRIVATE).state.releases == releases


def test_noise_is_part_of_what_a_device_has_learned(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path, method=PRIVATE)
    for round_ in (1, 2, 3):
        train(outbox, round_, round_)
        exchanger(outbox)._cut(replace(OCCASION, round=round_), round_)
        opened = outbox.open_update()
        assert opened is not None
        assert outbox.learned is not None
        torch.testing.assert_close(undelivered(outbox), torch.from_numpy(outbox.learned), atol=1e-6, rtol=0)
        outbox.take_back(opened.number, [])


async def _asked(exchanger: Exchanger) -> Any:
    heard: list[bytes] = []

    async def request(kind: str, data: bytes, headers: Any = None) -> bytes:
        heard.append(data)
        return b'{"next_update": 1, "version": 0}'

    exchanger._request = request  # type: ignore[method-assign]
    await exchanger._settle_open_update(seal=False)
    return heard[0]


def test_a_private_device_tells_neither_how_many_samples_it_holds_nor_its_loss(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path)
    assert b'"samples":12,"loss":0.25' in asyncio.run(_asked(exchanger(outbox, METHOD, samples=12)))
    private = asyncio.run(_asked(exchanger(outbox, PRIVATE, samples=12)))
    assert b"samples" not in private
    assert b"loss" not in private


def test_a_device_says_that_its_epsilon_is_spent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    method = replace(PRIVATE, privacy=replace(RULE, max_epsilon=RULE.epsilon(2) + 0.01))
    outbox = open_outbox(tmp_path, method=method)
    for round_ in (1, 2):
        assert not caplog.messages
        train(outbox, round_, round_)
        exchanger(outbox, method)._cut(replace(OCCASION, round=round_), round_)
        outbox.settle(round_, range(100))
    assert caplog.messages == ["max_epsilon is reached; the device contributes nothing new"]


def test_a_device_reports_releases_and_epsilon_and_others_report_nothing(tmp_path: Path) -> None:
    outbox = open_outbox(tmp_path, method=PRIVATE)
    train(outbox, 1, 1)
    exchanger(outbox)._cut(OCCASION, 1)
    assert privacy_report(PRIVATE, outbox.state.releases) == {"releases": 1, "epsilon": RULE.epsilon(1)}
    assert privacy_report(METHOD, outbox.state.releases) == {}


def test_the_server_shows_the_epsilon_that_a_device_reported(tmp_path: Path) -> None:
    intake = Intake(open_ledger(tmp_path), OnArrival(), LAYOUT)
    intake.finish(0, Finish(round=1, have_version=0, releases=4, epsilon=12.5).packed())
    assert (intake.counts[0].releases, intake.counts[0].epsilon) == (4, 12.5)
    assert intake.counts[1].epsilon is None
    for bad in (b'{"round":1,"epsilon":-1.0}', b'{"round":1,"epsilon":NaN}', b'{"round":1,"releases":-1}'):
        assert intake.finish(0, bad).state == "refused"
    devices = (DeviceStatus(name="bus-1", releases=4, epsilon=12.5), DeviceStatus(name="bus-2"))
    values = {"version": 1, "queued_chunks": 0, "broker_in_reach": True, "up_s": 1.0, "memory_bytes": 1}
    status = FleetStatus(fleet="harbour", devices=devices, **values)
    found = {metric.name: metric.samples for metric in metrics_of(status)}
    assert found["wayfare_device_epsilon"] == [({"device": "bus-1"}, 12.5)]
    assert found["wayfare_device_releases_total"] == [({"device": "bus-1"}, 4)]
    console = Console(width=120)
    with console.capture() as printed:
        console.print(status_table(status))
    assert "epsilon" in printed.get()
    assert "12.5" in printed.get()
    with console.capture() as printed:
        console.print(status_table(replace(status, devices=devices[1:])))
    assert "epsilon" not in printed.get()
