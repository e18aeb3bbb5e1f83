"""The mobile edge server and its transitions (Algorithm 1, "on the MES", and mixing instead of it)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from wayfare.sparsify import Sparse


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The global model, after every upload up to a round. Models are never changed in place: devices may hold them."""

    model: Tensor
    devices: int


def aggregate(state: ServerState, uploads: Sequence[Sparse]) -> ServerState:
    """w <- w - (1/N) sum of S(x) over the devices met in a round, in the order of their numbers."""
    if not any(len(upload) for upload in uploads):
        return state
    model = state.model.clone()
    for upload in uploads:
        if len(upload) == len(model):
            model.sub_(upload.values, alpha=1.0 / state.devices)
        else:
            model.index_add_(0, upload.indices, upload.values, alpha=-1.0 / state.devices)
    return ServerState(model=model, devices=state.devices)


def mix(state: ServerState, models: Sequence[tuple[Tensor, float]]) -> ServerState:
    """w <- (1 - a) w + a w_n for the devices met in a round, one after the other in the order of their numbers."""
    if not models:
        return state
    model = state.model.clone()
    for local, weight in models:
        model.lerp_(local, weight)
    return ServerState(model=model, devices=state.devices)
