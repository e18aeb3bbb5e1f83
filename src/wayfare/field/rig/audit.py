"""The audit after a run: everything that was learned must be in exactly one place."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.arrays import Floats
from wayfare.codec.wire import Layout
from wayfare.errors import InvariantError
from wayfare.field.runtime.compaction import Window
from wayfare.field.runtime.ledger import FILE, Key, Ledger
from wayfare.field.runtime.messages import unpack
from wayfare.field.runtime.orders import place
from wayfare.field.runtime.outbox import Outbox
from wayfare.methods.states import same_state
from wayfare.server import ServerState

# Tolerance for float32 sums over a run. A single entry lost or counted twice exceeds it by far.
_MASS_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of a successful audit."""

    versions: int
    recorded: int  # chunks, each once
    returned: int  # to the memory of their device, so not in the model
    promised: int  # not delivered yet
    # The largest difference between learned and located mass, relative to the largest entry; None if no account was
    # kept, as for methods that do not conserve mass.
    mass_error: float | None


def audit(ledger: Ledger, outboxes: Sequence[Outbox], layout: Layout) -> Audit:
    """Compare the ledger with every device, chunk by chunk, and the model with the ledger in every bit."""
    _same(ledger.replay(), ledger.state)
    recorded = ledger.recorded()
    made: dict[str, int] = {"recorded": 0, "returned": 0, "promised": 0}
    seen: set[Key] = set()
    errors = []
    for device, outbox in enumerate(outboxes):
        for number, chunk, digest, outcome in outbox.outcomes():
            key = Key(device, number, chunk)
            made[outcome or "promised"] += 1
            if outcome == "recorded" and key not in recorded:
                raise InvariantError(f"device {device}, update {number}, chunk {chunk}: lost")
            if outcome == "returned" and key in recorded:
                raise InvariantError(f"device {device}, update {number}, chunk {chunk}: counted twice")
            if recorded.get(key, digest) != digest:
                raise InvariantError(f"device {device}, update {number}, chunk {chunk}: altered in transit")
            seen.add(key)
        if outbox.learned is not None:
            errors.append(_mass_error(ledger, device, outbox, outbox.learned, layout))
    strangers = set(recorded) - seen
    if strangers:
        raise InvariantError(f"the ledger has {len(strangers)} chunks that no device made, such as {min(strangers)}")
    worst = max(errors, default=None)
    if worst is not None and worst > _MASS_TOLERANCE:
        raise InvariantError(f"mass is not conserved: the error is {worst:.2g} of the largest entry")
    return Audit(versions=ledger.version, mass_error=worst, **made)


def audit_later_life(ledger: Ledger, model: Tensor) -> None:
    """Roll back and compact a migrated ledger, in turn; after each step its replay must equal its model in every bit.

    ``model`` is the one before the migration.
    """
    if not torch.equal(ledger.model, model):
        raise InvariantError("the migration led to another model")
    _same(ledger.replay(), ledger.state)
    target = ledger.version // 2
    expected = ledger.model_at(target)
    place(ledger.folder / FILE, "rollback", {"version": target})
    ledger.obey()
    if not torch.equal(ledger.model, expected):
        raise InvariantError(f"a rollback to version {target} led to another model")
    _same(ledger.replay(), ledger.state)
    for window in (Window(days=1e4, bytes=100_000), Window(days=0, bytes=0)):
        ledger.compact(window)
        _same(ledger.replay(), ledger.state)


def as_format_5(file: Path) -> None:
    """Turn a ledger into one of the previous format, in which chunks have their version beside their data."""
    with closing(sqlite3.connect(file)) as connection, connection:
        for column in ("version INTEGER", "weight REAL NOT NULL DEFAULT 1", "samples INTEGER"):
            connection.execute(f"ALTER TABLE chunks ADD COLUMN {column}")
        same = "applied.device = chunks.device AND applied.number = chunks.number AND applied.chunk = chunks.chunk"
        for column in ("version", "weight", "samples"):
            connection.execute(
                f"UPDATE chunks SET {column} = (SELECT {column} FROM applied WHERE {same})"
                f" WHERE EXISTS (SELECT 1 FROM applied WHERE {same})"
            )
        connection.execute("DROP TABLE applied")
        connection.execute("CREATE INDEX by_version ON chunks (version)")
        connection.execute("PRAGMA user_version = 5")


def _same(replayed: ServerState, state: ServerState) -> None:
    if not torch.equal(replayed.model, state.model):
        raise InvariantError("the replay of the ledger differs from the model")
    if not torch.equal(replayed.judged, state.judged):
        raise InvariantError("the replay of the ledger differs from the mean of the models")
    if not same_state(replayed.rule_state, state.rule_state):
        raise InvariantError("the replay of the ledger differs from the state of the server rule")
    if not same_state(replayed.guard_state, state.guard_state):
        raise InvariantError("the replay of the ledger differs from the state of the guard")


def _mass_error(ledger: Ledger, device: int, outbox: Outbox, learned: Floats, layout: Layout) -> float:
    state = outbox.state
    base, memory, local = (vector.double().numpy() for vector in (state.received, state.memory, outbox.local))
    lies: NDArray[np.float64] = ledger.delivered(device) + memory + (base - local)
    promised = outbox.open_update()
    if promised is not None:
        # Recorded chunks are in the ledger, even if the device does not know it yet.
        _, recorded, _ = ledger.standing(device, promised.number)
        for chunk, data in outbox.pending(promised.number):
            if chunk not in recorded:
                entries = unpack(data, layout).entries
                lies[entries.indices.numpy()] += entries.values.double().numpy()
    largest = float(np.abs(learned).max())
    return float(np.abs(learned - lies).max()) / largest if largest else float(np.abs(lies).max())
