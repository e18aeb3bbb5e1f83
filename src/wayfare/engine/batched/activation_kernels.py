"""The kernels of `activations`, which states their equations and launches them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def nearest(value: tl.tensor) -> tl.tensor:
    """Round to the eleven significant bits of TF32. Matrix units would cut off the others."""
    near = ((value.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(tl.abs(value) < float("inf"), near, value)


@triton.jit  # type: ignore[untyped-decorator]
def _normalised(
    signal: tl.tensor, place: tl.tensor, mean: tl.tensor, inverse: tl.tensor, offsets: tl.tensor
) -> tl.tensor:
    return (tl.load(signal + place + offsets).to(tl.float32) - mean[None, :]) * inverse[None, :]


@triton.jit(do_not_specialize=["height", "width", "batch", "channels"])  # type: ignore[untyped-decorator]
def activate(
    signal: tl.tensor,
    normal: tl.tensor,
    other: tl.tensor,
    out: tl.tensor,
    turned: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    batch: tl.tensor,
    channels: tl.tensor,
    pool: tl.constexpr,
    has_added: tl.constexpr,
    has_turned: tl.constexpr,
    rounded: tl.constexpr,
    images: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Height and width are those of the result."""
    # The products tell the compiler that it may read and write several values at a time; likewise below.
    blocks, parts = channels // block, batch // images
    channels, batch = blocks * block, parts * images
    program = tl.program_id(0)
    first = (program % blocks) * block
    image = ((program // blocks) % parts) * images
    column = (program // (blocks * parts)) % width
    row = (program // (blocks * parts * width)) % height
    device = (program // (blocks * parts * width * height)).to(tl.int64)
    channel = tl.arange(0, block)
    mean = tl.load(normal + device * 2 * channels + first + channel)
    inverse = tl.load(normal + (device * 2 + 1) * channels + first + channel)
    offsets = tl.arange(0, images)[:, None] * channels + channel[None, :]
    at = device * height * pool + row * pool
    place = ((at * (width * pool + 1) + column * pool) * batch + image) * channels + first
    value = _normalised(signal, place, mean, inverse, offsets)
    if pool == 2:
        next_row = (width * pool + 1) * batch * channels
        value = tl.maximum(value, _normalised(signal, place + batch * channels, mean, inverse, offsets))
        value = tl.maximum(value, _normalised(signal, place + next_row, mean, inverse, offsets))
        value = tl.maximum(value, _normalised(signal, place + next_row + batch * channels, mean, inverse, offsets))
    # Written so that NaN stays NaN.
    value = tl.where(value <= 0, 0.0, value)
    at = row * (width + 1) + column
    base = device * height * (width + 1) * batch * channels + (at * batch + image) * channels + first
    if has_added:
        value += tl.load(other + base + offsets).to(tl.float32)
    if rounded:
        value = nearest(value)
    tl.store(out + base + offsets, value.to(out.dtype.element_ty))
    if has_turned:
        plane = height * (width + 1) * batch
        base = (device * channels + first) * plane + at * batch + image
        turned_offsets = tl.arange(0, images)[:, None] + channel[None, :] * plane
        tl.store(turned + base + turned_offsets, value.to(turned.dtype.element_ty))


@triton.jit(do_not_specialize=["height", "width", "batch", "channels"])  # type: ignore[untyped-decorator]
def activate_and_pool_all(
    signal: tl.tensor,
    normal: tl.tensor,
    added: tl.tensor,
    out: tl.tensor,
    chosen: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    batch: tl.tensor,
    channels: tl.tensor,
    images: tl.constexpr,
    block: tl.constexpr,
) -> None:
    blocks, parts = channels // block, batch // images
    channels, batch = blocks * block, parts * images
    program = tl.program_id(0)
    first = (program % blocks) * block
    image = ((program // blocks) % parts) * images
    device = (program // (blocks * parts)).to(tl.int64)
    channel = tl.arange(0, block)
    mean = tl.load(normal + device * 2 * channels + first + channel)
    inverse = tl.load(normal + (device * 2 + 1) * channels + first + channel)
    offsets = tl.arange(0, images)[:, None] * channels + channel[None, :]
    base = (device * height * (width + 1) * batch + image) * channels + first
    best = tl.full((images, block), float("-inf"), dtype=tl.float32)
    found = tl.zeros((images, block), dtype=tl.int32)
    for position in range(0, height * width):
        at = position // width * (width + 1) + position % width
        place = base + at * batch * channels
        value = _normalised(signal, place, mean, inverse, offsets)
        value = tl.where(value <= 0, 0.0, value) + tl.load(added + place + offsets).to(tl.float32)
        # Written so that NaN stays NaN; of equal values the first counts, as in PyTorch.
        better = (value <= best) == 0
        best = tl.where(better, value, best)
        found = tl.where(better, position, found)
    base = (device * batch + image) * channels + first
    tl.store(out + base + offsets, best.to(out.dtype.element_ty))
    tl.store(chosen + base + offsets, found.to(chosen.dtype.element_ty))


@triton.jit(do_not_specialize=["height", "width", "batch", "channels"])  # type: ignore[untyped-decorator]
def gradient_sums(
    gradient: tl.tensor,
    kept: tl.tensor,
    normal: tl.tensor,
    chosen: tl.tensor,
    sums: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    batch: tl.tensor,
    channels: tl.tensor,
    has_normal: tl.constexpr,
    has_chosen: tl.constexpr,
    images: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """The sums of one row."""
    blocks, parts = channels // block, batch // images
    channels, batch = blocks * block, parts * images
    program = tl.program_id(0)
    first = (program % blocks) * block
    row = (program // blocks) % height
    device = (program // (blocks * height)).to(tl.int64)
    channel = tl.arange(0, block)
    offsets = tl.arange(0, images)[:, None] * channels + channel[None, :]
    if has_normal:
        mean = tl.load(normal + device * 2 * channels + first + channel)
        inverse = tl.load(normal + (device * 2 + 1) * channels + first + channel)
    base = (device * height + row) * (width + 1) * batch * channels + first
    of_images = device * batch * channels + first
    plain = tl.zeros((images, block), dtype=tl.float32)
    weighted = tl.zeros((images, block), dtype=tl.float32)
    for part in range(0, width * parts):
        place = base + part * images * channels
        if has_normal:
            value = _normalised(kept, place, mean, inverse, offsets)
        else:
            value = tl.load(kept + place + offsets).to(tl.float32)
        if has_chosen:
            at = of_images + (part % parts) * images * channels
            change = tl.load(gradient + at + offsets).to(tl.float32)
            position = row * width + part // parts
            change = tl.where(tl.load(chosen + at + offsets).to(tl.int32) == position, change, 0.0)
        else:
            change = tl.load(gradient + place + offsets).to(tl.float32)
        change = tl.where(value <= 0, 0.0, change)
        plain += change
        weighted += change * value
    place = sums + (device * height + row) * 2 * channels + first + channel
    tl.store(place, tl.sum(plain, axis=0))
    tl.store(place + channels, tl.sum(weighted, axis=0))


@triton.jit(do_not_specialize=["height", "channels", "positions"])  # type: ignore[untyped-decorator]
def finish_sums(
    sums: tl.tensor,
    means: tl.tensor,
    height: tl.tensor,
    channels: tl.tensor,
    positions: tl.tensor,
    rows: tl.constexpr,
    block: tl.constexpr,
) -> None:
    blocks = channels // block
    channels = blocks * block
    device = (tl.program_id(0) // blocks).to(tl.int64)
    channel = (tl.program_id(0) % blocks) * block + tl.arange(0, block)
    row = tl.arange(0, rows)
    source = sums + device * height * 2 * channels + row[:, None] * (2 * channels) + channel[None, :]
    inside = row[:, None] < height
    place = means + device * 2 * channels + channel
    tl.store(place, tl.sum(tl.load(source, mask=inside, other=0.0), axis=0) / positions)
    tl.store(place + channels, tl.sum(tl.load(source + channels, mask=inside, other=0.0), axis=0) / positions)


@triton.jit  # type: ignore[untyped-decorator]
def _store_gradient(
    change: tl.tensor,
    value: tl.tensor,
    inverse: tl.tensor,
    mean_change: tl.tensor,
    mean_weighted: tl.tensor,
    out: tl.tensor,
    turned: tl.tensor,
    offsets: tl.tensor,
    turned_offsets: tl.tensor,
    has_out: tl.constexpr,
    has_turned: tl.constexpr,
    rounded: tl.constexpr,
) -> None:
    change = (change - mean_change[None, :] - value * mean_weighted[None, :]) * inverse[None, :]
    if rounded:
        change = nearest(change)
    if has_out:
        tl.store(out + offsets, change.to(out.dtype.element_ty))
    if has_turned:
        tl.store(turned + turned_offsets, change.to(turned.dtype.element_ty))


@triton.jit(do_not_specialize=["height", "width", "batch", "channels"])  # type: ignore[untyped-decorator]
def deactivate(
    gradient: tl.tensor,
    signal: tl.tensor,
    normal: tl.tensor,
    means: tl.tensor,
    chosen: tl.tensor,
    out: tl.tensor,
    turned: tl.tensor,
    of_added: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    batch: tl.tensor,
    channels: tl.tensor,
    pool: tl.constexpr,
    has_chosen: tl.constexpr,
    has_out: tl.constexpr,
    has_turned: tl.constexpr,
    rounded: tl.constexpr,
    images: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Height and width are those of the signal."""
    blocks, parts = channels // block, batch // images
    channels, batch = blocks * block, parts * images
    program = tl.program_id(0)
    first = (program % blocks) * block
    image = ((program // blocks) % parts) * images
    column = (program // (blocks * parts)) % (width // pool)
    row = (program // (blocks * parts * (width // pool))) % (height // pool)
    device = (program // (blocks * parts * (width // pool) * (height // pool))).to(tl.int64)
    channel = tl.arange(0, block)
    mean = tl.load(normal + device * 2 * channels + first + channel)
    inverse = tl.load(normal + (device * 2 + 1) * channels + first + channel)
    mean_change = tl.load(means + device * 2 * channels + first + channel)
    mean_weighted = tl.load(means + (device * 2 + 1) * channels + first + channel)
    offsets = tl.arange(0, images)[:, None] * channels + channel[None, :]
    plane = height * (width + 1) * batch
    turned_offsets = tl.arange(0, images)[:, None] + channel[None, :] * plane
    at = row * pool * (width + 1) + column * pool
    place = device * plane * channels + (at * batch + image) * channels + first
    turned_place = (device * channels + first) * plane + at * batch + image
    if has_chosen:
        source = (device * batch + image) * channels + first
        change = tl.load(gradient + source + offsets).to(tl.float32)
        here = tl.load(chosen + source + offsets).to(tl.int32) == row * width + column
        change = tl.where(here, change, 0.0)
        tl.store(of_added + place + offsets, change.to(of_added.dtype.element_ty))
    else:
        at = (device * (height // pool) + row) * (width // pool + 1) + column
        change = tl.load(gradient + (at * batch + image) * channels + first + offsets).to(tl.float32)
    if pool == 1:
        value = _normalised(signal, place, mean, inverse, offsets)
        _store_gradient(
            tl.where(value <= 0, 0.0, change),
            value,
            inverse,
            mean_change,
            mean_weighted,
            out + place,
            turned + turned_place,
            offsets,
            turned_offsets,
            has_out,
            has_turned,
            rounded,
        )
    else:
        right, down = batch * channels, (width + 1) * batch * channels
        one = _normalised(signal, place, mean, inverse, offsets)
        two = _normalised(signal, place + right, mean, inverse, offsets)
        three = _normalised(signal, place + down, mean, inverse, offsets)
        four = _normalised(signal, place + down + right, mean, inverse, offsets)
        best = tl.maximum(tl.maximum(one, two), tl.maximum(three, four))
        change = tl.where(best <= 0, 0.0, change)
        # The gradient goes to the first of the largest values, as in PyTorch.
        at_out, at_turned = out + place, turned + turned_place
        taken = one == best
        _store_gradient(
            tl.where(taken, change, 0.0),
            one,
            inverse,
            mean_change,
            mean_weighted,
            at_out,
            at_turned,
            offsets,
            turned_offsets,
            has_out,
            has_turned,
            rounded,
        )
        mine = (two == best) & (taken == 0)
        _store_gradient(
            tl.where(mine, change, 0.0),
            two,
            inverse,
            mean_change,
            mean_weighted,
            at_out + right,
            at_turned + batch,
            offsets,
            turned_offsets,
            has_out,
            has_turned,
            rounded,
        )
        taken = taken | mine
        mine = (three == best) & (taken == 0)
        at_out, at_turned = at_out + down, at_turned + (width + 1) * batch
        _store_gradient(
            tl.where(mine, change, 0.0),
            three,
            inverse,
            mean_change,
            mean_weighted,
            at_out,
            at_turned,
            offsets,
            turned_offsets,
            has_out,
            has_turned,
            rounded,
        )
        taken = taken | mine
        mine = (four == best) & (taken == 0)
        _store_gradient(
            tl.where(mine, change, 0.0),
            four,
            inverse,
            mean_change,
            mean_weighted,
            at_out + right,
            at_turned + batch,
            offsets,
            turned_offsets,
            has_out,
            has_turned,
            rounded,
        )
