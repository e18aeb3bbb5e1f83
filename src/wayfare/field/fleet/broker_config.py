"""The broker's configuration: mutual TLS with certificates of the fleet, and a key and subjects per participant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from wayfare.field.fleet.subjects import Permissions

CONFIG_NAME, USERS_NAME = "nats.conf", "users.conf"
STORE_VARIABLE = "WAYFARE_STORE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the broker. The store must stay well below the size of the disk: NATS 2.9 hangs on a full disk."""

    store_bytes: int = 1 << 30
    message_bytes: int = 1 << 20
    pending_bytes: int = 16 << 20  # buffered for one slow connection
    connections: int = 1000


def config_text(fleet: str, port: int, limits: Limits) -> str:
    """The main file. Its paths are relative to its folder, in which the broker must be started."""
    return f"""\
# The broker of the fleet {fleet}. Start it in this folder:
#   {STORE_VARIABLE}=/var/lib/wayfare nats-server -c {CONFIG_NAME}
server_name: {json.dumps("wayfare-" + fleet)}
listen: "0.0.0.0:{port}"

tls {{
  cert_file: "server.pem"
  key_file: "server.key"
  ca_file: "ca.pem"
  verify: true        # reject clients without a certificate of this fleet before they show a key
  timeout: 5
}}

jetstream {{
  store_dir: ${STORE_VARIABLE}      # not with -sd, with which NATS 2.9 cannot reload its users
  max_file_store: {limits.store_bytes}
  max_memory_store: {64 << 20}
}}

# Devices disconnect silently: drop a silent one within seconds.
ping_interval: "5s"
ping_max: 2
write_deadline: "5s"

max_payload: {limits.message_bytes}
max_pending: {limits.pending_bytes}
max_connections: {limits.connections}
max_subscriptions: 1000

include "{USERS_NAME}"
"""


def users_text(users: Mapping[str, tuple[str, Permissions]]) -> str:
    """All users: name -> (public key, subjects). Anyone not listed has no access."""
    lines = ["# Written by wayfare. After a change: nats-server --signal reload", "authorization {", "  timeout: 5"]
    lines += ["  users: ["]
    for name, (public_key, permissions) in users.items():
        lines += [f"    # {name}", f"    {{ nkey: {public_key}, permissions: {{"]
        lines += [f"        publish: {_rule(permissions.publish, permissions.publish_never)}"]
        lines += [f"        subscribe: {_rule(permissions.subscribe, ())} }} }}"]
    return "\n".join([*lines, "  ]", "}", ""])


def _rule(allowed: tuple[str, ...], denied: tuple[str, ...]) -> str:
    never = f", deny: {json.dumps(list(denied))}" if denied else ""
    return f"{{ allow: {json.dumps(list(allowed))}{never} }}"
