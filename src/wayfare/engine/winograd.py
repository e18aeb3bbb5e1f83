"""Faster 3x3 convolutions on a CPU (Winograd, F(2x2, 3x3); Lavin and Gray 2016).

A tile of 2 x 2 outputs depends on 4 x 4 inputs. With inputs d, kernel g and the elementwise product *,

    y = A' [(G g G') * (B' d B)] A

takes 16 products instead of 36. Summed over channels these are 16 matrix products, one for each entry
of a tile, and so are both gradients. The rest is additions, done for a few images at a time so that they stay in the
cache. Rounding errors are no larger than with the definition, whose sums are longer (benchmarks/NOTES.md).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from wayfare.engine.unfolded import is_plain

# G, the transform of a row of a kernel.
_KERNEL = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))
_FROM_CHANNELS = 64
# Bytes of tiles per chunk: small enough for the cache, large enough for a pass over the kernel.
_CHUNK_BYTES = 2 << 20


def pays(layer: nn.Conv2d) -> bool:
    """Whether a convolution is 3x3, keeps the image size, and has enough channels to pay for the additions."""
    return is_plain(layer) and layer.bias is None and layer.in_channels >= _FROM_CHANNELS


def has_tiles(signal: Tensor) -> bool:
    return signal.shape[2] % 2 == 0 and signal.shape[3] % 2 == 0


class Winograd:
    """The convolution of one layer. It reuses its buffers, because allocating them costs as much as using them."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def __call__(self, signal: Tensor, kernel: Tensor) -> Tensor:
        """As `conv2d(signal, kernel, padding=1)`. The backward pass must run before the next forward pass."""
        product: Tensor = _Convolution.apply(signal, kernel, self)  # type: ignore[no-untyped-call]
        return product

    def memory(self, name: str, like: Tensor, *shape: int) -> Tensor:
        kept = self._kept.get(name)
        if kept is None or kept.shape != shape or kept.dtype != like.dtype:
            kept = self._kept[name] = like.new_empty(shape)
        return kept


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, signal: Tensor, kernel: Tensor, layer: Winograd) -> Tensor:
        images = signal.permute(0, 2, 3, 1)
        batch, height, width, inputs = images.shape
        rows, columns, outputs = height // 2, width // 2, len(kernel)
        turned = layer.memory("kernel", kernel, 16, outputs, inputs)
        torch.mm(_kernel_matrix(kernel), kernel.permute(2, 3, 0, 1).reshape(9, -1), out=turned.view(16, -1))
        tiles = layer.memory("tiles", images, 4, 4, batch, rows, columns, inputs)
        result = layer.memory("result", images, batch, rows, 2, columns, 2, outputs)
        for part in _parts(tiles, turned):
            mine = tiles[:, :, part]
            _tiles_of(images[part], mine)
            products = torch.bmm(mine.reshape(16, -1, inputs), turned.transpose(1, 2))
            _outputs_of(products.view(4, 4, -1, rows, columns, outputs), result[part])
        ctx.layer, ctx.tiles, ctx.turned = layer, tiles, turned
        return result.view(batch, height, width, outputs).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        tiles, turned = ctx.tiles, ctx.turned
        _, _, batch, rows, columns, inputs = tiles.shape
        outputs = turned.shape[1]
        images = gradient.permute(0, 2, 3, 1).reshape(batch, rows, 2, columns, 2, outputs)
        of_turned = ctx.layer.memory("gradient", turned, *turned.shape)
        of_signal = ctx.layer.memory("signal", images, batch, 2 * rows + 2, 2 * columns + 2, inputs)
        for part in _parts(tiles, turned):
            mine = images.new_empty(4, 4, len(images[part]), rows, columns, outputs)
            _gradient_tiles(images[part], mine)
            flat = mine.view(16, -1, outputs)
            # The first part writes, the others add.
            beta = float(part.start > 0)
            of_turned.baddbmm_(flat.transpose(1, 2), tiles[:, :, part].reshape(16, -1, inputs), beta=beta)
            if ctx.needs_input_grad[0]:
                back = torch.bmm(flat, turned).view(4, 4, -1, rows, columns, inputs)
                _collect(back, of_signal[part])
        flat_kernel = _kernel_matrix(turned).t() @ of_turned.view(16, -1)
        of_kernel = flat_kernel.view(3, 3, outputs, inputs).permute(2, 3, 0, 1)
        if not ctx.needs_input_grad[0]:
            return None, of_kernel, None
        return of_signal[:, 1:-1, 1:-1].permute(0, 3, 1, 2), of_kernel, None


def _parts(tiles: Tensor, turned: Tensor) -> list[slice]:
    _, _, batch, rows, columns, inputs = tiles.shape
    of_image = 16 * rows * columns * max(inputs, turned.shape[1])
    step = max(1, max(_CHUNK_BYTES // turned.element_size(), turned.numel()) // of_image)
    return [slice(first, min(first + step, batch)) for first in range(0, batch, step)]


def _kernel_matrix(like: Tensor) -> Tensor:
    """G (x) G, (16, 9): maps the nine entries of a kernel to G g G'."""
    half = like.new_tensor(_KERNEL)
    return torch.kron(half, half)


def _tiles_of(images: Tensor, tiles: Tensor) -> None:
    """B' d B of every tile of images (n, height, width, channels), into (4, 4, n, rows, columns, channels).

    B' d of rows 0 to 3 of a tile: r0 - r2, r1 + r2, r2 - r1, r3 - r1 (the last with the opposite sign, which A
    reverses).
    """
    count, height, width, channels = images.shape
    rows = height // 2
    padded = nn.functional.pad(images, (0, 0, 1, 1, 1, 1))
    half = images.new_empty(4, count, rows, width + 2, channels)
    _four(half, *(padded[:, first : first + height - 1 : 2] for first in range(4)))
    _four(tiles.transpose(0, 1), *(half[:, :, :, first : first + width - 1 : 2] for first in range(4)))


def _four(out: Tensor, first: Tensor, second: Tensor, third: Tensor, fourth: Tensor) -> None:
    torch.sub(first, third, out=out[0])
    torch.add(second, third, out=out[1])
    torch.sub(third, second, out=out[2])
    torch.sub(fourth, second, out=out[3])


def _outputs_of(products: Tensor, images: Tensor) -> None:
    """A' m A of every tile, into (n, rows, 2, columns, 2, channels): m0 + m1 + m2 and m1 - m2 + m3."""
    half = products.new_empty(2, *products.shape[1:])
    _both(half, products)
    _both(images.permute(4, 2, 0, 1, 3, 5), half.transpose(0, 1))


def _both(out: Tensor, products: Tensor) -> None:
    torch.add(products[0], products[1], out=out[0]).add_(products[2])
    torch.sub(products[1], products[2], out=out[1]).add_(products[3])


def _gradient_tiles(images: Tensor, tiles: Tensor) -> None:
    """A dy A' of every tile: the transpose of `_outputs_of`."""
    half = images.new_empty(4, *images.shape[:2], *images.shape[3:])
    above, below = images[:, :, 0], images[:, :, 1]
    _two(half, above, below)
    _two(tiles.transpose(0, 1), half[:, :, :, :, 0], half[:, :, :, :, 1])


def _two(out: Tensor, first: Tensor, second: Tensor) -> None:
    out[0].copy_(first)
    torch.add(first, second, out=out[1])
    torch.sub(first, second, out=out[2])
    out[3].copy_(second)


def _collect(tiles: Tensor, padded: Tensor) -> None:
    """B dv B' of every tile, summed where tiles overlap, into padded images."""
    _, _, count, rows, columns, channels = tiles.shape
    half = tiles.new_empty(4, count, rows, 2 * columns + 2, channels)
    _overlap(tiles.transpose(0, 1), half, axis=3)
    _overlap(half, padded, axis=1)


def _overlap(tiles: Tensor, lines: Tensor, axis: int) -> None:
    """Sum four lines per tile; the last two overlap the first two of the next tile."""
    last = lines.shape[axis] - 2
    first, second, third, fourth = (lines.movedim(axis, 0)[k : k + last - 1 : 2].movedim(0, axis) for k in range(4))
    first.copy_(tiles[0])
    torch.sub(tiles[1], tiles[2], out=second).sub_(tiles[3])
    lines.narrow(axis, last, 2).zero_()
    third.add_(torch.add(tiles[1], tiles[2]).sub_(tiles[0]))
    fourth.add_(tiles[3])
