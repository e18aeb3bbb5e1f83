"""Seals on messages: a broker in the wrong hands can drop messages, but neither alter nor invent them.

A seal is a signature with the key of the sender's bundle. It covers the subject, so a message cannot be moved, and a
number that is used once. The seal of an answer also covers the question, so an old answer does not fit a new question.
Questions about an update, and their answers, carry the sender's certificate; the receiver checks that an authority of
the fleet issued it for that name, and knows the key from then on. Parts of a model have no seal: the digest in the
manifest, which has one, covers them.
"""

from __future__ import annotations

import struct
import time
from functools import lru_cache
from pathlib import Path

from blake3 import blake3
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from wayfare.arrays import Buffer
from wayfare.codec.errors import WireError
from wayfare.errors import InputError
from wayfare.field.fleet.subjects import SERVER_NAME
from wayfare.files import write_atomically

# The lengths of certificate and signature, and a number that is used once.
_HEAD = struct.Struct("<HBQ")
_MAX_CERTIFICATE_BYTES = 4096
_KNOWN_KEYS = 1024
_ALGORITHM = ec.ECDSA(hashes.SHA256())


class Seals:
    """Seals messages of one participant, and opens those of others."""

    def __init__(self, folder: Path) -> None:
        try:
            key = serialization.load_pem_private_key((folder / "client.key").read_bytes(), password=None)
            own = x509.load_pem_x509_certificate((folder / "client.pem").read_bytes())
            self._authorities = x509.load_pem_x509_certificates((folder / "ca.pem").read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"{folder}: invalid certificates: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InputError(f"{folder / 'client.key'}: must be a key on an elliptic curve")
        self._key = key
        self._certificate = own.public_bytes(serialization.Encoding.DER)
        self._last_number = 0

    def seal(self, subject: str, data: Buffer, *, question: bytes = b"", introduce: bool = False) -> bytes:
        """A sealed message; with ``introduce`` it carries the certificate."""
        self._last_number = max(time.time_ns(), self._last_number + 1)
        signature = self._key.sign(_covered(subject, question, self._last_number, data), _ALGORITHM)
        certificate = self._certificate if introduce else b""
        head = _HEAD.pack(len(certificate), len(signature), self._last_number)
        return head + certificate + signature + data

    def key_in(self, name: str, sealed: bytes) -> bytes | None:
        """The certificate that a message carries, if an authority of the fleet issued it for this name."""
        certificate, _, _, _ = _parts(sealed)
        if not certificate:
            return None
        try:
            found = x509.load_der_x509_certificate(certificate)
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            if names.get_values_for_type(x509.DNSName) != [name]:
                raise WireError(f"the certificate is not for {name}")
        except (ValueError, x509.ExtensionNotFound) as error:
            raise WireError(f"invalid certificate: {error}") from None
        for authority in self._authorities:
            try:
                found.verify_directly_issued_by(authority)
            except (ValueError, TypeError, InvalidSignature):
                continue
            return certificate
        raise WireError("the certificate is not from this fleet")


def opened(certificate: bytes, subject: str, sealed: bytes, *, question: bytes = b"") -> bytes:
    """The content of a message; WireError unless the holder of the certificate sealed exactly this."""
    _, signature, number, data = _parts(sealed)
    try:
        _key_of(certificate).verify(signature, _covered(subject, question, number, data), _ALGORITHM)
    except InvalidSignature:
        raise WireError("the seal is not that of the sender") from None
    return data


@lru_cache(_KNOWN_KEYS)
def _key_of(certificate: bytes) -> ec.EllipticCurvePublicKey:
    """Reading a certificate takes as long as checking a signature."""
    key = x509.load_der_x509_certificate(certificate).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise WireError("the certificate has no key on an elliptic curve")
    return key


def _parts(sealed: bytes) -> tuple[bytes, bytes, int, bytes]:
    """Certificate, signature, number and content."""
    if len(sealed) < _HEAD.size:
        raise WireError(f"a message of {len(sealed)} bytes has no seal")
    certificate_bytes, signature_bytes, number = _HEAD.unpack_from(sealed)
    begin = _HEAD.size + certificate_bytes
    if certificate_bytes > _MAX_CERTIFICATE_BYTES or len(sealed) < begin + signature_bytes:
        raise WireError(f"a message of {len(sealed)} bytes has no complete seal")
    return (
        sealed[_HEAD.size : begin],
        sealed[begin : begin + signature_bytes],
        number,
        sealed[begin + signature_bytes :],
    )


def _covered(subject: str, question: bytes, number: int, data: Buffer) -> bytes:
    """Everything that a seal covers, each part with its length; of the content its digest, to copy and hash less."""
    parts = (subject.encode(), question, number.to_bytes(8, "little"), blake3(data).digest())
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


class DeviceEnd:
    """The seals of a device: on its questions and chunks, and on what it hears from the server."""

    def __init__(self, seals: Seals, name: str) -> None:
        self._seals, self._name = seals, name
        self._server: bytes | None = None  # its certificate

    def sealed(self, kind: str, data: bytes) -> bytes:
        if kind == "part":
            return data
        return self._seals.seal(f"up.{self._name}.{kind}", data, introduce=kind == "ask")

    def answer(self, kind: str, question: bytes, sealed: bytes) -> bytes:
        """The content of an answer. The broker answers chunks itself, and parts are covered by their manifest."""
        if kind in ("part", "chunk"):
            return sealed
        self._server = self._seals.key_in(SERVER_NAME, sealed) or self._server
        if self._server is None:
            raise WireError("the server has not shown its certificate")
        return opened(self._server, f"down.{self._name}.{kind}", sealed, question=question)

    def mark(self, sealed: bytes) -> bytes:
        if self._server is None:
            raise WireError("the server has not shown its certificate")
        return opened(self._server, f"applied.{self._name}", sealed)


class ServerEnd:
    """The seals of the server. It keeps the certificates of devices, because chunks carry none."""

    def __init__(self, seals: Seals, state: Path) -> None:
        self._seals, self._folder = seals, state / "certificates"
        self._known: dict[str, bytes] = {}

    def question(self, device: str, kind: str, sealed: bytes) -> bytes:
        """The content of a device's message; WireError unless this device sealed it."""
        if kind == "part":
            return sealed
        certificate = self._seals.key_in(device, sealed) if kind == "ask" else None
        data = opened(certificate or self._certificate(device), f"up.{device}.{kind}", sealed)
        if certificate is not None and self._known.get(device) != certificate:
            self._known[device] = certificate
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / f"{device}.der", certificate)
        return data

    def answer(self, device: str, kind: str, question: bytes, data: Buffer) -> Buffer:
        if kind == "part":
            return data
        return self._seals.seal(f"down.{device}.{kind}", data, question=question, introduce=kind == "ask")

    def mark(self, device: str, data: bytes) -> bytes:
        return self._seals.seal(f"applied.{device}", data)

    def _certificate(self, device: str) -> bytes:
        if device not in self._known:
            try:
                self._known[device] = (self._folder / f"{device}.der").read_bytes()
            except OSError:
                raise WireError(f"{device} has not shown its certificate") from None
        return self._known[device]
