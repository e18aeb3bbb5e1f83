"""Credentials of a fleet: the certificate authority, the certificates that it signs, and user keys for the broker."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import nkeys
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A small computer without a hardware clock may start in the past.
CLOCK_SLACK = timedelta(days=2)
_USAGES = (
    *("digital_signature", "key_cert_sign", "crl_sign", "content_commitment", "key_encipherment"),
    *("data_encipherment", "key_agreement", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def create_key() -> tuple[bytes, str]:
    """A private seed, and the public key for the broker: Ed25519 in the broker's notation.

    Keys are secrets, so this is the only randomness that does not come from a scenario's seed.
    """
    seed = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
    return seed, nkeys.from_seed(bytearray(seed)).public_key.decode()


def create_authority(name: str, valid_days: int) -> Pair:
    """An authority for the certificates of one fleet. It cannot sign further authorities."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), _name(f"{name} fleet authority")
    builder = _builder(subject, subject, key, key, valid_days, "key_cert_sign", "crl_sign")
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def sign_server(authority: Pair, name: str, hosts: Sequence[str], valid_days: int) -> Pair:
    return _signed(
        authority, name, ExtendedKeyUsageOID.SERVER_AUTH, valid_days, [_general_name(host) for host in hosts]
    )


def sign_client(authority: Pair, name: str, valid_days: int) -> Pair:
    return _signed(authority, name, ExtendedKeyUsageOID.CLIENT_AUTH, valid_days, [x509.DNSName(name)])


def _signed(
    authority: Pair, name: str, purpose: x509.ObjectIdentifier, valid_days: int, names: Sequence[x509.GeneralName]
) -> Pair:
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), issuer.subject, key, issuer_key, valid_days, "digital_signature")
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _pair(builder.sign(issuer_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    valid_days: int,
    *usages: str,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(now + timedelta(days=valid_days))
        .add_extension(identifier, critical=False)
        .add_extension(signer, critical=False)
        .add_extension(x509.KeyUsage(**{usage: usage in usages for usage in _USAGES}), critical=True)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
