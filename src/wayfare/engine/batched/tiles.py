"""How signals are stored in each precision, and the fastest tiles measured on one H200.

`python benchmarks/batched_convolutions.py` measures them. There is no search at run time: it would cost seconds, and
another tile rounds differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from wayfare.engine.batched.convolutions import Tile
from wayfare.engine.batched.weight_gradients import WeightTile
from wayfare.engine.compute import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The type of signals, and what convolutions need of them."""

    dtype: torch.dtype
    turned: bool  # matrix units only read operands whose summed axis is adjacent in memory
    rounded: bool  # matrix units cut off bits, so round before

    @property
    def inputs_at_once(self) -> int:
        """Channels in 128 bytes, the most that one row of a rectangle may have."""
        return 128 // self.dtype.itemsize


FORMATS: Mapping[Precision, Format] = {
    "tf32": Format(dtype=torch.float32, turned=True, rounded=True),
    "bf16": Format(dtype=torch.bfloat16, turned=False, rounded=False),
}


def _dividing(most: int, size: int) -> int:
    """The largest power of two that divides a size, up to a limit."""
    return min(most, size & -size)


def forward_tile(kind: Format, positions: int, inputs: int, outputs: int) -> Tile:
    """For a row of ``positions`` (column, image) pairs; also for gradients of signals, which swap the channels."""
    wide = _dividing(256 if kind.turned else 128, outputs)
    tile = Tile(
        positions=_dividing(128, positions),
        outputs=wide,
        inputs=_dividing(kind.inputs_at_once, inputs),
        warps=8 if wide == 256 else 4,
        stages=3 if wide == 128 else 4,
    )
    # Small tiles are for small networks, where nothing was measured.
    return tile if tile.positions >= 64 and wide >= 64 else replace(tile, warps=4, stages=2)


def weight_tile(kind: Format, batch: int, width: int, inputs: int, outputs: int, taps: int) -> WeightTile:
    """For gradients of weights."""
    at_once = kind.inputs_at_once
    if taps == 1:
        return WeightTile(
            outputs=_dividing(64, outputs),
            inputs=_dividing(32, inputs),
            positions=_dividing(at_once, batch if kind.turned else batch * width),
            parts=13,
            warps=4,
            stages=4,
        )
    narrow = inputs % 128 != 0
    row = narrow if kind.turned else outputs > inputs
    return WeightTile(
        outputs=_dividing(128, outputs),
        inputs=_dividing(128, inputs),
        positions=_dividing(at_once, batch * width if row or not kind.turned else batch),
        parts=4 if narrow else 1,
        row_of_taps=row,
        warps=8 if row else 4,
        stages=4 if row and narrow else 3,
    )
