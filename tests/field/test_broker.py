"""The broker as a process: ready when it says so, the same port again, clear words when it cannot start."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.field.brokers import finish, needs_broker
from wayfare.errors import FieldError, UnavailableError
from wayfare.field.fleet import Fleet, create_fleet, load_bundle, needs
from wayfare.field.fleet.broker_config import Limits
from wayfare.field.rig.broker import Broker
from wayfare.field.runtime.connect import connect

pytestmark = pytest.mark.system


def test_it_keeps_port_and_store_over_stops_and_kills(fleet: Fleet, broker: Broker) -> None:
    port = broker.port

    async def stored(add: bool) -> int:
        server = await connect(load_bundle(fleet.server_folder), url=broker.url, wait_s=10)
        jetstream = server.jetstream()
        if add:
            await jetstream.add_stream(name="kept", subjects=["down.>"])
            await jetstream.publish("down.bus-1.x", b"kept")
        state = (await jetstream.stream_info("kept")).state
        await server.close()
        return state.messages

    assert finish(stored(True)) == 1
    broker.restart()
    assert (broker.port, finish(stored(False))) == (port, 1)
    process = broker.process_id
    broker.kill()
    assert not broker.running
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    broker.start()
    assert (broker.port, finish(stored(False))) == (port, 1)


def test_a_port_that_is_taken_is_said(fleet: Fleet, tmp_path: Path) -> None:
    needs_broker()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(FieldError, match="address already in use"):
            Broker(fleet, store=tmp_path, port=taken.getsockname()[1]).start()


def test_a_store_that_could_fill_the_disk_is_refused(tmp_path: Path) -> None:
    needs_broker()
    fleet = create_fleet(tmp_path / "fleet", devices=["a"], limits=Limits(store_bytes=1 << 60))
    with pytest.raises(FieldError, match=r"max_file_store = 1,152,921,504,606,846,976 bytes .* must be well below"):
        Broker(fleet, port=0).start()


def test_a_broker_that_ends_by_itself_is_noticed(broker: Broker) -> None:
    os.kill(broker.process_id, signal.SIGKILL)
    os.waitid(os.P_PID, broker._process.pid, os.WEXITED | os.WNOWAIT)
    assert not broker.running
    broker.start()
    assert broker.running


def test_without_nats_server_the_message_says_how_to_get_it(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(needs, "_SYSTEM_PROGRAMS", Path("/nowhere"))
    with pytest.raises(UnavailableError, match="apt-get install nats-server"):
        Broker(fleet)


def test_without_its_packages_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name == "nkeys" else object())
    with pytest.raises(UnavailableError, match=r"needs nkeys: pip install 'wayfare\[field\]'"):
        needs.need_packages()
