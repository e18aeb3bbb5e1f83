"""Certificates of a fleet: one authority, and what it signs for the broker, the server and every device."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A small computer without a clock of its own may start in the past.
CLOCK_SLACK = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def create_authority(name: str, valid_days: int) -> Pair:
    """An authority that signs certificates of one fleet and no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"{name} fleet authority")
    builder = _builder(subject, subject, key.public_key(), valid_days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def sign_server(authority: Pair, name: str, hosts: Sequence[str], valid_days: int) -> Pair:
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    return _signed(authority, name, ExtendedKeyUsageOID.SERVER_AUTH, valid_days, names)


def sign_client(authority: Pair, name: str, valid_days: int) -> Pair:
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    return _signed(authority, name, ExtendedKeyUsageOID.CLIENT_AUTH, valid_days, names)


def _signed(
    authority: Pair,
    name: str,
    purpose: x509.ObjectIdentifier,
    valid_days: int,
    names: x509.SubjectAlternativeName,
) -> Pair:
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), issuer.subject, key.public_key(), valid_days, issuer_key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    return _pair(builder.add_extension(names, critical=False).sign(issuer_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    valid_days: int,
    issuer_key: ec.EllipticCurvePublicKey | None = None,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(now + timedelta(days=valid_days))
    )
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key or key)
    return builder.add_extension(signer, critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
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
