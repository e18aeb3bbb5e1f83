"""Fit coded entries into a contact, in one message or in pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wayfare.codec.length import Measured, measure, size_in_steps
from wayfare.codec.pieces import Piece, split
from wayfare.codec.steps import ValueBits
from wayfare.sparsify import Sparse, top_k, with_tail
from wayfare.waiting import Steps, at_once

# Accept a message that leaves up to 3 % of the room unused; aim 0.2 % below the room; try five times.
_WELL_USED, _SPARE, _TRIES = 1.03, 0.002, 5
# The approximate overhead of a piece: header, tables, and the bits that say which octave an entry is in.
_PIECE_BITS = 2_000
_PIECES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedUpload:
    """An update to encode, and the function that selects its largest parameters."""

    update: Tensor
    parameters: int
    value_bits: ValueBits
    largest: Callable[[int], Sparse]

    @property
    def statistics(self) -> int:
        return len(self.update) - self.parameters

    def kept(self, entries: int) -> Sparse:
        """The largest parameters, and all statistics."""
        return with_tail(self.largest(entries), self.update, self.parameters)

    def measured(self, piece: Piece) -> Measured:
        return measure(piece.kept, self.parameters, piece.value_bits, piece.chosen)

    @property
    def nothing(self) -> Measured:
        return Measured(0, self.largest(0))


def fit(coded: CodedUpload, entries: int, room_bits: float) -> tuple[int, Measured]:
    """A message of about ``entries`` largest entries: fewer if they do not fit, more if there is room."""
    return at_once(fit_in_steps(coded, entries, room_bits))


def fit_in_steps(coded: CodedUpload, entries: int, room_bits: float) -> Steps[tuple[int, Measured]]:
    """As `fit`; every message that it tries waits for a GPU."""
    fixed_bits = 32 * coded.statistics
    fits, found, too_many, tries = 0, None, coded.parameters + 1, 0
    while entries > fits and (tries < _TRIES or fits == 0):
        kept = coded.kept(entries)
        sized = yield from size_in_steps(kept, coded.parameters, coded.value_bits, len(kept) - coded.statistics)
        tries += 1
        share = max(room_bits - fixed_bits, 0.0) / (sized.bits - fixed_bits)
        if share >= 1:
            fits, found = entries, sized
            # Shorter than expected: try to use the remaining room.
            if share <= _WELL_USED:
                break
            entries = min(int(entries * share * (1 - _SPARE)), too_many - 1)
        else:
            too_many = entries
            entries = max(min(int(entries * share * (1 - _SPARE)), entries - 1), (fits + entries) // 2 if fits else 0)
    return fits, coded.nothing if found is None else found.decoded()


def piece_entries(entries: int, bits: float) -> int:
    """The number of entries per piece, for an upload of ``entries`` and ``bits``.

    A contact that ends at a random time loses half a piece on average, and every piece has the overhead o. The total
    loss is smallest for n = sqrt(bits / (2 o)) pieces.
    """
    return max(round(entries / min(max(math.sqrt(bits / (2 * _PIECE_BITS)), 1.0), _PIECES)), 1)


def fit_pieces(
    coded: CodedUpload, entries: int, entries_in_piece: int, room_bits: float
) -> tuple[list[Measured], list[Piece]]:
    """The pieces that fit, the last one cut down to fit, and the remaining pieces."""
    pieces = split(coded.kept(entries), coded.parameters, coded.value_bits, entries_in_piece)
    fitting: list[Measured] = []
    for number, piece in enumerate(pieces):
        measured = coded.measured(piece)
        if measured.bits > room_bits:
            part, rest = _cut_down(coded, piece, room_bits, room_bits / measured.bits)
            return fitting + part, [rest, *pieces[number + 1 :]]
        fitting.append(measured)
        room_bits -= measured.bits
    return fitting, []


def _cut_down(coded: CodedUpload, piece: Piece, room_bits: float, share: float) -> tuple[list[Measured], Piece]:
    """A message of the largest entries of a piece, about ``share`` of them, if any fit; and the rest of the piece."""
    indices, values = piece.kept.indices[: piece.chosen], piece.kept.values[: piece.chosen]

    def largest(entries: int) -> Sparse:
        positions = top_k(values, entries).indices
        return Sparse(indices[positions], values[positions])

    update = coded.update[: coded.parameters + piece.statistics]
    alone = replace(coded, update=update, value_bits=piece.value_bits, largest=largest)
    entries, part = fit(alone, int(share * piece.chosen), room_bits)
    if entries == 0:
        return [], piece
    is_left = torch.ones_like(values, dtype=torch.bool).index_fill_(0, top_k(values, entries).indices, False)
    return [part], Piece(Sparse(indices[is_left], values[is_left]), piece.value_bits)


def arriving(messages: Iterable[Measured], room_bits: float) -> list[Measured]:
    """The first messages that fit into ``room_bits``."""
    arrived: list[Measured] = []
    for message in messages:
        room_bits -= message.bits
        if room_bits < 0:
            break
        arrived.append(message)
    return arrived


def united(messages: Sequence[Measured], nothing: Measured) -> Measured:
    parts = [message.delivered for message in (nothing, *messages)]
    indices, order = torch.cat([part.indices for part in parts]).sort()
    values = torch.cat([part.values for part in parts])[order]
    return Measured(sum(message.bits for message in messages), Sparse(indices, values))
