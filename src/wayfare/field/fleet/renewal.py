"""New certificates for a running fleet, in two steps, during which the old and the new authority overlap.

1. ``begin_renewal``: a new authority. Broker and server trust both, and keep their certificates. Every device gets a
   certificate of the new authority and trusts both. So devices with old and with new bundles can exchange.
2. ``finish_renewal``, when every device has its new bundle: broker and server get certificates of the new authority,
   and nobody trusts the old one any more.

The keys by which the broker knows its users do not change.
"""

from __future__ import annotations

from pathlib import Path

from cryptography import x509

from wayfare.errors import InputError
from wayfare.field.fleet.certificates import Pair, create_authority, sign_client, sign_server
from wayfare.field.fleet.on_disk import Fleet
from wayfare.field.fleet.subjects import SERVER_NAME
from wayfare.files import write_atomically


def begin_renewal(fleet: Fleet, *, valid_days: int = 3650) -> None:
    old = (fleet.folder / "ca.pem").read_bytes()
    if len(x509.load_pem_x509_certificates(old)) > 1:
        raise InputError(f"{fleet.folder}: a renewal has begun already; finish it first")
    authority = create_authority(fleet.name, valid_days)
    # The first one signs; all are trusted.
    both = authority.certificate + old
    for folder in (fleet.broker_folder, fleet.server_folder):
        _write(folder / "ca.pem", both)
    for device in _devices(fleet):
        _renew(fleet.device_folder(device), device, authority, both, valid_days)
    _write(fleet.folder / "ca.key", authority.key, secret=True)
    _write(fleet.folder / "ca.pem", both)


def finish_renewal(fleet: Fleet, *, valid_days: int = 3650) -> None:
    """Drop the old authority. A device without its new bundle can no longer connect."""
    known = (fleet.folder / "ca.pem").read_bytes()
    certificates = known.split(b"-----END CERTIFICATE-----\n")
    if len(certificates) < 3:
        raise InputError(f"{fleet.folder}: no renewal has begun")
    newest = certificates[0] + b"-----END CERTIFICATE-----\n"
    authority = Pair(newest, (fleet.folder / "ca.key").read_bytes())
    before = x509.load_pem_x509_certificate((fleet.broker_folder / "server.pem").read_bytes())
    names = before.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [str(name.value) for name in names]
    server = sign_server(authority, f"{fleet.name}-broker", hosts, valid_days)
    _write(fleet.broker_folder / "server.pem", server.certificate)
    _write(fleet.broker_folder / "server.key", server.key, secret=True)
    _write(fleet.broker_folder / "ca.pem", newest)
    _renew(fleet.server_folder, SERVER_NAME, authority, newest, valid_days)
    for device in _devices(fleet):
        _write(fleet.device_folder(device) / "ca.pem", newest)
    _write(fleet.folder / "ca.pem", newest)


def _devices(fleet: Fleet) -> list[str]:
    return [name for name in fleet.devices if fleet.public_keys[name]]


def _renew(folder: Path, name: str, authority: Pair, trusted: bytes, valid_days: int) -> None:
    pair = sign_client(authority, name, valid_days)
    _write(folder / "client.key", pair.key, secret=True)
    _write(folder / "client.pem", pair.certificate)
    _write(folder / "ca.pem", trusted)


def _write(file: Path, content: bytes, *, secret: bool = False) -> None:
    write_atomically(file, content, mode=0o600 if secret else 0o644)
