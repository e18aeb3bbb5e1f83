"""An upload in pieces of falling importance: each a message of its own, so that those that arrive are worth something.

Entries go by octaves of their magnitude, the largest first, and an octave in stretches of the vector, those with most
energy first. Which octave an entry is in takes bits to say, and these come back in its value: within an octave half the
bits give the same precision. So pieces cost hardly more than the whole, and the first ones hold most of the energy.
Whatever has arrived, no entry of it is smaller than half of any that has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wayfare.codec.errors import WireError
from wayfare.codec.values import ValueBits
from wayfare.codec.wire import Layout, Message, decode, encode, message_bytes
from wayfare.sparsify import Sparse, top_k

# Octaves told apart; all below them goes together.
_OCTAVES = 24
# The width within an octave that is as precise as another over all of them.
_WITHIN_OCTAVE: dict[ValueBits, ValueBits] = {32: 32, 16: 8, 8: 4, 4: 2, 2: 1, 1: 1}


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries that travel together, and the width of their values."""

    kept: Sparse
    value_bits: ValueBits
    statistics: int = 0  # of the entries, how many lie behind the parameters

    @property
    def chosen(self) -> int:
        return len(self.kept) - self.statistics


def split(kept: Sparse, parameters: int, value_bits: ValueBits, piece_entries: int) -> list[Piece]:
    """Kept entries by falling importance, about so many to a piece; all behind the parameters go with the first."""
    chosen = int(torch.searchsorted(kept.indices, parameters))
    if chosen == 0:
        return []
    indices, values = kept.indices[:chosen], kept.values[:chosen]
    octaves = _octaves(values, piece_entries)
    counts = torch.bincount(octaves, minlength=_OCTAVES + 1).tolist()
    # From an octave on there may be too little for another piece: all of that goes together.
    left = [sum(counts[octave:]) for octave in range(_OCTAVES + 1)]
    last = next((octave for octave, count in enumerate(left) if count <= piece_entries), _OCTAVES)
    bands = [*counts[:last], left[last]]
    order = octaves.clamp(max=last).sort(stable=True).indices
    parts = zip(indices[order].split(bands), values[order].split(bands), strict=True)
    pieces: list[Piece] = []
    for octave, (places, amounts) in enumerate(parts):
        is_one = octave > 0 and bands[octave] == counts[octave]
        width = _WITHIN_OCTAVE[value_bits] if is_one else value_bits
        if len(places):
            pieces += _stretches(Sparse(places, amounts), width, piece_entries if is_one else len(places))
    if chosen < len(kept):
        first = pieces[0].kept
        whole = (torch.cat([first.indices, kept.indices[chosen:]]), torch.cat([first.values, kept.values[chosen:]]))
        pieces[0] = Piece(Sparse(*whole), pieces[0].value_bits, len(kept) - chosen)
    return pieces


def _octaves(values: Tensor, piece_entries: int) -> Tensor:
    """0 for the largest entries, as many as go into a piece, then the octaves below the smallest of these.

    Bits of positive floats that differ by those of one exponent differ by a factor of 2.
    """
    bits = values.abs().float().view(torch.int32)
    below = bits[top_k(values, piece_entries).indices].amin() - bits
    return torch.where(below <= 0, 0, 1 + ((below - 1) >> 23)).clamp(max=_OCTAVES).to(torch.uint8)


def _stretches(band: Sparse, value_bits: ValueBits, piece_entries: int) -> list[Piece]:
    """Entries of one octave in stretches of the vector, those with most energy first."""
    count = max(round(len(band) / piece_entries), 1)
    parts = zip(band.indices.tensor_split(count), band.values.tensor_split(count), strict=True)
    pieces = [Piece(Sparse(indices, values), value_bits) for indices, values in parts]
    energies = torch.stack([piece.kept.values.double().square().mean() for piece in pieces]).tolist()
    return [pieces[place] for place in sorted(range(count), key=lambda place: -energies[place])]


def encode_pieces(pieces: Sequence[Piece], layout: Layout) -> list[Message]:
    """A message for each piece; one after the other they are a stream that may be cut anywhere."""
    return [encode(piece.kept, layout, piece.value_bits) for piece in pieces]


def decode_pieces(stream: bytes, layout: Layout) -> list[Sparse]:
    """The pieces that arrived whole; what was cut is left out, and an entry that comes twice is refused."""
    found: list[Sparse] = []
    seen = torch.zeros(layout.parameters + layout.statistics, dtype=torch.bool)
    while (length := message_bytes(stream)) is not None and length <= len(stream):
        piece = decode(stream[:length], layout)
        if bool(seen[piece.indices].any()):
            raise WireError("an entry in two pieces of one upload")
        seen[piece.indices] = True
        found.append(piece)
        stream = stream[length:]
    return found
