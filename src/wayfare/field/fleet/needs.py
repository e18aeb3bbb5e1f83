"""What the field runtime needs from outside Wayfare, and one clear message where it is missing."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from wayfare.errors import UnavailableError

# Debian puts it there, and not every user's PATH has it.
_SYSTEM_PROGRAMS = Path("/usr/sbin")


def broker_program() -> str | None:
    beside = _SYSTEM_PROGRAMS / "nats-server"
    return shutil.which("nats-server") or (str(beside) if beside.is_file() else None)


def need_broker_program() -> str:
    if program := broker_program():
        return program
    raise UnavailableError(
        "the field runtime needs nats-server 2.9 or newer, and there is none on the PATH: "
        "apt-get install nats-server, or a release from https://nats.io"
    )


def need_packages() -> None:
    missing = [name for name in ("nats", "nkeys", "cryptography") if find_spec(name) is None]
    if missing:
        raise UnavailableError(
            f"the field runtime needs {', '.join(missing)}, not installed: pip install 'wayfare[field]'"
        )
