"""Orders of the operator to a running server, such as to roll back or to change a setting.

A command writes an order into the ledger's file. The server carries it out within a second, or when it starts. An order
that changes the server's state ends a round of its own and makes a version, so a replay repeats it at the same point.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError
from torch import Tensor

from wayfare.errors import InputError, ScenarioError
from wayfare.field.runtime.aggregation import Aggregation, Versions
from wayfare.field.runtime.messages import Settings
from wayfare.methods import Part
from wayfare.methods.servers import Optimise
from wayfare.methods.states import same_kind
from wayfare.server import ServerState

_POLL_S = 0.1
# Settings of devices that may change while the fleet runs, with their names on the wire.
_OF_DEVICES = {
    "learning.learning_rate": "learning_rate",
    "learning.batch_size": "batch_size",
    "device.max_local_steps": "max_local_steps",
    "device.exchange_every_s": "exchange_every_s",
    "device.uploads_per_day": "uploads_per_day",
}


@dataclass(frozen=True, slots=True)
class Order:
    id: int
    kind: str  # rollback, pardon, set, compact, export, release, withdraw or group
    content: Mapping[str, Any]


def obey(order: Order, versions: Versions, state_of: Callable[[int], ServerState]) -> ServerState:
    """The state after an order. It may also change the rules of the versions that follow."""
    state, content = versions.latest.state, order.content
    match order.kind:
        case "rollback":
            # What the guard has learned about devices stays.
            return replace(state_of(int(content["version"])), guard_state=state.guard_state)
        case "pardon":
            guard = versions.aggregation.guard
            if guard is None:
                raise InputError("the server has no guard, so no device is in quarantine")
            if str(content["device"]) not in state.guard_state["quarantined"]:
                raise InputError(f"device = {content['name']}: is not in quarantine")
            return replace(state, guard_state=guard.released(state.guard_state, int(content["device"])))
        case "set":
            versions.aggregation = revised(versions.aggregation, content, state.model, versions.latest.version + 1)
            return state
        case _:
            raise InputError(f"order = {order.kind!r}: unknown to this version of the server")


def revised(aggregation: Aggregation, settings: Mapping[str, Any], model: Tensor, version: int) -> Aggregation:
    """An aggregation with other values of its guard, its server rule or its devices' settings, from a version on.

    The kind of the rule's state must stay.
    """
    after = aggregation
    for name, value in settings.items():
        section, _, field = name.partition(".")
        if name in _OF_DEVICES:
            after = _with_settings(after, name, value, version)
        elif section == "guard" and after.guard is not None:
            after = replace(after, guard=_with(after.guard, field, value, name))
        elif section == "server" and isinstance(after.rule, Optimise):
            try:
                server = type(after.rule.server).model_validate({**after.rule.server.model_dump(), field: value})
            except ValidationError as error:
                raise InputError(f"{name} = {value!r}: {rule_in(error)}") from None
            after = replace(after, rule=replace(after.rule, server=server))
        elif section == "server":
            after = replace(after, rule=_with(after.rule, field, value, name))
        else:
            rule = f"must be {', '.join(_OF_DEVICES)}, or start with server, or with guard if the server has one"
            raise InputError(f"{name} = {value!r}: {rule}")
    if not same_kind(after.rule.init(model, after.terms), aggregation.rule.init(model, aggregation.terms)):
        raise InputError(f"{', '.join(settings)}: would change the kind of the server's state; start a new fleet")
    return after


def _with_settings(aggregation: Aggregation, name: str, value: Any, version: int) -> Aggregation:
    """An aggregation whose devices have another value of one setting from a version on."""
    before, field = aggregation.settings_at(version) or Settings(), _OF_DEVICES[name]
    if isinstance(value, int) and not isinstance(value, bool) and field in ("learning_rate", "exchange_every_s"):
        value = float(value)
    try:
        settings = Settings.model_validate({**before.model_dump(), field: value})
    except ValidationError as error:
        raise InputError(f"{name} = {value!r}: {rule_in(error)}") from None
    if (settings.learning_rate or 0.0) > aggregation.max_learning_rate:
        most = aggregation.max_learning_rate
        raise InputError(f"{name} = {value!r}: must be at most {most:g}: a step would overshoot the pull")
    earlier = tuple(change for change in aggregation.changes if change[0] < version)
    return replace(aggregation, changes=(*earlier, (version, settings)))


def rule_in(error: ValidationError) -> str:
    """The rule that a value broke, in the words of our messages."""
    text = error.errors()[0]["msg"]
    return text.replace("Input should be", "must be").replace("Value error, ", "")


def _with(part: Part, field: str, value: Any, name: str) -> Any:
    known = [each.name for each in fields(cast(Any, part))]
    if field not in known:
        raise InputError(f"{name}: unknown; choose from {', '.join(known) or '(none)'}")
    before = vars(part)[field]
    if isinstance(before, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not type(before):
        raise InputError(f"{name} = {value!r}: must be of type {type(before).__name__}")
    try:
        return replace(cast(Any, part), **{field: value})
    except ScenarioError as error:
        raise InputError(f"{name} = {error.value!r}: {error.rule}") from None


def place(file: Path, kind: str, content: Mapping[str, Any]) -> int:
    """Write an order into a ledger's file; return its number."""
    with closing(_opened(file)) as connection, connection:
        row = (kind, json.dumps(dict(content)), time.time())
        number = connection.execute("INSERT INTO orders (kind, content, asked_s) VALUES (?, ?, ?)", row).lastrowid
    return int(number or 0)


def outcome(file: Path, number: int, wait_s: float) -> str | None:
    """What became of an order; None if the server has not carried it out within this time."""
    until = time.monotonic() + wait_s
    with closing(_opened(file)) as connection:
        while True:
            row = connection.execute("SELECT outcome FROM orders WHERE id = ?", (number,)).fetchone()
            if row[0] is not None or time.monotonic() > until:
                return cast(str | None, row[0])
            time.sleep(_POLL_S)


def _opened(file: Path) -> sqlite3.Connection:
    if not file.is_file():
        raise InputError(f"{file}: no ledger; give the folder of the server's state")
    connection = sqlite3.connect(file, timeout=30)
    try:
        connection.execute("SELECT 1 FROM orders LIMIT 1")
    except sqlite3.DatabaseError as error:
        connection.close()
        raise InputError(f"{file}: has an older format ({error}); start the server once to migrate it") from None
    return connection
