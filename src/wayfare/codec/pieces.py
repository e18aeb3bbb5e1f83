"""A progressive upload: pieces of falling importance, each its own message, so that every piece that arrives counts.

Entries are sorted by octaves of magnitude, the largest first. An octave is split into segments of the vector, those
with most energy first. The octave of an entry costs bits, but its value saves as many: within an octave half the
bits give the same precision. So pieces cost hardly more than one message, and the first ones hold most of the energy.
Every entry that has arrived is at least half as large as any that has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wayfare.codec.errors import WireError
from wayfare.codec.steps import ValueBits
from wayfare.codec.wire import Layout, Message, decode, encode, message_bytes
from wayfare.sparsify import Sparse, top_k

# The number of separate octaves; all smaller entries form one group.
_OCTAVES = 24
# The width within one octave that is as precise as a width over all octaves.
_WITHIN_OCTAVE: dict[ValueBits, ValueBits] = {32: 32, 16: 8, 8: 4, 4: 2, 2: 1, 1: 1, 0: 0}


@dataclass(frozen=True, slots=True)
class Piece:
    """The entries of one message, and the width of their values."""

    kept: Sparse
    value_bits: ValueBits
    statistics: int = 0  # how many of the entries are statistics

    @property
    def chosen(self) -> int:
        return len(self.kept) - self.statistics


def split(kept: Sparse, parameters: int, value_bits: ValueBits, piece_entries: int) -> list[Piece]:
    """Split kept entries by falling importance into pieces of about ``piece_entries``; statistics go with the first."""
    chosen = int(torch.searchsorted(kept.indices, parameters))
    if chosen == 0:
        return []
    indices, values = kept.indices[:chosen], kept.values[:chosen]
    octaves = _octaves(values, piece_entries)
    counts = torch.bincount(octaves, minlength=_OCTAVES + 1).tolist()
    # The last octaves form one piece if they are too small for two.
    left = [sum(counts[octave:]) for octave in range(_OCTAVES + 1)]
    last = next((octave for octave, count in enumerate(left) if count <= piece_entries), _OCTAVES)
    bands = [*counts[:last], left[last]]
    order = octaves.clamp(max=last).sort(stable=True).indices
    parts = zip(indices[order].split(bands), values[order].split(bands), strict=True)
    pieces: list[Piece] = []
    for octave, (positions, amounts) in enumerate(parts):
        is_single_octave = octave > 0 and bands[octave] == counts[octave]
        width = _WITHIN_OCTAVE[value_bits] if is_single_octave else value_bits
        if len(positions):
            entries = piece_entries if is_single_octave else len(positions)
            pieces += _segments(Sparse(positions, amounts), width, entries)
    if chosen < len(kept):
        first = pieces[0].kept
        whole = (torch.cat([first.indices, kept.indices[chosen:]]), torch.cat([first.values, kept.values[chosen:]]))
        pieces[0] = Piece(Sparse(*whole), pieces[0].value_bits, len(kept) - chosen)
    return pieces


def _octaves(values: Tensor, piece_entries: int) -> Tensor:
    """0 for the largest entries, one piece of them, then the octaves below the smallest of these.

    Increasing the exponent bits of a positive float by one doubles it.
    """
    bits = values.abs().float().view(torch.int32)
    below = bits[top_k(values, piece_entries).indices].amin() - bits
    return torch.where(below <= 0, 0, 1 + ((below - 1) >> 23)).clamp(max=_OCTAVES).to(torch.uint8)


def _segments(band: Sparse, value_bits: ValueBits, piece_entries: int) -> list[Piece]:
    """Split the entries of one octave into segments of the vector, those with most energy first."""
    count = max(round(len(band) / piece_entries), 1)
    if count == 1:
        return [Piece(band, value_bits)]
    parts = zip(band.indices.tensor_split(count), band.values.tensor_split(count), strict=True)
    pieces = [Piece(Sparse(indices, values), value_bits) for indices, values in parts]
    energies = torch.stack([piece.kept.values.double().square().mean() for piece in pieces]).tolist()
    return [pieces[index] for index in sorted(range(count), key=lambda index: -energies[index])]


def encode_pieces(pieces: Sequence[Piece], layout: Layout) -> list[Message]:
    """One message per piece. Together they form a stream that may be cut anywhere."""
    return [encode(piece.kept, layout, piece.value_bits) for piece in pieces]


def decode_pieces(stream: bytes, layout: Layout) -> list[Sparse]:
    """Decode the complete pieces of a stream. Ignore a truncated last piece; reject repeated entries."""
    found: list[Sparse] = []
    seen = torch.zeros(layout.parameters + layout.statistics, dtype=torch.bool)
    while (length := message_bytes(stream)) is not None and length <= len(stream):
        piece = decode(stream[:length], layout)
        if bool(seen[piece.indices].any()):
            raise WireError("an entry appears in two pieces of one upload")
        seen[piece.indices] = True
        found.append(piece)
        stream = stream[length:]
    return found
