"""As many entries as a contact carries once they are coded: in one message, or in pieces while there is room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wayfare.codec.length import Measured, measure
from wayfare.codec.pieces import split
from wayfare.codec.values import ValueBits
from wayfare.sparsify import Sparse, with_tail

# A message may leave so much of its room unused, and entries are dropped until so much is spare.
_WELL_USED, _SPARE = 1.03, 0.002
# Pieces of an upload at most, and how many bits one has at least: what any message costs is then little beside it.
_PIECES, _PIECE_BITS = 12, 40_000
# Bits of an entry, roughly.
_TYPICAL_BITS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedUpload:
    """What is to be coded: an update, and how its largest parameters are found."""

    update: Tensor
    parameters: int
    value_bits: ValueBits
    largest: Callable[[int], Sparse]

    def kept(self, entries: int) -> Sparse:
        """The largest parameters, and everything behind the parameters."""
        return with_tail(self.largest(entries), self.update, self.parameters)

    @property
    def nothing(self) -> Measured:
        """An upload without entries."""
        return Measured(0, self.largest(0))


def fit(coded: CodedUpload, entries: int, room_bits: float) -> tuple[int, Measured]:
    """The largest entries in a message that fits, about so many: fewer if it must be, more if the room is there."""
    fixed_bits = 32 * (len(coded.update) - coded.parameters)
    found, tries = (0, coded.nothing), 0
    while entries > 0:
        measured, tries = measure(coded.kept(entries), coded.parameters, coded.value_bits), tries + 1
        share = max(room_bits - fixed_bits, 0.0) / (measured.bits - fixed_bits)
        if share >= 1:
            found = entries, measured
            # The message is shorter than was foreseen: what is left over is worth another try.
            if share <= _WELL_USED or tries > 1 or entries == coded.parameters:
                break
            entries = min(int(entries * share / _WELL_USED), coded.parameters)
        elif found[0] > 0:
            break
        else:
            entries = min(int(entries * share * (1 - _SPARE)), entries - 1)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """Pieces of an upload that got through."""

    entries: int
    bits: int
    delivered: Sparse
    all_of_it: bool


def fit_pieces(coded: CodedUpload, entries: int, room_bits: float) -> Arrived:
    """The pieces of an upload that fit, one after the other."""
    count = min(max(entries * _TYPICAL_BITS // _PIECE_BITS, 1), _PIECES)
    pieces = split(coded.kept(entries), coded.parameters, coded.value_bits, max(entries // count, 1))
    bits, arrived = 0, [coded.nothing.delivered]
    for piece in pieces:
        measured = measure(piece.kept, coded.parameters, piece.value_bits)
        if bits + measured.bits > room_bits:
            break
        bits += measured.bits
        arrived.append(measured.delivered)
    all_of_it = len(arrived) == len(pieces) + 1
    indices, values = torch.cat([piece.indices for piece in arrived]), torch.cat([piece.values for piece in arrived])
    indices, order = indices.sort()
    entries = int(torch.searchsorted(indices, coded.parameters))
    return Arrived(entries=entries, bits=bits, delivered=Sparse(indices, values[order]), all_of_it=all_of_it)
