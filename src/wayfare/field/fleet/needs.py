"""Check the field runtime's dependencies outside Wayfare."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from wayfare.errors import UnavailableError

# Debian installs nats-server here, which is not on every user's PATH.
_SYSTEM_PROGRAMS = Path("/usr/sbin")


def broker_program() -> str | None:
    system = _SYSTEM_PROGRAMS / "nats-server"
    return shutil.which("nats-server") or (str(system) if system.is_file() else None)


def need_broker_program() -> str:
    if program := broker_program():
        return program
    raise UnavailableError(
        "the field runtime needs nats-server 2.9 or newer, which is not on the PATH: "
        "apt-get install nats-server, or install a release from https://nats.io"
    )


def need_packages() -> None:
    missing = [name for name in ("nats", "nkeys", "cryptography", "blake3", "zstandard") if find_spec(name) is None]
    if missing:
        raise UnavailableError(f"the field runtime needs {', '.join(missing)}: pip install 'wayfare[field]'")
