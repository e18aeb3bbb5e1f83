"""The subjects of a fleet, and the permissions for them that the broker enforces.

::

    up.<device>.>        from a device to the server; the subject, never the payload, identifies the device
    down.<device>.>      from the server to a device
    applied.<device>     from the server to a device: chunks that have been recorded
    _INBOX_<name>.>      answers to requests
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from wayfare.errors import InputError

SERVER_NAME = "mes"
NAME_RULE = "1 to 32 lowercase letters, digits and hyphens, not starting with a hyphen"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    publish_never: tuple[str, ...] = ()


def check_name(field: str, name: str) -> str:
    """Check that a name is safe in subjects, file names and certificates."""
    if not _NAME.fullmatch(name):
        raise InputError(f"{field} = {name!r}: must be {NAME_RULE}")
    return name


def inbox_prefix(name: str) -> str:
    return f"_INBOX_{name}"


def device_permissions(device: str) -> Permissions:
    """A device publishes and subscribes only under its own name and has no access to the broker's store."""
    return Permissions(
        publish=(f"up.{device}.>",),
        subscribe=(f"applied.{device}", f"down.{device}.>", f"{inbox_prefix(device)}.>"),
    )


def server_permissions() -> Permissions:
    """The server has access to everything, but cannot publish under the name of a device."""
    return Permissions(publish=(">",), publish_never=("up.>",), subscribe=(">",))


def device_of(subject: str) -> str:
    """The device that published to ``up.<device>...``; the broker guarantees it."""
    first, _, rest = subject.partition(".")
    device, _, _ = rest.partition(".")
    if first != "up" or not _NAME.fullmatch(device):
        raise InputError(f"subject = {subject!r}: must be up.<device>.<...>")
    return device


def kind_of(subject: str) -> str:
    """The kind of a message to ``up.<device>.<kind>``."""
    return subject.rpartition(".")[2]
