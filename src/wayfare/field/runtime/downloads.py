"""The global model on its way down: whole, or as the entries that changed since a version the device has.

A delta carries new values, not differences, so what the device then has is the server's model to the bit.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from wayfare.codec.errors import WireError
from wayfare.codec.wire import Layout, decode, encode
from wayfare.field.runtime.database import vector_bytes
from wayfare.field.runtime.ledger import Ledger
from wayfare.sparsify import Sparse

# Encoded models are kept while devices pull them; of those beyond this the oldest are made again when asked for.
_KEPT_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Download:
    """A model as it travels. Without a base version it is whole."""

    version: int
    base_version: int | None
    data: bytes
    digest: str  # of the model that it makes


class Downloads:
    def __init__(self, layout: Layout, kept_bytes: int = _KEPT_BYTES) -> None:
        self._layout, self._kept_bytes = layout, kept_bytes
        self._made: OrderedDict[tuple[int, int | None], Download] = OrderedDict()

    def offer(self, ledger: Ledger, version: int, have_version: int | None) -> Download:
        """A version for a device that has another, in the smaller of the two forms."""
        whole = self._made_of(ledger, version, None)
        if have_version is None or have_version > version:
            return whole
        newer = torch.from_numpy(ledger.changed_between(have_version, version))
        if bool(newer.all()):
            # As after a step of an optimiser: a delta would only be longer.
            return whole
        delta = self._made_of(ledger, version, have_version, newer)
        return delta if len(delta.data) < len(whole.data) else whole

    def find(self, version: int, base_version: int | None) -> Download | None:
        return self._made.get((version, base_version))

    def _made_of(self, ledger: Ledger, version: int, base_version: int | None, newer: Tensor | None = None) -> Download:
        key = version, base_version
        if key in self._made:
            self._made.move_to_end(key)
            return self._made[key]
        model = ledger.model_at(version)
        made = Download(*key, encode(_entries(model, newer, self._layout), self._layout).data, model_digest(model))
        self._made[key] = made
        while len(self._made) > 1 and sum(len(one.data) for one in self._made.values()) > self._kept_bytes:
            self._made.popitem(last=False)
        return made


def unpacked(data: bytes, layout: Layout, *, base: Tensor | None, digest: str) -> Tensor:
    """The model of a download on top of what the device has; WireError unless it is the server's to the bit."""
    entries = decode(data, layout)
    size = layout.parameters + layout.statistics
    if base is None and len(entries) != size:
        raise WireError(f"a whole model of {len(entries)} entries, it has {size}")
    model = entries.values if base is None else base.index_copy(0, entries.indices, entries.values)
    if model_digest(model) != digest:
        raise WireError("a model that is not the server's: its digest differs")
    return model


def model_digest(model: Tensor) -> str:
    return hashlib.blake2b(vector_bytes(model), digest_size=16).hexdigest()


def _entries(model: Tensor, newer: Tensor | None, layout: Layout) -> Sparse:
    """All of a model, or its newer entries; statistics go all or not at all."""
    if newer is None:
        return Sparse(torch.arange(len(model)), model)
    newer[layout.parameters :] = bool(newer[layout.parameters :].any())
    indices = newer.nonzero().view(-1)
    return Sparse(indices, model[indices])
