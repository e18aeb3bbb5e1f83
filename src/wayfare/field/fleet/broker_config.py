"""The broker's configuration: TLS with a certificate of the fleet on both sides, a key and subjects for each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from wayfare.field.fleet.subjects import Permissions

CONFIG_NAME, USERS_NAME = "nats.conf", "users.conf"
STORE_VARIABLE = "WAYFARE_STORE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the broker may use. The store has to stay well below the disk: 2.9 hangs on a full one."""

    store_bytes: int = 1 << 30
    message_bytes: int = 1 << 20
    pending_bytes: int = 16 << 20  # for one connection that reads more slowly than it is written to
    connections: int = 1000


def config_text(fleet: str, port: int, limits: Limits) -> str:
    """The main file; paths in it are relative to its folder, from which the broker is started."""
    return f"""\
# The broker of the fleet {fleet}. Start it in this folder:
#   {STORE_VARIABLE}=/var/lib/wayfare nats-server -c {CONFIG_NAME}
server_name: {json.dumps("wayfare-" + fleet)}
listen: "0.0.0.0:{port}"

tls {{
  cert_file: "server.pem"
  key_file: "server.key"
  ca_file: "ca.pem"
  verify: true        # a client without a certificate of this fleet does not get as far as its key
  timeout: 5
}}

jetstream {{
  store_dir: ${STORE_VARIABLE}      # not by -sd, with which 2.9 refuses to read its users again
  max_file_store: {limits.store_bytes}
  max_memory_store: {64 << 20}
}}

# Devices leave without a word: a silent one is forgotten within seconds.
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
    """Everyone who may come in: name -> (public key, subjects). Who is not named may nothing."""
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
