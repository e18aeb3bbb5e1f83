"""Fleets on disk: what is made, what is refused, and that secrets stay secret."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from wayfare.errors import InputError
from wayfare.field.fleet import Fleet, add_devices, create_fleet, load_bundle, load_fleet, remove_devices
from wayfare.field.fleet.subjects import device_of, device_permissions, server_permissions


def test_a_fleet_is_read_back_as_it_was_made(fleet: Fleet) -> None:
    assert load_fleet(fleet.folder) == fleet
    assert fleet.devices == ("bus-1", "bus-2", "drone")
    bundle = load_bundle(fleet.device_folder("bus-2"))
    assert (bundle.name, bundle.fleet, bundle.url) == ("bus-2", "wayfare", "tls://localhost:4222")
    assert bundle.number == 1
    server = load_bundle(fleet.server_folder)
    assert (server.name, server.number, server.devices) == ("mes", None, fleet.devices)


def test_secrets_are_readable_to_their_owner_alone(fleet: Fleet) -> None:
    secrets = [file for file in fleet.folder.rglob("*") if file.suffix in (".key", ".seed")]
    assert len(secrets) == 2 + 2 * 4
    assert {stat.S_IMODE(file.stat().st_mode) for file in secrets} == {0o600}


def test_no_two_participants_share_a_secret_and_none_lies_in_a_public_file(fleet: Fleet) -> None:
    secrets = [file.read_text().strip() for file in fleet.folder.rglob("*") if file.suffix in (".key", ".seed")]
    assert len(set(secrets)) == len(secrets)
    open_files = [file for file in fleet.folder.rglob("*") if file.is_file() and file.suffix not in (".key", ".seed")]
    assert not any(secret in file.read_text() for file in open_files for secret in secrets)


def test_the_certificate_of_the_broker_is_good_for_the_hosts_asked_for_and_no_other(tmp_path: Path) -> None:
    hosts = ["depot.example", "10.0.0.7"]
    made = create_fleet(tmp_path / "fleet", devices=["a"], host=hosts[0], more_hosts=hosts[1:])
    authority = x509.load_pem_x509_certificate((made.folder / "ca.pem").read_bytes())
    certificate = x509.load_pem_x509_certificate((made.broker_folder / "server.pem").read_bytes())
    policy = PolicyBuilder().store(Store([authority]))
    for name in (x509.DNSName("depot.example"), x509.DNSName("localhost")):
        policy.build_server_verifier(name).verify(certificate, [])
    with pytest.raises(x509.verification.VerificationError):
        policy.build_server_verifier(x509.DNSName("elsewhere.example")).verify(certificate, [])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "127.0.0.1"]
    client = x509.load_pem_x509_certificate((made.device_folder("a") / "client.pem").read_bytes())
    policy.build_client_verifier().verify(client, [])
    with pytest.raises(x509.verification.VerificationError):
        policy.build_client_verifier().verify(certificate, [])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"devices": []}, "devices: a fleet needs at least one"),
        ({"devices": ["a", "a"]}, "device = 'a': already exists"),
        ({"devices": ["mes"]}, "device = 'mes': is the name of the server"),
        ({"devices": ["up.>"]}, "device = 'up.>': must be 1 to 32 lowercase letters, digits and hyphens"),
        ({"devices": ["../../etc"]}, "must be 1 to 32 lowercase letters"),
        ({"devices": ["a" * 33]}, "must be 1 to 32 lowercase letters"),
        ({"port": 0}, "port = 0: must be 1 to 65535"),
        ({"host": "tls://x"}, "host = 'tls://x': must be a host name or an address"),
        ({"valid_days": 0}, "valid_days = 0: must be 1 to 36500"),
        ({"name": "My Fleet"}, "name = 'My Fleet': must be"),
    ],
)
def test_what_cannot_be_a_fleet_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, wrong: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as raised:
        create_fleet(tmp_path / "fleet", **{"devices": ["a"], **wrong})
    assert message in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_keys_are_never_overwritten(fleet: Fleet) -> None:
    before = (fleet.folder / "ca.key").read_bytes()
    with pytest.raises(InputError, match="already exists; Wayfare never overwrites a fleet's keys"):
        create_fleet(fleet.folder, devices=["a"])
    assert (fleet.folder / "ca.key").read_bytes() == before


def test_devices_join_and_leave(tmp_path: Path) -> None:
    made = create_fleet(tmp_path / "fleet", devices=["a", "b"])
    larger = add_devices(made, ["c"])
    assert load_fleet(made.folder).devices == larger.devices == ("a", "b", "c")
    assert load_bundle(larger.device_folder("c")).name == "c"
    smaller = remove_devices(larger, ["a"])
    # Numbers stay: the server's records go by them.
    assert load_fleet(made.folder).devices == smaller.devices == ("a", "b", "c")
    assert load_bundle(made.server_folder).devices == ("a", "b", "c")
    assert not (made.folder / "devices" / "a").exists()
    users = (made.broker_folder / "users.conf").read_text()
    assert made.public_keys["a"] not in users
    assert made.public_keys["b"] in users
    with pytest.raises(InputError, match="device = 'a': not in this fleet"):
        remove_devices(smaller, ["a"])
    again = add_devices(smaller, ["a", "d"])
    assert again.devices == ("a", "b", "c", "d")
    assert [load_bundle(again.device_folder(name)).number for name in again.devices] == [0, 1, 2, 3]
    assert again.public_keys["a"] != made.public_keys["a"]


def test_a_damaged_folder_is_named_with_what_is_wrong(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not a fleet: it has no fleet\.json"):
        load_fleet(tmp_path)
    with pytest.raises(InputError, match=r"is not a bundle: it has no bundle\.json"):
        load_bundle(fleet.folder)
    (tmp_path / "fleet.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        load_fleet(tmp_path)
    (tmp_path / "fleet.json").write_text(json.dumps({"name": "x", "url": "y", "public_keys": {"../x": "k"}}))
    with pytest.raises(InputError, match=r"device = '../x': must be 1 to 32"):
        load_fleet(tmp_path)
    (tmp_path / "bundle.json").write_text(json.dumps({"name": "a", "fleet": "x", "url": "y"}))
    with pytest.raises(InputError, match=r"ca\.pem: cannot be read"):
        load_bundle(tmp_path)


def test_subjects_tell_the_device_and_answers_stay_with_it() -> None:
    assert device_of("up.bus-1.chunk.7") == "bus-1"
    for wrong in ("down.bus-1.x", "up", "up.*.x", "up..x"):
        with pytest.raises(InputError, match="must be up"):
            device_of(wrong)
    assert device_permissions("bus-1").publish == ("up.bus-1.>",)
    assert server_permissions().publish_never == ("up.>",)
