"""Triton kernels between the convolutions of many devices: batch normalisation, ReLU, residual sums and max pooling.

With y the result of a convolution, its mean m and deviation over the images and positions of one device's minibatch,

    n = (y - m) / sqrt(variance + eps),    z = pooled(added + max(n, 0)).

A pass over y writes z, in both layouts of `convolutions` if needed. With N positions and dn the gradient of n,

    dy = (dn - sum(dn) / N - n sum(dn n) / N) / sqrt(variance + eps).

Where z > 0 without an added signal, n = z at the positions that pooling chose. So the two sums need only z and its
gradient, and another pass writes dy. Sums have a fixed order that does not depend on the number of devices.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from wayfare.engine.batched import activation_kernels as kernels
from wayfare.engine.batched.convolutions import ROUNDING, on_device_of

# Channels per program.
_BLOCK = 64


def images_per_program(batch: int) -> int:
    """The largest power of two that divides a batch, at most 32: programs never straddle two columns."""
    return min(32, batch & -batch)


def _block(channels: int) -> int:
    return min(_BLOCK, channels & -channels)


def activate(
    signal: Tensor,
    normal: Tensor,
    out: Tensor,
    turned: Tensor | None = None,
    *,
    added: Tensor | None = None,
    rounded: bool,
) -> None:
    """z of padded signals y. ``out`` is half as high and wide if it is to be pooled (2 x 2)."""
    devices, height, columns, batch, channels = out.shape
    block, images = _block(channels), images_per_program(batch)
    with on_device_of(signal):
        kernels.activate[(devices * height * (columns - 1) * (batch // images) * (channels // block),)](
            signal,
            normal,
            out if added is None else added,
            out,
            out if turned is None else turned,
            height,
            columns - 1,
            batch,
            channels,
            pool=signal.shape[1] // height,
            has_added=added is not None,
            has_turned=turned is not None,
            rounded=rounded,
            images=images,
            block=block,
            **ROUNDING,
        )


def activate_and_pool_all(signal: Tensor, normal: Tensor, added: Tensor, out: Tensor, chosen: Tensor) -> None:
    """z (devices, batch, channels) with a maximum over all positions, and the position that it came from."""
    devices, height, columns, batch, channels = signal.shape
    block, images = min(32, _block(channels)), images_per_program(batch)
    with on_device_of(signal):
        kernels.activate_and_pool_all[(devices * (batch // images) * (channels // block),)](
            signal,
            normal,
            added,
            out,
            chosen,
            height,
            columns - 1,
            batch,
            channels,
            images=images,
            block=block,
            **ROUNDING,
        )


def gradient_means(
    gradient: Tensor, kept: Tensor, means: Tensor, positions: int, normal: Tensor | None, chosen: Tensor | None = None
) -> None:
    """The means (devices, 2, channels) of dn and of dn n over all ``positions`` of n.

    ``kept`` is z, or y if its ``normal`` is given. With ``chosen``, the gradient is that of `activate_and_pool_all`.
    """
    devices, height, columns, batch, channels = kept.shape
    block, images = _block(channels), images_per_program(batch)
    sums = torch.empty(devices, height, 2, channels, device=kept.device)
    with on_device_of(kept):
        kernels.gradient_sums[(devices * height * (channels // block),)](
            gradient,
            kept,
            kept if normal is None else normal,
            kept if chosen is None else chosen,
            sums,
            height,
            columns - 1,
            batch,
            channels,
            has_normal=normal is not None,
            has_chosen=chosen is not None,
            images=images,
            block=block,
            **ROUNDING,
        )
        kernels.finish_sums[(devices * (channels // block),)](
            sums,
            means,
            height,
            channels,
            positions,
            rows=max(32, triton.next_power_of_2(height)),
            block=block,
            **ROUNDING,
        )


def deactivate(
    gradient: Tensor,
    signal: Tensor,
    normal: Tensor,
    means: Tensor,
    out: Tensor | None,
    turned: Tensor | None = None,
    *,
    pool: int = 1,
    chosen: Tensor | None = None,
    of_added: Tensor | None = None,
    rounded: bool,
) -> None:
    """dy from the gradient of z; with ``chosen``, of `activate_and_pool_all`, then also the gradient of ``added``."""
    devices, height, columns, batch, channels = signal.shape
    block, images = _block(channels), images_per_program(batch)
    programs = devices * (height // pool) * ((columns - 1) // pool) * (batch // images) * (channels // block)
    with on_device_of(signal):
        kernels.deactivate[(programs,)](
            gradient,
            signal,
            normal,
            means,
            signal if chosen is None else chosen,
            signal if out is None else out,
            signal if turned is None else turned,
            signal if of_added is None else of_added,
            height,
            columns - 1,
            batch,
            channels,
            pool=pool,
            has_chosen=chosen is not None,
            has_out=out is not None,
            has_turned=turned is not None,
            rounded=rounded,
            images=images,
            block=block,
            **ROUNDING,
        )
