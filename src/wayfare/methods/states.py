"""States of parts as trees: map, list and compare their vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wayfare.methods.parts import State

if TYPE_CHECKING:
    from torch import Tensor


def mapped(state: State, change: Callable[[Tensor], Tensor | None]) -> dict[str, Any]:
    """The same tree as plain dicts, with ``change`` applied to every vector."""
    return {name: _mapped(value, change) for name, value in state.items()}


def _mapped(value: Any, change: Callable[[Tensor], Tensor | None]) -> Any:
    if isinstance(value, Mapping):
        return mapped(value, change)
    if isinstance(value, np.generic):
        # Parts may compute with NumPy; saved states hold plain numbers.
        return value.item()
    return value if isinstance(value, int | float) else change(value)


def vectors_of(state: State) -> Iterator[tuple[str, Tensor]]:
    """Every vector of a tree, named ``outer.inner``."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", vector) for inner, vector in vectors_of(value))
        elif not isinstance(value, int | float | np.generic):
            yield name, value


def same_state(one: State, other: State) -> bool:
    others, without = dict(vectors_of(other)), [mapped(state, lambda _: None) for state in (one, other)]
    return without[0] == without[1] and all(vector.equal(others[name]) for name, vector in vectors_of(one))


def same_kind(one: State, other: State) -> bool:
    """Whether two trees can belong to one rule: equal names, and equal shapes and types of vectors.

    Nested tables may differ: many have a row for each device seen so far.
    """
    others = dict(vectors_of(other))
    return set(one) == set(other) and all(
        name not in others or (vector.shape, vector.dtype) == (others[name].shape, others[name].dtype)
        for name, vector in vectors_of(one)
    )
