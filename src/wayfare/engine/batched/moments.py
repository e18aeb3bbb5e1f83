"""Triton kernel for the moments of a normalisation, from those of tiles."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.convolutions import ROUNDING, on_device_of

# Channels per program.
_BLOCK = 32
# Tiles whose moments a program reads at a time.
_TILES = 64


def finish_moments(
    moments: Tensor,
    normal: Tensor,
    running: tuple[Tensor, Tensor],
    positions: int,
    momentum: float,
    eps: float,
    rows: Tensor | None = None,
) -> None:
    """Combine the moments of tiles of ``positions`` values each (`convolve`).

    Writes mean and inverse deviation to ``normal`` (devices, 2, channels) and advances the running mean and variance,
    in the ``rows`` of the devices or in the first ones.
    """
    devices, tiles, _, channels = moments.shape
    block = min(_BLOCK, channels & -channels)
    with on_device_of(moments):
        _finish_moments[(devices * (channels // block),)](
            moments,
            normal,
            running[0],
            running[1],
            normal if rows is None else rows,
            tiles,
            channels,
            positions,
            momentum,
            eps,
            has_rows=rows is not None,
            tiles_at_once=_TILES,
            block=block,
            **ROUNDING,
        )


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["tiles", "channels", "positions"], do_not_specialize_on_alignment=["rows"]
)
def _finish_moments(
    moments: tl.tensor,
    normal: tl.tensor,
    running_mean: tl.tensor,
    running_variance: tl.tensor,
    rows: tl.tensor,
    tiles: tl.tensor,
    channels: tl.tensor,
    positions: tl.tensor,
    momentum: tl.tensor,
    eps: tl.tensor,
    has_rows: tl.constexpr,
    tiles_at_once: tl.constexpr,
    block: tl.constexpr,
) -> None:
    blocks = channels // block
    channels = blocks * block
    device = (tl.program_id(0) // blocks).to(tl.int64)
    channel = (tl.program_id(0) % blocks) * block + tl.arange(0, block)
    tile = tl.arange(0, tiles_at_once)
    source = moments + device * tiles * 2 * channels + tile[:, None] * (2 * channels) + channel[None, :]
    total = tl.zeros((tiles_at_once, block), dtype=tl.float32)
    for first in range(0, tiles, tiles_at_once):
        total += tl.load(source + first * 2 * channels, mask=first + tile[:, None] < tiles, other=0.0)
    mean = tl.sum(total, axis=0) / tiles
    total = tl.zeros((tiles_at_once, block), dtype=tl.float32)
    for first in range(0, tiles, tiles_at_once):
        inside = first + tile[:, None] < tiles
        here = source + first * 2 * channels
        away = tl.where(inside, tl.load(here, mask=inside, other=0.0) - mean[None, :], 0.0)
        total += tl.load(here + channels, mask=inside, other=0.0) + positions * away * away
    squares = tl.sum(total, axis=0)
    count = (tiles * positions).to(tl.float32)
    tl.store(normal + device * 2 * channels + channel, mean)
    tl.store(normal + (device * 2 + 1) * channels + channel, 1.0 / tl.sqrt_rn(squares / count + eps))
    mine = device
    if has_rows:
        mine = tl.load(rows + device).to(tl.int64)
    place = mine * channels + channel
    before = tl.load(running_mean + place)
    tl.store(running_mean + place, before + momentum * (mean - before))
    before = tl.load(running_variance + place)
    tl.store(running_variance + place, before + momentum * (squares / tl.maximum(count - 1.0, 1.0) - before))
