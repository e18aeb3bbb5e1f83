"""The broker's configuration: mutual TLS with certificates of the fleet, and a key and subjects per participant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from wayfare.field.fleet.subjects import SERVER_NAME, Permissions

CONFIG_NAME, USERS_NAME = "nats.conf", "users.conf"
STORE_VARIABLE = "WAYFARE_STORE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the broker. The store must stay well below the size of the disk: NATS 2.9 hangs on a full disk."""

    store_bytes: int = 1 << 30
    message_bytes: int = 1 << 20
    pending_bytes: int = 16 << 20  # buffered for one slow connection
    connections: int = 1000
    connections_per_device: int = 16  # lost ones count until the broker notices, about 15 s later


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
max_subscriptions: 100000

include "{USERS_NAME}"
"""


def users_text(users: Mapping[str, tuple[str, Permissions]], connections_per_device: int = 16) -> str:
    """All users: name -> (public key, subjects). Anyone not listed has no access.

    Every device has an account of its own, with a limited number of connections. It exchanges only the subjects of its
    own name with the server's account. So the broker's answer to one device cannot reach a subject of another.
    """
    lines = ["# Written by wayfare. After a change, reload twice, 1 s apart: nats-server --signal reload", "accounts {"]
    for name, (public_key, permissions) in users.items():
        lines += [f"  {json.dumps(name)}: {{", f"    users: [ {{ nkey: {public_key}, permissions: {{"]
        lines += [f"        publish: {_rule(permissions.publish, permissions.publish_never)}"]
        lines += [f"        subscribe: {_rule(permissions.subscribe, ())} }} }} ]"]
        if name == SERVER_NAME:
            lines += ["    jetstream: enabled"]
            lines += ['    exports: [ { service: "up.*.>" }, { stream: "applied.*" }, { stream: "down.*.>" } ] }']
            continue
        lines += [f"    limits {{ max_connections: {connections_per_device}, max_subscriptions: 100 }}"]
        lines += [f"    imports: [ {_import('service', f'up.{name}.>')}"]
        lines += [f"      {_import('stream', f'applied.{name}')}, {_import('stream', f'down.{name}.>')} ] }}"]
    return "\n".join([*lines, "}", ""])


def _import(kind: str, subject: str) -> str:
    return f"{{ {kind}: {{ account: {json.dumps(SERVER_NAME)}, subject: {json.dumps(subject)} }} }}"


def _rule(allowed: tuple[str, ...], denied: tuple[str, ...]) -> str:
    never = f", deny: {json.dumps(list(denied))}" if denied else ""
    return f"{{ allow: {json.dumps(list(allowed))}{never} }}"
