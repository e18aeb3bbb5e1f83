"""The energy spectrum of an update: the share of |x|^2 in its k largest entries, without a full sort.

A vector is split into segments, because layers differ. A sample finds the start of the tail. Tails are heavy: a few
entries hold much of the energy and no sample finds them, so every tail entry is read. The body is even enough to be
sampled. `control.spectrum` computes the spectrum from what is read here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wayfare.control.spectrum import (
    BOUND,
    SEGMENTS,
    Layout,
    Magnitudes,
    Segments,
    Sight,
    Spectrum,
    all_of,
    body_of,
    spectrum_of,
    weighted,
)
from wayfare.sparsify import gpu
from wayfare.sparsify.mask_indices import first_indices
from wayfare.waiting import Arriving, fetched

# Entries that are sampled, and the length up to which a vector is read as a whole.
_SAMPLE = 1 << 15


def spectrum(vector: Tensor) -> Spectrum:
    """The spectrum of a vector. The tail is exact; the body of a long vector is sampled."""
    if _is_on_gpu(vector):
        numbers, layout = _to_send(vector)
        return _seen(numbers.cpu().numpy()[: -_in_norm(vector)], layout, vector)()
    is_long = len(vector) >= _SAMPLE
    return spectrum_of(_sampled(vector) if is_long else all_of(vector.abs().numpy()), len(vector))


def norm_alone(vector: Tensor) -> Arriving[tuple[float, Callable[[], Spectrum]]]:
    """Start to read |x|^2 of a vector; its spectrum, if anything asks for it, is read later."""
    return fetched(squared_norm(vector)).then(lambda norm_sq: (float(norm_sq), partial(spectrum, vector)))


def norm_and_spectrum(vector: Tensor) -> Arriving[tuple[float, Callable[[], Spectrum]]]:
    """Start to read |x|^2 of a vector, and its spectrum on demand. Both leave a GPU in one transfer."""
    if not _is_on_gpu(vector):
        return norm_alone(vector)
    numbers, layout = _to_send(vector)
    in_norm = _in_norm(vector)

    def read(found: NDArray[Any]) -> tuple[float, Callable[[], Spectrum]]:
        norm = found[-in_norm:].copy().view(np.float64)
        return float(norm[0]), _seen(found[:-in_norm], layout, vector)

    return fetched(numbers).then(read)


def squared_norm(vector: Tensor) -> Tensor:
    """|x|^2, summed in double precision."""
    if gpu.has_kernels(vector):
        from wayfare.sparsify.gpu_kernels import squared_norm as in_one_pass

        return in_one_pass(vector)
    return vector.to(torch.float64, copy=True).square_().sum()


def _is_on_gpu(vector: Tensor) -> bool:
    return vector.device.type != "cpu"


def _rows(vector: Tensor) -> tuple[Tensor, int]:
    """The segments of a vector, and the stride of the sample.

    A few entries at the end belong to no segment. The stride is odd, so that it does not align with layer sizes.
    """
    length = len(vector) // SEGMENTS
    return vector[: SEGMENTS * length].view(SEGMENTS, length), _stride(len(vector))


def _stride(entries: int) -> int:
    return max(entries // _SAMPLE, 1) | 1


def _sampled(vector: Tensor) -> Segments:
    """On a CPU: the tail of every segment, and a sample of its body, in rising order."""
    rows, stride = _rows(vector)
    samples = np.sort(rows[:, ::stride].abs().numpy())
    bodies = [body_of(sample) for sample in samples]
    tails = [np.sort(_above(row.numpy(), body[-1])) for row, body in zip(rows, bodies, strict=True)]
    return weighted(bodies, tails, rows.shape[1])


def _to_send(vector: Tensor) -> tuple[Tensor, Layout]:
    """What a GPU sends in one transfer, in the order of a layout; then the bytes of |x|^2 as numbers of its type."""
    if len(vector) < _SAMPLE:
        return torch.cat([vector.abs(), _norm_bytes(vector)]), Layout(len(vector))
    layout = _layout(len(vector), has_kernels=gpu.has_kernels(vector))
    if layout.has_sorted_tails:
        # Sorting tails on the host would take longer than all of this.
        from wayfare.sparsify.gpu_kernels import norm_and_samples

        bound = layout.sampled + BOUND
        return norm_and_samples(vector, SEGMENTS, _stride(len(vector)), bound, layout.room), layout
    samples, tail, counts = _looked_at(*_rows(vector), layout.room)
    return torch.cat([samples.flatten(), tail, counts, _norm_bytes(vector)]), layout


@cache
def _layout(entries: int, *, has_kernels: bool) -> Layout:
    length = entries // SEGMENTS
    count = gpu.pieces(length, _stride(entries))
    # Twice the expected number; hardly ever too few if the sample represents its segment.
    room = 2 * gpu.pieces(-BOUND * SEGMENTS * length, count)
    return Layout(entries, length, count, room, has_kernels)


def _norm_bytes(vector: Tensor) -> Tensor:
    return squared_norm(vector).view(1).view(vector.dtype)


def _in_norm(vector: Tensor) -> int:
    """The numbers of a vector's type that have the bytes of a double."""
    return 8 // vector.element_size()


def _seen(found: Magnitudes, layout: Layout, vector: Tensor) -> Callable[[], Spectrum]:
    return Sight(found, layout) if layout.has_all_tails(found) else partial(_with_long_tails, found, layout, vector)


def _with_long_tails(found: Magnitudes, layout: Layout, vector: Tensor) -> Spectrum:
    """The spectrum if a GPU had no room for all tails: read them."""
    bodies, (rows, _) = layout.bodies(found), _rows(vector)
    tails = [np.sort(_above(row.cpu().numpy(), body[-1])) for row, body in zip(rows, bodies, strict=True)]
    return spectrum_of(weighted(bodies, tails, layout.length), layout.entries)


def _looked_at(rows: Tensor, stride: int, room: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted samples of segments; the first ``room`` magnitudes above the bound of their segment; their numbers.

    The numbers are floats, which hold every number up to the room exactly.
    """
    magnitude = rows.abs()
    samples = magnitude[:, ::stride].sort().values
    is_beyond = magnitude > samples[:, BOUND, None]
    indices = first_indices(is_beyond.flatten(), room)
    return samples, magnitude.flatten().index_select(0, indices), is_beyond.sum(1, dtype=rows.dtype)


def _above(row: Magnitudes, bound: np.floating) -> Magnitudes:
    """The magnitudes above a bound. Pieces fit into the CPU cache, which takes a fifth of the time."""
    pieces = []
    for piece in np.array_split(row, max(len(row) // _SAMPLE, 1)):
        magnitude = np.abs(piece)
        pieces.append(magnitude[np.flatnonzero(magnitude > bound)])
    return np.concatenate(pieces)
