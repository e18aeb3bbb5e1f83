"""Who may say what to whom: the subjects of a fleet, and the rules for them that the broker enforces.

::

    up.<device>.>        from a device to the server; the server learns the device from here, never from a payload
    down.<device>.>      from the server to a device
    applied.<device>     from the server to a device: what has been applied
    _INBOX_<who>.>       answers to requests
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from wayfare.errors import InputError

SERVER_NAME = "mes"
NAME_RULE = "1 to 32 small letters, digits and hyphens, the first no hyphen"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    publish_never: tuple[str, ...] = ()


def check_name(field: str, name: str) -> str:
    """A name that is safe in subjects, file names and certificates alike."""
    if not _NAME.fullmatch(name):
        raise InputError(f"{field} = {name!r}: must be {NAME_RULE}")
    return name


def inbox_prefix(name: str) -> str:
    return f"_INBOX_{name}"


def device_permissions(device: str) -> Permissions:
    """A device speaks and listens in its own name only, and cannot touch the broker's store."""
    return Permissions(
        publish=(f"up.{device}.>",),
        subscribe=(f"applied.{device}", f"down.{device}.>", f"{inbox_prefix(device)}.>"),
    )


def server_permissions() -> Permissions:
    """The server reaches everything, but cannot speak in the name of a device."""
    return Permissions(publish=(">",), publish_never=("up.>",), subscribe=(">",))


def device_of(subject: str) -> str:
    """The device that published to a subject ``up.<device>...``, by the broker's word."""
    first, _, rest = subject.partition(".")
    device, _, _ = rest.partition(".")
    if first != "up" or not _NAME.fullmatch(device):
        raise InputError(f"subject = {subject!r}: must be up.<device>.<...>")
    return device


def may_answer(device: str, reply: str) -> bool:
    """Whether an answer to a device's request goes to its own inbox.

    The broker checks what a device publishes to, but not the subject it asks for the answer on: without this, one
    device could have the server's words delivered to another.
    """
    return reply.startswith(inbox_prefix(device) + ".")
