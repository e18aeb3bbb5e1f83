"""Downloads of the global model: whole, or only the entries that changed since the device's version.

A delta carries new values, not differences, so the device's model is bit-identical to the server's. The state that a
server rule hands to one device (`ServerRule.handed`) follows the bytes of the model.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout, decode, encode
from wayfare.field.runtime.database import tree_bytes, tree_of, vector_bytes
from wayfare.field.runtime.ledger import Ledger
from wayfare.field.runtime.outbox import digest
from wayfare.methods import NO_STATE, State
from wayfare.methods.states import same_kind, vectors_of
from wayfare.sparsify import Sparse

# Cache of encoded models while devices pull them. The oldest beyond this size are encoded again on demand.
_KEPT_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Download:
    """An encoded model: a delta on a base version, or a whole model without one."""

    version: int
    base_version: int | None
    data: bytes
    digest: str  # of the resulting model


@dataclass(frozen=True, slots=True)
class Handed:
    """The state handed to one device with a version of the model; no bytes if there is none."""

    version: int
    data: bytes
    digest: str  # of the bytes


class Downloads:
    def __init__(self, layout: Layout, kept_bytes: int = _KEPT_BYTES) -> None:
        self._layout, self._kept_bytes = layout, kept_bytes
        self._made: OrderedDict[tuple[int, int | None], Download] = OrderedDict()
        self._handed: OrderedDict[int, Handed] = OrderedDict()  # the last one of each device

    def offer(self, ledger: Ledger, version: int, have_version: int | None) -> Download:
        """Encode a version for a device that has another, as delta or whole, whichever is smaller."""
        whole = self._made_of(ledger, version, None)
        if have_version is None or have_version > version:
            return whole
        newer = torch.from_numpy(ledger.changed_between(have_version, version))
        if bool(newer.all()):
            # All entries changed, as after an optimiser step: a delta would be longer.
            return whole
        delta = self._made_of(ledger, version, have_version, newer)
        return delta if len(delta.data) < len(whole.data) else whole

    def hand_down(self, ledger: Ledger, device: int, version: int) -> Handed:
        """The state that the rule hands to a device with a version."""
        made = self._handed.pop(device, None)
        if made is None or made.version != version:
            state = ledger.handed(device, version)
            data = tree_bytes(state) if state else b""
            made = Handed(version, data, digest(data))
        self._handed[device] = made
        self._forget_oldest(self._handed)
        return made

    def part(self, device: int, version: int, base_version: int | None, begin: int, end: int) -> bytes:
        """Bytes of the model and of the handed state after it; fewer than requested if they are no longer kept."""
        model, handed = self._made.get((version, base_version)), self._handed.get(device)
        if model is None:
            return b""
        behind = max(begin - len(model.data), 0), max(end - len(model.data), 0)
        return model.data[begin:end] + (handed.data[slice(*behind)] if handed else b"")

    def _made_of(self, ledger: Ledger, version: int, base_version: int | None, newer: Tensor | None = None) -> Download:
        key = version, base_version
        if key in self._made:
            self._made.move_to_end(key)
            return self._made[key]
        model = ledger.model_at(version)
        made = Download(*key, encode(_entries(model, newer, self._layout), self._layout).data, model_digest(model))
        self._made[key] = made
        self._forget_oldest(self._made)
        return made

    def _forget_oldest(self, kept: OrderedDict[Any, Any]) -> None:
        while len(kept) > 1 and sum(len(one.data) for one in kept.values()) > self._kept_bytes:
            kept.popitem(last=False)


def unpacked(data: bytes, layout: Layout, *, base: Tensor | None, digest: str) -> Tensor:
    """Decode a download on top of the device's model. Raises WireError unless it equals the server's in every bit."""
    entries = decode(data, layout)
    size = layout.parameters + layout.statistics
    if base is None and len(entries) != size:
        raise WireError(f"a whole model has {len(entries)} entries, expected {size}")
    model = entries.values if base is None else base.index_copy(0, entries.indices, entries.values)
    if model_digest(model) != digest:
        raise WireError("the model differs from the server's: its digest differs")
    return model


def unpacked_state(data: bytes, expected_digest: str, like: State) -> State:
    """A handed state; WireError unless it is the server's and fits the state ``like`` of the local rule."""
    if not data:
        return NO_STATE
    if digest(data) != expected_digest:
        raise WireError("handed state: its digest differs from the server's")
    try:
        state = tree_of(data)
    except Exception as error:  # torch.load raises many types
        raise WireError(f"handed state: cannot be read: {error}") from None
    if not same_kind({**like, **state}, like):
        raise WireError(f"handed state: has {sorted(state)}, which does not fit the local rule")
    for name, vector in vectors_of(state):
        if not bool(torch.isfinite(vector).all()):
            raise WireError(f"handed state: {name} holds NaN or infinity")
    return state


def model_digest(model: Tensor) -> str:
    return digest(vector_bytes(model))


def _entries(model: Tensor, newer: Tensor | None, layout: Layout) -> Sparse:
    """All entries of a model, or the newer ones; all statistics or none."""
    if newer is None:
        return Sparse(torch.arange(len(model)), model)
    newer[layout.parameters :] = bool(newer[layout.parameters :].any())
    indices = newer.nonzero().view(-1)
    return Sparse(indices, model[indices])
