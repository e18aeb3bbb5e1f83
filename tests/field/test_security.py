"""Nobody else gets in, with the real broker: no key, a wrong key, other subjects, another fleet, no encryption."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import ssl
import warnings
from pathlib import Path

import nats
import nats.errors
import pytest

from tests.field.brokers import finish
from wayfare.errors import LinkLostError, RefusedError
from wayfare.field.fleet import Bundle, Fleet, add_devices, create_fleet, load_bundle, remove_devices
from wayfare.field.fleet.certificates import create_key
from wayfare.field.rig.broker import Broker
from wayfare.field.runtime.connect import FieldClient, LinkSettings, connect

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def other_fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return create_fleet(tmp_path_factory.mktemp("other") / "fleet", devices=["bus-1"])


def altered(bundle: Bundle, folder: Path, **files: Path | bytes) -> Bundle:
    """A copy of a bundle with some of its files replaced, dots in names written as underscores."""
    shutil.copytree(bundle.folder, folder)
    for name, content in files.items():
        file = folder / name.replace("_", ".")
        file.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    return load_bundle(folder)


async def refusal(bundle: Bundle, broker: Broker) -> str:
    with pytest.raises(RefusedError) as raised:
        await connect(bundle, url=broker.url, wait_s=20)
    return str(raised.value)


def plain_error(broker: Broker, **options: object) -> str:
    """What a client that is not ours meets. It leaves its line open where it is refused, which is swept up here."""

    async def try_it() -> str:
        with pytest.raises((nats.errors.Error, OSError)) as raised:
            await nats.connect(broker.url, allow_reconnect=False, error_cb=_ignore, **options)
        return f"{type(raised.value).__name__}: {raised.value}"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        told = finish(try_it())
        gc.collect()
    return told


async def _ignore(error: Exception) -> None:
    pass


def context_of(bundle: Bundle, *, with_certificate: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=bundle.folder / "ca.pem")
    if with_certificate:
        context.load_cert_chain(bundle.folder / "client.pem", bundle.folder / "client.key")
    return context


def test_without_a_key_a_certificate_of_the_fleet_is_not_enough(fleet: Fleet, broker: Broker) -> None:
    bundle = load_bundle(fleet.device_folder("bus-1"))
    assert "Authorization Violation" in plain_error(broker, tls=context_of(bundle))


def test_without_a_certificate_a_key_of_the_fleet_is_not_enough(fleet: Fleet, broker: Broker) -> None:
    bundle = load_bundle(fleet.device_folder("bus-1"))
    seed = (bundle.folder / "user.seed").read_text().strip()
    told = plain_error(broker, tls=context_of(bundle, with_certificate=False), nkeys_seed_str=seed)
    # The broker closes the line; its reason may be lost with it.
    assert told.split(":")[0] in ("SSLError", "ConnectionResetError", "BrokenPipeError", "OSError")


def test_a_wrong_key_is_refused(fleet: Fleet, broker: Broker, tmp_path: Path) -> None:
    bundle = altered(load_bundle(fleet.device_folder("bus-1")), tmp_path / "b", user_seed=create_key()[0])
    assert "bus-1 at " in (message := finish(refusal(bundle, broker)))
    assert "the broker does not know this key" in message


def test_a_certificate_of_another_fleet_is_refused(
    fleet: Fleet, other_fleet: Fleet, broker: Broker, tmp_path: Path
) -> None:
    theirs = load_bundle(other_fleet.device_folder("bus-1"))
    # With our authority, so that it trusts our broker, and even with a key of ours.
    bundle = altered(
        load_bundle(fleet.device_folder("bus-1")),
        tmp_path / "b",
        client_pem=theirs.folder / "client.pem",
        client_key=theirs.folder / "client.key",
    )
    assert "the broker does not accept this certificate" in finish(refusal(bundle, broker))


def test_a_broker_of_another_fleet_is_refused_by_the_device(other_fleet: Fleet, broker: Broker) -> None:
    message = finish(refusal(load_bundle(other_fleet.device_folder("bus-1")), broker))
    assert "the broker's certificate is not from this fleet" in message


def test_a_broker_under_another_name_is_refused_by_the_device(fleet: Fleet, broker: Broker, tmp_path: Path) -> None:
    bundle = altered(load_bundle(fleet.device_folder("bus-1")), tmp_path / "b")
    elsewhere = Bundle(
        folder=bundle.folder, fleet_id="0", fleet=bundle.fleet, name=bundle.name, url="tls://elsewhere.example:4222"
    )
    assert "the broker's certificate is not from this fleet" in finish(refusal(elsewhere, broker))


def test_plaintext_is_refused_by_the_broker(broker: Broker) -> None:
    async def answer_to_plain_words() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        assert json.loads((await reader.readline()).removeprefix(b"INFO "))["tls_required"]
        writer.write(b'CONNECT {"verbose":true}\r\nPING\r\nPUB up.bus-1.x 1\r\nx\r\n')
        answer = await reader.read()
        writer.close()
        return answer

    assert b"PONG" not in (answer := finish(answer_to_plain_words()))
    assert b"+OK" not in answer


def test_a_broker_that_does_not_encrypt_never_sees_a_key(fleet: Fleet) -> None:
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","auth_required":true,"nonce":"abc","max_payload":1000,"headers":true}\r\n')
        heard.extend(await reader.read())
        writer.close()

    async def meet_it() -> None:
        async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(RefusedError, match="does not encrypt; the client sends it no key"):
                await connect(load_bundle(fleet.device_folder("bus-1")), url=f"tls://127.0.0.1:{port}", wait_s=10)

    finish(meet_it())
    assert heard == b""


async def _join(fleet: Fleet, broker: Broker, name: str) -> FieldClient:
    folder = fleet.server_folder if name == "mes" else fleet.device_folder(name)
    return await connect(load_bundle(folder), url=broker.url, wait_s=10)


def test_another_devices_subjects_and_the_store_are_out_of_bounds(fleet: Fleet, broker: Broker) -> None:
    async def try_everything() -> list[str]:
        server, device = await _join(fleet, broker, "mes"), await _join(fleet, broker, "bus-1")
        await server.jetstream().add_stream(name="up", subjects=["up.*.chunk.>"])
        overheard = await server.subscribe(">")
        await server.confirm()
        jetstream = device.jetstream()
        assert (await jetstream.publish("up.bus-1.chunk.1", b"mine")).seq == 1
        with pytest.raises(RefusedError, match=r'denied bus-1: permissions violation for publish to "up\.bus-2\.chunk'):
            await jetstream.publish("up.bus-2.chunk.1", b"not mine", timeout=30)
        for subject in ("applied.bus-1", "down.bus-1.model", "down.bus-2.model", "_INBOX_bus-2.x", "up.bus-1", "x"):
            await device.publish(subject, b"forged")
            with pytest.raises(RefusedError, match="publish"):
                await device.confirm()
        for subject in (">", "up.>", "up.*.x", "applied.bus-2", "applied.*", "down.bus-2.>", "_INBOX_bus-2.>", "$JS.>"):
            await device.subscribe(subject)
            with pytest.raises(RefusedError, match="subscription"):
                await device.confirm()
        with pytest.raises(RefusedError, match=r"\$js\.api"):
            await jetstream.stream_info("up")
        for forged in ("up.bus-1.chunk.2", "up.drone.x"):
            await server.publish(forged, b"the server does not speak for a device")
        with pytest.raises(RefusedError, match="publish"):
            await server.confirm()
        assert (await server.jetstream().stream_info("up")).state.messages == 1
        heard = []
        while overheard.pending_msgs:
            heard.append((await overheard.next_msg()).subject)
        await server.close()
        await device.close()
        return [subject for subject in heard if not subject.startswith(("$JS", "_INBOX_mes", "_R_"))]

    assert finish(try_everything()) == ["up.bus-1.chunk.1"]


def test_a_device_that_left_is_thrown_out_and_one_that_joined_gets_in(tmp_path: Path) -> None:
    fleet = create_fleet(tmp_path / "fleet", devices=["a", "b"])

    async def changes() -> None:
        with Broker(fleet, port=0) as broker:
            settings = LinkSettings(longest_retry_s=0.2)
            bundle = load_bundle(fleet.device_folder("a"))
            kept = altered(bundle, tmp_path / "kept")
            client = await connect(kept, url=broker.url, settings=settings)
            smaller = remove_devices(fleet, ["a"])
            broker.reload()
            await client.disconnected.wait()
            while not client.refusals:
                await asyncio.sleep(0.01)
            assert "does not know this key" in client.refusals[-1]
            with pytest.raises((LinkLostError, RefusedError)):
                await client.request("up.a.x")
            await client.close()
            assert "does not know this key" in await refusal(kept, broker)
            added = add_devices(smaller, ["c"])
            broker.reload()
            newcomer = await connect(load_bundle(added.device_folder("c")), url=broker.url, settings=settings)
            await newcomer.confirm()
            await newcomer.close()

    finish(changes())
