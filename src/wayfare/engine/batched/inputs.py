"""Triton kernel that writes images as the first convolution reads them: as a product of single positions."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.activation_kernels import nearest
from wayfare.engine.batched.activations import images_per_program
from wayfare.engine.batched.convolutions import ROUNDING, on_device_of


def neighbourhoods(images: Tensor, out: Tensor, turned: Tensor | None, *, rounded: bool) -> None:
    """Write the 3 x 3 x colours values around each position of images (devices, colours, height, width, batch).

    ``out`` is a padded signal with at least that many channels, in the order (row, column, colour); others become 0.
    """
    devices, colours, height, width, batch = images.shape
    per_program = images_per_program(batch)
    with on_device_of(images):
        _neighbourhoods[(devices * height * width * (batch // per_program),)](
            images,
            out,
            out if turned is None else turned,
            height,
            width,
            batch,
            colours=colours,
            channels=out.shape[4],
            has_turned=turned is not None,
            rounded=rounded,
            images=per_program,
            **ROUNDING,
        )


@triton.jit(do_not_specialize=["height", "width", "batch"])  # type: ignore[untyped-decorator]
def _neighbourhoods(
    source: tl.tensor,
    out: tl.tensor,
    turned: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    batch: tl.tensor,
    colours: tl.constexpr,
    channels: tl.constexpr,
    has_turned: tl.constexpr,
    rounded: tl.constexpr,
    images: tl.constexpr,
) -> None:
    parts = batch // images
    # Tells the compiler that it may read and write several values at a time.
    batch = parts * images
    program = tl.program_id(0)
    image = (program % parts) * images + tl.arange(0, images)
    column = (program // parts) % width
    row = (program // (parts * width)) % height
    device = (program // (parts * width * height)).to(tl.int64)
    channel = tl.arange(0, channels)
    colour, tap = channel % colours, channel // colours
    from_row, from_column = row + tap // 3 - 1, column + tap % 3 - 1
    inside = (tap < 9) & (from_row >= 0) & (from_row < height) & (from_column >= 0) & (from_column < width)
    place = ((colour * height + from_row) * width + from_column) * batch
    value = tl.load(
        source + device * colours * height * width * batch + place[None, :] + image[:, None],
        mask=inside[None, :] & (image[:, None] >= 0),
        other=0.0,
    ).to(tl.float32)
    if rounded:
        value = nearest(value)
    at = row * (width + 1) + column
    base = (device * height * (width + 1) + at) * batch
    tl.store(out + base * channels + image[:, None] * channels + channel[None, :], value.to(out.dtype.element_ty))
    if has_turned:
        plane = height * (width + 1) * batch
        base = device * channels * plane + at * batch
        tl.store(turned + base + channel[None, :] * plane + image[:, None], value.to(turned.dtype.element_ty))
