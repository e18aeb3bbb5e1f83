"""Keys by which the broker knows a participant: Ed25519, in the broker's own notation (nkeys)."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import nkeys


@dataclass(frozen=True, slots=True)
class Key:
    """A seed, which stays with its owner, and the public key the broker is told."""

    seed: bytes
    public: str


def create_key() -> Key:
    """A new key. Keys are secrets, so this is the one place where chance does not come from a seed of a scenario."""
    seed = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
    return Key(seed, nkeys.from_seed(bytearray(seed)).public_key.decode())
