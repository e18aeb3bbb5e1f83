"""The kernels of `depthwise`, which states their equations and launches them."""

from __future__ import annotations

import triton
import triton.language as tl

from wayfare.engine.tuned.relu import activated


@triton.jit  # type: ignore[untyped-decorator]
def is_between(row: tl.tensor, height: tl.tensor) -> tl.tensor:
    """Whether a row is inside an image, as a block: the interpreter cannot combine a block and a single truth value."""
    block = row + tl.zeros((1, 1), dtype=tl.int32)
    return (block >= 0) & (block < height)


_SIZES = ["height", "width", "out_height", "out_width", "pairs", "blocks", "left"]


@triton.jit  # type: ignore[untyped-decorator]
def _stored(
    out: tl.tensor,
    gate: tl.tensor,
    place: tl.tensor,
    total: tl.tensor,
    limit: tl.tensor,
    mask: tl.tensor,
    has_limit: tl.constexpr,
    has_gate: tl.constexpr,
) -> None:
    if has_limit:
        total = activated(total, limit)
    if has_gate:
        signal = tl.load(gate + place, mask=mask, other=0.0).to(tl.float32)
        total = tl.where((signal <= 0) | (signal >= limit), 0.0, total)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _added(
    total: tl.tensor,
    value: tl.tensor,
    tap1: tl.tensor,
    tap2: tl.tensor,
    tap3: tl.tensor,
    tap4: tl.tensor,
    tap5: tl.tensor,
    number: tl.constexpr,
    kernel: tl.constexpr,
) -> tl.tensor:
    """Add the product of a value and the tap with a number, counted from 0, if the kernel has it."""
    if number == 0:
        total += value * tap1
    if number == 1:
        total += value * tap2
    if number == 2:
        total += value * tap3
    if kernel > 3:
        if number == 3:
            total += value * tap4
        if number == 4:
            total += value * tap5
    return total


@triton.jit(do_not_specialize=[*_SIZES, "by_device", "bias_by_device", "top"])  # type: ignore[untyped-decorator]
def convolve(
    source: tl.tensor,
    weights: tl.tensor,
    bias: tl.tensor,
    gate: tl.tensor,
    out: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    out_height: tl.tensor,
    out_width: tl.tensor,
    channels: tl.tensor,
    pairs: tl.tensor,
    blocks: tl.tensor,
    by_device: tl.tensor,
    bias_by_device: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    limit: tl.tensor,
    has_bias: tl.constexpr,
    has_limit: tl.constexpr,
    has_gate: tl.constexpr,
    kernel: tl.constexpr,
    stride: tl.constexpr,
    pairs_at_once: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Five rows of the result, for pairs of an image and a column: a value is read once for all of them."""
    device = tl.program_id(0) // blocks
    pair = (tl.program_id(0) % blocks) * pairs_at_once + tl.arange(0, pairs_at_once)
    channel = (tl.program_id(1) * block + tl.arange(0, block))[None, :]
    first = tl.program_id(2) * 5
    known, inside = (pair < pairs)[:, None], channel < channels
    image, column = device.to(tl.int64) * (pairs // out_width) + pair // out_width, pair % out_width
    here = source + (image * height * width + column * stride - left)[:, None] * channels + channel
    weights += device.to(tl.int64) * by_device * (kernel * kernel) * channels
    shift = tl.zeros((1, block), dtype=tl.float32)
    if has_bias:
        shift = tl.load(bias + device * bias_by_device * channels + channel, mask=inside, other=0.0)
    one = tl.zeros((pairs_at_once, block), dtype=tl.float32) + shift
    two, three, four, five = one, one, one, one
    for tap_column in range(kernel):
        from_column = (column * stride + tap_column - left)[:, None]
        found = known & (from_column >= 0) & (from_column < width) & inside
        taps, next_tap = weights + tap_column * channels + channel, kernel * channels
        tap1 = tl.load(taps, mask=inside, other=0.0)
        tap2 = tl.load(taps + next_tap, mask=inside, other=0.0)
        tap3 = tl.load(taps + 2 * next_tap, mask=inside, other=0.0)
        tap4, tap5 = tap1, tap1
        if kernel > 3:
            tap4 = tl.load(taps + 3 * next_tap, mask=inside, other=0.0)
            tap5 = tl.load(taps + 4 * next_tap, mask=inside, other=0.0)
        for number in tl.static_range(kernel + 4 * stride):
            row = first * stride + number - top
            value = tl.load(
                here + (row * width + tap_column) * channels, mask=found & is_between(row, height), other=0.0
            ).to(tl.float32)
            one = _added(one, value, tap1, tap2, tap3, tap4, tap5, number, kernel)
            two = _added(two, value, tap1, tap2, tap3, tap4, tap5, number - stride, kernel)
            three = _added(three, value, tap1, tap2, tap3, tap4, tap5, number - 2 * stride, kernel)
            four = _added(four, value, tap1, tap2, tap3, tap4, tap5, number - 3 * stride, kernel)
            five = _added(five, value, tap1, tap2, tap3, tap4, tap5, number - 4 * stride, kernel)
    place = (image * out_height * out_width + first * out_width + column)[:, None] * channels + channel
    mask, row = known & inside, out_width * channels
    _stored(out, gate, place, one, limit, mask, has_limit, has_gate)
    mask2, mask3 = mask & is_between(first + 1, out_height), mask & is_between(first + 2, out_height)
    _stored(out, gate, place + row, two, limit, mask2, has_limit, has_gate)
    _stored(out, gate, place + 2 * row, three, limit, mask3, has_limit, has_gate)
    mask4, mask5 = mask & is_between(first + 3, out_height), mask & is_between(first + 4, out_height)
    _stored(out, gate, place + 3 * row, four, limit, mask4, has_limit, has_gate)
    _stored(out, gate, place + 4 * row, five, limit, mask5, has_limit, has_gate)


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def strided_inputs(
    error: tl.tensor,
    weights: tl.tensor,
    gate: tl.tensor,
    out: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    out_height: tl.tensor,
    out_width: tl.tensor,
    channels: tl.tensor,
    pairs: tl.tensor,
    blocks: tl.tensor,
    left: tl.tensor,
    limit: tl.tensor,
    has_gate: tl.constexpr,
    top: tl.constexpr,
    kernel: tl.constexpr,
    pairs_at_once: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Four rows of the gradient of a signal, for pairs of an image and an even or an odd column; the stride is 2.

    Height and width are those of the error. A position gets products of every other tap, so that columns of one kind
    have the same taps.
    """
    device = tl.program_id(0) // blocks
    pair = (tl.program_id(0) % blocks) * pairs_at_once + tl.arange(0, pairs_at_once)
    channel = (tl.program_id(1) * block + tl.arange(0, block))[None, :]
    odd, strip = tl.program_id(2) % 2, tl.program_id(2) // 2
    columns = (out_width + 1) // 2
    column = (pair % columns) * 2 + odd
    inside = channel < channels
    known = ((pair < pairs) & (column < out_width))[:, None] & inside
    image = device.to(tl.int64) * (pairs // columns) + pair // columns
    weights += device.to(tl.int64) * (kernel * kernel) * channels
    one = tl.zeros((pairs_at_once, block), dtype=tl.float32)
    two, three, four = one, one, one
    for tap_column in range((odd + left) % 2, kernel, 2):
        from_column = ((column + left - tap_column) // 2)[:, None]
        found = known & (column + left >= tap_column)[:, None] & (from_column < width)
        here = error + ((image * height + strip * 2) * width)[:, None] * channels + from_column * channels + channel
        taps, next_tap = weights + tap_column * channels + channel, kernel * channels
        tap1 = tl.load(taps, mask=inside, other=0.0)
        tap2 = tl.load(taps + next_tap, mask=inside, other=0.0)
        tap3 = tl.load(taps + 2 * next_tap, mask=inside, other=0.0)
        tap4, tap5 = tap1, tap1
        if kernel > 3:
            tap4 = tl.load(taps + 3 * next_tap, mask=inside, other=0.0)
            tap5 = tl.load(taps + 4 * next_tap, mask=inside, other=0.0)
        for number in tl.static_range((kernel - 1 - top) // 2 + (3 + top) // 2 + 1):
            value = tl.load(
                here + (number - (kernel - 1 - top) // 2) * width * channels,
                mask=found & is_between(strip * 2 + number - (kernel - 1 - top) // 2, height),
                other=0.0,
            ).to(tl.float32)
            # The tap of the first row is the first number; that of each next row is one further.
            one = _added(one, value, tap1, tap2, tap3, tap4, tap5, top + 2 * ((kernel - 1 - top) // 2 - number), kernel)
            two = _added(
                two, value, tap1, tap2, tap3, tap4, tap5, top + 2 * ((kernel - 1 - top) // 2 - number) + 1, kernel
            )
            three = _added(
                three, value, tap1, tap2, tap3, tap4, tap5, top + 2 * ((kernel - 1 - top) // 2 - number) + 2, kernel
            )
            four = _added(
                four, value, tap1, tap2, tap3, tap4, tap5, top + 2 * ((kernel - 1 - top) // 2 - number) + 3, kernel
            )
    place = ((image * out_height + strip * 4) * out_width + column)[:, None] * channels + channel
    row = out_width * channels
    _stored(out, gate, place, one, limit, known, False, has_gate)
    mask2, mask3 = known & is_between(strip * 4 + 1, out_height), known & is_between(strip * 4 + 2, out_height)
    _stored(out, gate, place + row, two, limit, mask2, False, has_gate)
    _stored(out, gate, place + 2 * row, three, limit, mask3, False, has_gate)
    _stored(out, gate, place + 3 * row, four, limit, known & is_between(strip * 4 + 3, out_height), False, has_gate)
