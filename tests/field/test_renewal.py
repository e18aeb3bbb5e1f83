"""Certificates renewed while the fleet runs, with the real broker: two authorities overlap."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.field.brokers import finish, needs_broker
from wayfare.errors import InputError, RefusedError
from wayfare.field.fleet import Bundle, Fleet, add_devices, create_fleet, load_bundle
from wayfare.field.fleet.renewal import begin_renewal, finish_renewal
from wayfare.field.rig.broker import Broker
from wayfare.field.runtime.connect import connect
from wayfare.field.runtime.seals import DeviceEnd, Seals, ServerEnd

pytestmark = pytest.mark.system


def copied(folder: Path, target: Path) -> Bundle:
    """A bundle as it was copied to its machine."""
    shutil.copytree(folder, target)
    return load_bundle(target)


async def reaches(bundle: Bundle, broker: Broker) -> None:
    client = await connect(bundle, url=broker.url, wait_s=10)
    await client.confirm()
    await client.close()


def talk(device: Bundle, server: Bundle, state: Path) -> None:
    """A question, its answer and a chunk, each with a seal."""
    ours, theirs = DeviceEnd(Seals(device.folder), device.name), ServerEnd(Seals(server.folder), state)
    asked = ours.sealed("ask", b"?")
    assert theirs.question(device.name, "ask", asked) == b"?"
    assert ours.answer("ask", asked, theirs.answer(device.name, "ask", asked, b"!")) == b"!"
    assert theirs.question(device.name, "chunk", ours.sealed("chunk", b"x")) == b"x"


def test_certificates_are_renewed_without_a_moment_in_which_a_device_is_out(tmp_path: Path) -> None:
    needs_broker()
    fleet: Fleet = create_fleet(tmp_path / "fleet", devices=["a", "b"])
    old = copied(fleet.device_folder("a"), tmp_path / "old")
    identity = old.fleet_id

    async def story(broker: Broker) -> None:
        begin_renewal(fleet)
        broker.reload()
        server = copied(fleet.server_folder, tmp_path / "server")
        renewed = copied(fleet.device_folder("a"), tmp_path / "renewed")
        for bundle in (old, renewed, server):
            await reaches(bundle, broker)
        for bundle in (old, renewed):
            talk(bundle, server, tmp_path / "state")
        assert load_bundle(add_devices(fleet, ["c"]).device_folder("c")).fleet_id == identity
        with pytest.raises(InputError, match="has begun already"):
            begin_renewal(fleet)
        finish_renewal(fleet)
        broker.reload()
        latest = copied(fleet.server_folder, tmp_path / "latest")
        for bundle in (renewed, latest):
            await reaches(bundle, broker)
        talk(renewed, latest, tmp_path / "state")
        with pytest.raises(RefusedError):
            await reaches(old, broker)
        with pytest.raises(InputError, match="no renewal has begun"):
            finish_renewal(fleet)

    with Broker(fleet, port=0) as broker:
        finish(story(broker))
