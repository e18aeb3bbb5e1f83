"""A fleet on disk: an authority, the broker's folder, and a bundle for the server and for every device.

::

    FLEET/  fleet.json               names, address, public keys
            ca.pem ca.key            the authority; its key stays here
            broker/                  nats.conf users.conf server.pem server.key ca.pem     -> the broker's host
            mes/                     a bundle                                              -> the server's host
            devices/<device>/        a bundle                                              -> that device

            systemd/                 unit files for all three, each with its own file of options

    bundle: bundle.json ca.pem client.pem client.key user.seed

A bundle gives its holder the identity of that device. The fleet folder contains all identities: keep it off devices.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from wayfare.errors import InputError
from wayfare.field.fleet.broker_config import CONFIG_NAME, USERS_NAME, Limits, config_text, users_text
from wayfare.field.fleet.needs import need_packages
from wayfare.field.fleet.subjects import SERVER_NAME, check_name, device_permissions, server_permissions
from wayfare.files import make_folder_atomically, write_atomically, writing

FLEET_NAME, BUNDLE_NAME = "fleet.json", "bundle.json"
DEFAULT_PORT = 4222
VERSION = 1
# The proxy that emulates contacts, and everything on one machine, connect to these names.
_LOCAL_HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet created by ``wayfare field init``.

    A device's position is its number in plans and in the server's records. A removed device keeps it, without a key.
    """

    folder: Path
    name: str
    url: str
    public_keys: Mapping[str, str | None]  # of the server and of every device, in the order of joining
    connections_per_device: int = 16

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices that ever joined, by number."""
        return tuple(name for name in self.public_keys if name != SERVER_NAME)

    @property
    def broker_folder(self) -> Path:
        return self.folder / "broker"

    @property
    def server_folder(self) -> Path:
        return self.folder / SERVER_NAME

    def device_folder(self, device: str) -> Path:
        if device == SERVER_NAME or not self.public_keys.get(device):
            raise InputError(f"device = {device!r}: not in this fleet")
        return self.folder / "devices" / device


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Everything that one participant needs to connect."""

    folder: Path
    fleet: str
    fleet_id: str  # tells fleets of the same name apart
    name: str
    url: str
    number: int | None = None  # of a device in the fleet
    devices: tuple[str, ...] = ()  # for the server: the devices at the time, by number


def create_fleet(
    folder: Path,
    *,
    devices: Sequence[str],
    host: str = "localhost",
    port: int = DEFAULT_PORT,
    more_hosts: Sequence[str] = (),
    name: str = "wayfare",
    limits: Limits | None = None,
    valid_days: int = 3650,
) -> Fleet:
    """Create a fleet's keys, certificates, broker configuration and bundles. The folder appears when it is complete."""
    need_packages()
    from wayfare.field.fleet.certificates import create_authority, sign_server

    check_name("name", name)
    _check_devices(devices, ())
    if not 1 <= port <= 65535:
        raise InputError(f"port = {port}: must be 1 to 65535")
    if not 1 <= valid_days <= 36500:
        raise InputError(f"valid_days = {valid_days}: must be 1 to 36500")
    hosts = list(dict.fromkeys([host, *more_hosts, *_LOCAL_HOSTS]))
    for each in hosts:
        _check_host(each)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: already exists; Wayfare never overwrites a fleet's keys")
    with writing(folder, "cannot be written"), make_folder_atomically(folder, mode=0o700) as draft:
        authority = create_authority(name, valid_days)
        _write(draft / "ca.pem", authority.certificate)
        _write(draft / "ca.key", authority.key, secret=True)
        broker = draft / "broker"
        broker.mkdir()
        server = sign_server(authority, f"{name}-broker", hosts, valid_days)
        _write(broker / "ca.pem", authority.certificate)
        _write(broker / "server.pem", server.certificate)
        _write(broker / "server.key", server.key, secret=True)
        _write(broker / CONFIG_NAME, config_text(name, port, limits or Limits()))
        fleet = Fleet(
            folder=draft,
            name=name,
            url=f"tls://{_in_url(host)}:{port}",
            public_keys={},
            connections_per_device=(limits or Limits()).connections_per_device,
        )
        fleet = _join(fleet, [SERVER_NAME, *devices], valid_days)
        (draft / "systemd").mkdir()
        for unit in files("wayfare.field.fleet").joinpath("systemd").iterdir():
            _write(draft / "systemd" / unit.name, unit.read_text(encoding="utf-8"))
    return replace(fleet, folder=folder)


def add_devices(fleet: Fleet, devices: Sequence[str], *, valid_days: int = 3650) -> Fleet:
    """Create bundles for more devices. The broker accepts them after it reloads its configuration."""
    need_packages()
    _check_devices(devices, [name for name, key in fleet.public_keys.items() if key])
    return _join(fleet, devices, valid_days)


def remove_devices(fleet: Fleet, devices: Sequence[str]) -> Fleet:
    """Revoke devices. The broker rejects them after it reloads its configuration."""
    folders = [fleet.device_folder(device) for device in devices]
    left = {name: None if name in devices else key for name, key in fleet.public_keys.items()}
    _write_registry(smaller := replace(fleet, public_keys=left))
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return smaller


def load_fleet(folder: Path) -> Fleet:
    content = _read(folder / FLEET_NAME, "a fleet")
    keys = content.get("public_keys")
    if not isinstance(keys, dict) or not all(key is None or isinstance(key, str) for key in keys.values()):
        raise InputError(f"{folder / FLEET_NAME}: public_keys must have a key for every participant")
    for name in keys:
        check_name(f"{folder / FLEET_NAME}: device", name)
    connections = content.get("connections_per_device", Limits().connections_per_device)
    if not isinstance(connections, int) or connections < 1:
        raise InputError(f"{folder / FLEET_NAME}: connections_per_device = {connections!r}: must be at least 1")
    return Fleet(
        folder=folder,
        name=_text(folder, content, "name"),
        url=_text(folder, content, "url"),
        public_keys=keys,
        connections_per_device=connections,
    )


def load_bundle(folder: Path) -> Bundle:
    content = _read(folder / BUNDLE_NAME, "a bundle")
    bundle = Bundle(
        folder=folder,
        fleet=_text(folder, content, "fleet"),
        fleet_id=content.get("fleet_id") or _id_of(folder),
        name=check_name(f"{folder / BUNDLE_NAME}: name", _text(folder, content, "name")),
        url=_text(folder, content, "url"),
        number=content.get("number"),
        devices=tuple(content.get("devices", ())),
    )
    if bundle.number is not None and (not isinstance(bundle.number, int) or bundle.number < 0):
        raise InputError(f"{folder / BUNDLE_NAME}: number = {bundle.number!r}: must be 0 or more")
    for device in bundle.devices:
        check_name(f"{folder / BUNDLE_NAME}: device", device)
    for file in ("ca.pem", "client.pem", "client.key", "user.seed"):
        if not os.access(folder / file, os.R_OK):
            raise InputError(
                f"{folder / file}: cannot be read; a bundle is ca.pem, client.pem, client.key and user.seed"
            )
    return bundle


def _join(fleet: Fleet, names: Sequence[str], valid_days: int) -> Fleet:
    from wayfare.field.fleet.certificates import Pair, create_key, sign_client

    authority = Pair((fleet.folder / "ca.pem").read_bytes(), (fleet.folder / "ca.key").read_bytes())
    public_keys = dict(fleet.public_keys)
    for name in names:
        folder = fleet.folder / (SERVER_NAME if name == SERVER_NAME else f"devices/{name}")
        folder.mkdir(parents=True, mode=0o700)
        (seed, public_key), pair = create_key(), sign_client(authority, name, valid_days)
        _write(folder / "ca.pem", authority.certificate)
        _write(folder / "client.pem", pair.certificate)
        _write(folder / "client.key", pair.key, secret=True)
        _write(folder / "user.seed", seed + b"\n", secret=True)
        public_keys[name] = public_key
        if name != SERVER_NAME:
            # The server joined first and has no number.
            number = list(public_keys).index(name) - 1
            _write_json(folder / BUNDLE_NAME, _about(fleet, name) | {"number": number})
    _write_registry(larger := replace(fleet, public_keys=public_keys))
    return larger


def _about(fleet: Fleet, name: str) -> dict[str, Any]:
    # A renewal of the certificates does not make another fleet.
    known = fleet.server_folder / BUNDLE_NAME
    fleet_id = load_bundle(fleet.server_folder).fleet_id if known.exists() else _id_of(fleet.folder)
    return {"fleet": fleet.name, "fleet_id": fleet_id, "name": name, "url": fleet.url}


def _id_of(folder: Path) -> str:
    """The digest of the fleet's first authority, which every bundle has."""
    try:
        return hashlib.sha256((folder / "ca.pem").read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise InputError(f"{folder / 'ca.pem'}: cannot be read: {error.strerror}") from None


def _write_registry(fleet: Fleet) -> None:
    permissions = {
        name: (key, server_permissions() if name == SERVER_NAME else device_permissions(name))
        for name, key in fleet.public_keys.items()
        if key
    }
    _write_json(fleet.server_folder / BUNDLE_NAME, _about(fleet, SERVER_NAME) | {"devices": list(fleet.devices)})
    content = {"version": VERSION, "name": fleet.name, "url": fleet.url, "public_keys": dict(fleet.public_keys)}
    content["connections_per_device"] = fleet.connections_per_device
    _write(fleet.broker_folder / USERS_NAME, users_text(permissions, fleet.connections_per_device))
    _write_json(fleet.folder / FLEET_NAME, content)


def _check_devices(devices: Sequence[str], there: Sequence[str]) -> None:
    if not devices:
        raise InputError("devices: a fleet needs at least one")
    for device in devices:
        check_name("device", device)
        if device == SERVER_NAME:
            raise InputError(f"device = {device!r}: is the name of the server")
        if device in there or devices.count(device) > 1:
            raise InputError(f"device = {device!r}: already exists")


def _check_host(host: str) -> None:
    if not host or any(sign.isspace() or sign in "/@[]\"'" for sign in host) or not host.isascii():
        raise InputError(f"host = {host!r}: must be a host name or an address, without a port")


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _read(file: Path, what: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{file.parent}: is not {what}: it has no {file.name}") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{file}: is not JSON") from None
    if not isinstance(content, dict) or content.get("version", VERSION) != VERSION:
        raise InputError(f"{file}: is not {what} that this version of Wayfare can read")
    return content


def _text(folder: Path, content: Mapping[str, Any], field: str) -> str:
    value = content.get(field)
    if not isinstance(value, str) or not value:
        raise InputError(f"{folder}: {field} = {value!r}: must be a string")
    return value


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    _write(file, json.dumps(content, indent=2) + "\n")


def _write(file: Path, content: bytes | str, *, secret: bool = False) -> None:
    # Without fsync: a fleet of a thousand devices would wait for the disk ten thousand times.
    write_atomically(file, content, mode=0o600 if secret else 0o644, durable=False)
