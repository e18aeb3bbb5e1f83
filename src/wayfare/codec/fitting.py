"""As many entries as a contact carries once they are coded: in one message, or in pieces while there is room."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wayfare.codec.length import Measured, measure
from wayfare.codec.pieces import split
from wayfare.codec.values import ValueBits
from wayfare.sparsify import Sparse, with_tail

# A message may leave so much of its room unused, entries are dropped until so much is spare, and so often it is tried.
_WELL_USED, _SPARE, _TRIES = 1.03, 0.002, 5
# What a piece costs beside its entries, roughly: a header, tables, places that say how large an entry is.
_PIECE_BITS = 2_000
_PIECES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedUpload:
    """What is to be coded: an update, and how its largest parameters are found."""

    update: Tensor
    parameters: int
    value_bits: ValueBits
    largest: Callable[[int], Sparse]

    @property
    def statistics(self) -> int:
        """How many entries lie behind the parameters."""
        return len(self.update) - self.parameters

    def kept(self, entries: int) -> Sparse:
        """The largest parameters, and everything behind the parameters."""
        return with_tail(self.largest(entries), self.update, self.parameters)

    @property
    def nothing(self) -> Measured:
        """An upload without entries."""
        return Measured(0, self.largest(0))


def fit(coded: CodedUpload, entries: int, room_bits: float) -> tuple[int, Measured]:
    """The largest entries in a message that fits, about so many: fewer if it must be, more if the room is there."""
    fixed_bits = 32 * coded.statistics
    found, too_many, tries = (0, coded.nothing), coded.parameters + 1, 0
    while entries > found[0] and (tries < _TRIES or found[0] == 0):
        kept, tries = coded.kept(entries), tries + 1
        measured = measure(kept, coded.parameters, coded.value_bits, len(kept) - coded.statistics)
        share = max(room_bits - fixed_bits, 0.0) / (measured.bits - fixed_bits)
        if share >= 1:
            found = entries, measured
            # Shorter than was foreseen: what is left over is worth another try.
            if share <= _WELL_USED:
                break
            entries = min(int(entries * share * (1 - _SPARE)), too_many - 1)
        else:
            too_many = entries
            entries = max(
                min(int(entries * share * (1 - _SPARE)), entries - 1), (found[0] + entries) // 2 if found[0] else 0
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """Pieces of an upload that got through."""

    entries: int
    bits: int
    delivered: Sparse
    all_of_it: bool


def piece_entries(entries: int, bits: float) -> int:
    """How many entries go into a piece of an upload that is to have so many entries and bits.

    A contact that ends at any time loses half a piece on average, and every piece costs its overhead o: of n pieces
    least is lost by n = sqrt(bits / (2 o)).
    """
    return max(round(entries / min(max(math.sqrt(bits / (2 * _PIECE_BITS)), 1.0), _PIECES)), 1)


def fit_pieces(coded: CodedUpload, entries: int, entries_in_piece: int, room_bits: float) -> Arrived:
    """The pieces of an upload that fit, one after the other."""
    pieces = split(coded.kept(entries), coded.parameters, coded.value_bits, entries_in_piece)
    bits, found, arrived = 0, 0, [coded.nothing.delivered]
    for number, piece in enumerate(pieces):
        # All that lies behind the parameters goes with the first piece.
        chosen = len(piece.kept) - (coded.statistics if number == 0 else 0)
        measured = measure(piece.kept, coded.parameters, piece.value_bits, chosen)
        if bits + measured.bits > room_bits:
            break
        bits, found = bits + measured.bits, found + chosen
        arrived.append(measured.delivered)
    all_of_it = len(arrived) == len(pieces) + 1
    indices, values = torch.cat([piece.indices for piece in arrived]), torch.cat([piece.values for piece in arrived])
    indices, order = indices.sort()
    return Arrived(entries=found, bits=bits, delivered=Sparse(indices, values[order]), all_of_it=all_of_it)
