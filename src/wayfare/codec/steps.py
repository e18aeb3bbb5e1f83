"""Widths of values, and the arithmetic of their steps.

It works on magnitudes as integers, in tensors (many values) and in arrays (few, where double precision may hold the
integers). Products use double precision, which represents them exactly and divides faster than integers. For arrays it
does without PyTorch, as `codec.helpers` needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

ValueBits: TypeAlias = Literal[32, 16, 8, 4, 2, 1, 0]
"""Bits per value; 1 is a sign, with one scale for its block; 0 stands for exact whole numbers (`codec.whole`)."""
WHOLE: Literal[0] = 0
VALUE_BITS: tuple[ValueBits, ...] = get_args(ValueBits)[:-1]
"""The widths of real numbers."""

BLOCK = 1024
# Smaller magnitudes of a block are raised to this many octaves below its largest.
OCTAVES = 24

Float32s: TypeAlias = NDArray[np.float32]
Whole = TypeVar("Whole", "NDArray[Any]", "Tensor")


def lower_scale(smallest: Whole, largest: Whole) -> Whole:
    """The lower end of the first step of a block."""
    return _at_least(_at_least(smallest, largest - (OCTAVES << 23)), 0)


def steps_of(magnitude: Whole, low: Whole, span: Whole, bits: ValueBits) -> Whole:
    """The step of each magnitude: (magnitude - low) steps / span, rounded down; 0 below ``low``.

    The steps of a block start at ``low`` and divide ``span`` integers. The factor is at most two units in the last
    place too large, so the product reaches every integer that it should. It stays below the next integer, which is
    at least 1 / span >= 2^-28 away: the error is at most 2^15 2^-51.
    """
    step: Whole = _at_least(magnitude - low, 0) * _just_above((1 << (bits - 1)) / _double(span))
    # Bytes are faster to move and count.
    return _down(step, "uint8" if bits <= 8 else "int32")


def middles_of(step: Whole, low: Whole, span: Whole, bits: ValueBits) -> Whole:
    """The magnitude in the middle of each step: low + (2 step + 1) span / 2^bits, rounded down."""
    part = _double(span) * 2.0**-bits
    middle: Whole = step * (2 * part) + (part + low)
    return _down(middle, "int32")


@overload
def _double(whole: Tensor) -> Tensor: ...
@overload
def _double(whole: NDArray[Any]) -> NDArray[Any]: ...
def _double(whole: Tensor | NDArray[Any]) -> Tensor | NDArray[Any]:
    return whole.astype(np.float64) if isinstance(whole, np.ndarray) else whole.double()


@overload
def _just_above(numbers: Tensor) -> Tensor: ...
@overload
def _just_above(numbers: NDArray[Any]) -> NDArray[Any]: ...
def _just_above(numbers: Tensor | NDArray[Any]) -> Tensor | NDArray[Any]:
    if isinstance(numbers, np.ndarray):
        return np.asarray(np.nextafter(numbers, np.inf))
    import torch

    return torch.nextafter(numbers, torch.full_like(numbers, torch.inf))


@overload
def _down(numbers: Tensor, kind: Literal["uint8", "int32"]) -> Tensor: ...
@overload
def _down(numbers: NDArray[Any], kind: Literal["uint8", "int32"]) -> NDArray[Any]: ...
def _down(numbers: Tensor | NDArray[Any], kind: Literal["uint8", "int32"]) -> Tensor | NDArray[Any]:
    """Round down to integers; ``kind`` is the type in a tensor."""
    if isinstance(numbers, np.ndarray):
        return numbers.astype(np.int32)
    import torch

    return numbers.to(torch.uint8 if kind == "uint8" else torch.int32)


@overload
def _at_least(numbers: Tensor, bound: Tensor | int) -> Tensor: ...
@overload
def _at_least(numbers: NDArray[Any], bound: NDArray[Any] | int) -> NDArray[Any]: ...
def _at_least(numbers: Tensor | NDArray[Any], bound: Any) -> Tensor | NDArray[Any]:
    # `np.maximum` takes a fraction of the time of `np.clip` for short arrays.
    return np.asarray(np.maximum(numbers, bound)) if isinstance(numbers, np.ndarray) else numbers.clamp(min=bound)
