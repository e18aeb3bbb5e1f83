"""Seals: a broker in the wrong hands can drop messages, but neither alter nor invent them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.field.brokers import finish
from tests.field.parts import Told, train
from tests.field.test_exchange import Site
from wayfare.codec.errors import WireError
from wayfare.errors import InputError
from wayfare.field.fleet import Fleet, create_fleet
from wayfare.field.rig.broker import Broker
from wayfare.field.runtime.seals import DeviceEnd, Seals, ServerEnd, opened


@pytest.fixture(scope="module")
def other_fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return create_fleet(tmp_path_factory.mktemp("other") / "fleet", devices=["bus-1"])


@pytest.fixture
def device(fleet: Fleet) -> DeviceEnd:
    return DeviceEnd(Seals(fleet.device_folder("bus-1")), "bus-1")


@pytest.fixture
def server(fleet: Fleet, tmp_path: Path) -> ServerEnd:
    return ServerEnd(Seals(fleet.server_folder), tmp_path)


def test_questions_and_answers_arrive_as_they_were_sent(
    device: DeviceEnd, server: ServerEnd, fleet: Fleet, tmp_path: Path
) -> None:
    with pytest.raises(WireError, match="has not shown its certificate"):
        server.question("bus-1", "chunk", device.sealed("chunk", b"early"))
    with pytest.raises(WireError, match="has not shown its certificate"):
        device.mark(server.mark("bus-1", b"early"))
    asked = device.sealed("ask", b"which?")
    assert server.question("bus-1", "ask", asked) == b"which?"
    assert device.answer("ask", asked, server.answer("bus-1", "ask", asked, b"these")) == b"these"
    # From now on both know the other's key; the server also after a restart.
    for end in (server, ServerEnd(Seals(fleet.server_folder), tmp_path)):
        assert end.question("bus-1", "chunk", device.sealed("chunk", b"entries")) == b"entries"
    assert device.mark(server.mark("bus-1", b"recorded")) == b"recorded"
    assert len(device.sealed("chunk", b"")) < 90


def test_nothing_can_be_altered_moved_or_repeated_as_an_answer(device: DeviceEnd, server: ServerEnd) -> None:
    asked = device.sealed("ask", b"which?")
    answered = server.answer("bus-1", "ask", asked, b"these")
    server.question("bus-1", "ask", asked)
    device.answer("ask", asked, answered)
    chunk = device.sealed("chunk", b"entries")
    for place in range(len(chunk)):
        altered = bytearray(chunk)
        altered[place] ^= 1
        with pytest.raises(WireError):
            server.question("bus-1", "chunk", bytes(altered))
    for device_name, kind in (("bus-1", "finish"), ("bus-2", "chunk"), ("bus-2", "ask")):
        with pytest.raises(WireError):
            server.question(device_name, kind, chunk)
    for wrong in (bytes(answered) + b"!", answered[:-1], b"", server.answer("bus-2", "ask", asked, b"these")):
        with pytest.raises(WireError):
            device.answer("ask", asked, wrong)
    # The same question again has another number, so the old answer does not fit.
    with pytest.raises(WireError, match="seal is not that of the sender"):
        device.answer("ask", device.sealed("ask", b"which?"), answered)
    with pytest.raises(WireError):
        device.mark(server.mark("bus-2", b"recorded"))


def test_a_device_cannot_speak_for_another_or_for_the_server(fleet: Fleet, server: ServerEnd) -> None:
    thief = Seals(fleet.device_folder("bus-2"))
    forged = thief.seal("up.bus-1.ask", b"seal it", introduce=True)
    with pytest.raises(WireError, match="not for bus-1"):
        server.question("bus-1", "ask", forged)
    victim = DeviceEnd(Seals(fleet.device_folder("bus-1")), "bus-1")
    asked = victim.sealed("ask", b"which?")
    with pytest.raises(WireError, match="not for mes"):
        victim.answer("ask", asked, thief.seal("down.bus-1.ask", b"all", question=asked, introduce=True))


def test_certificates_of_another_fleet_and_broken_bundles_are_rejected(
    other_fleet: Fleet, server: ServerEnd, tmp_path: Path
) -> None:
    stranger = DeviceEnd(Seals(other_fleet.device_folder("bus-1")), "bus-1")
    with pytest.raises(WireError, match="not from this fleet"):
        server.question("bus-1", "ask", stranger.sealed("ask", b"hello"))
    with pytest.raises(InputError, match="invalid certificates"):
        Seals(tmp_path)
    with pytest.raises(WireError, match="has no seal"):
        opened(b"", "x", b"")


@pytest.mark.system
def test_messages_without_a_seal_change_nothing_and_are_not_charged_to_the_device(
    fleet: Fleet, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a broker could publish under the name of a device."""
    site = Site(fleet, broker, tmp_path)
    sealed = DeviceEnd.sealed

    async def story() -> None:
        async with site.server() as intake:
            train(site.outbox, 1, 1)
            await site.device(Told())
            version = intake.ledger.version
            # The broker alters every other chunk on its way.
            count = [0]

            def altered(self: DeviceEnd, kind: str, data: bytes) -> bytes:
                count[0] += kind == "chunk"
                changes = kind == "chunk" and count[0] % 2 == 1 and count[0] < 6
                return sealed(self, kind, data)[:-1] + b"?" if changes else sealed(self, kind, data)

            monkeypatch.setattr(DeviceEnd, "sealed", altered)
            train(site.outbox, 2, 2)
            await site.device(Told())
            assert intake.counts[0].refused == 0
            assert intake.ledger.version > version

    finish(story())
    site.check()
