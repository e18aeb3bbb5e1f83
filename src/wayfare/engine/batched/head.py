"""Triton kernels for the linear layer and the cross-entropy of all devices.

With features x of an image, offsets a of the classes and B images per minibatch,

    p = softmax(W x + b + a),    d = (p - onehot(label)) / B,

d is the gradient of b for one image, and the gradients are W' d of x, and the sums over images of d x' of W and of d.

A library's products and sums may take another order for another number of devices. Here every program works for one
device, in single precision, and its order depends on nothing else.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wayfare.engine.batched.activations import images_per_program
from wayfare.engine.batched.convolutions import ROUNDING, on_device_of

# Features per step of a sum.
_FEATURES = 32
# The smallest side of a product of tiles.
_SMALLEST = 16


def linear_gradients(
    features: Tensor,
    linear: Tensor,
    bias: Tensor,
    labels: Tensor,
    offsets: Tensor | None,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of features (devices, batch, features), weights (rows, classes, features) and bias.

    ``rows`` are those of the devices in weights and bias; without them, devices have the first rows in order.
    ``labels`` are (devices, batch); ``offsets`` (devices, classes) are added to the logits.
    """
    devices, batch, channels = features.shape
    classes = linear.shape[1]
    images, block = images_per_program(batch), min(_FEATURES, channels & -channels)
    padded = max(_SMALLEST, triton.next_power_of_2(classes))
    of_features, of_linear = torch.empty_like(features), features.new_empty(devices, classes, channels)
    of_bias = features.new_empty(devices, classes)
    of_logits = features.new_empty(devices, batch, classes)
    with on_device_of(features):
        _of_images[(devices * (batch // images),)](
            features,
            linear,
            bias,
            labels,
            bias if offsets is None else offsets,
            labels if rows is None else rows,
            of_logits,
            of_features,
            batch,
            channels,
            classes,
            has_offsets=offsets is not None,
            has_rows=rows is not None,
            images=images,
            block=block,
            padded=padded,
            **ROUNDING,
        )
        _of_weights[(devices * (channels // block),)](
            features,
            of_logits,
            of_linear,
            of_bias,
            batch,
            channels,
            classes,
            images=images,
            block=block,
            padded=padded,
            **ROUNDING,
        )
    return of_features, of_linear, of_bias


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["batch", "channels", "classes"], do_not_specialize_on_alignment=["rows"]
)
def _of_images(
    features: tl.tensor,
    linear: tl.tensor,
    bias: tl.tensor,
    labels: tl.tensor,
    offsets: tl.tensor,
    rows: tl.tensor,
    of_logits: tl.tensor,
    of_features: tl.tensor,
    batch: tl.tensor,
    channels: tl.tensor,
    classes: tl.tensor,
    has_offsets: tl.constexpr,
    has_rows: tl.constexpr,
    images: tl.constexpr,
    block: tl.constexpr,
    padded: tl.constexpr,
) -> None:
    """d and W' d of some images of one device."""
    parts = batch // images
    device = (tl.program_id(0) // parts).to(tl.int64)
    image = (tl.program_id(0) % parts) * images + tl.arange(0, images)
    class_, channel = tl.arange(0, padded), tl.arange(0, block)
    known = class_ < classes
    at_features = (device * batch + image[:, None]) * channels + channel[None, :]
    mine = device
    if has_rows:
        mine = tl.load(rows + device).to(tl.int64)
    at_linear = linear + (mine * classes + class_[:, None]) * channels + channel[None, :]
    total = tl.zeros((images, padded), dtype=tl.float32)
    for first in range(0, channels, block):
        weights = tl.load(at_linear + first, mask=known[:, None], other=0.0)
        total = tl.dot(tl.load(features + at_features + first), weights.T, total, input_precision="ieee")
    added = tl.load(bias + mine * classes + class_, mask=known, other=0.0)
    if has_offsets:
        total += (added + tl.load(offsets + device * classes + class_, mask=known, other=0.0))[None, :]
    else:
        total += added[None, :]
    total = tl.where(known[None, :], total, float("-inf"))
    share = tl.exp(total - tl.max(total, axis=1)[:, None])
    share = share / tl.sum(share, axis=1)[:, None]
    label = tl.load(labels + device * batch + image)
    change = (share - tl.where(label[:, None] == class_[None, :], 1.0, 0.0)) / batch
    place = (device * batch + image[:, None]) * classes + class_[None, :]
    tl.store(of_logits + place, change, mask=known[None, :])
    for first in range(0, channels, block):
        weights = tl.load(at_linear + first, mask=known[:, None], other=0.0)
        tl.store(of_features + at_features + first, tl.dot(change, weights, input_precision="ieee"))


@triton.jit(do_not_specialize=["batch", "channels", "classes"])  # type: ignore[untyped-decorator]
def _of_weights(
    features: tl.tensor,
    of_logits: tl.tensor,
    of_linear: tl.tensor,
    of_bias: tl.tensor,
    batch: tl.tensor,
    channels: tl.tensor,
    classes: tl.tensor,
    images: tl.constexpr,
    block: tl.constexpr,
    padded: tl.constexpr,
) -> None:
    """The sums over images of d x', for some features, and of d."""
    blocks = channels // block
    device = (tl.program_id(0) // blocks).to(tl.int64)
    channel = (tl.program_id(0) % blocks) * block + tl.arange(0, block)
    image, class_ = tl.arange(0, images), tl.arange(0, padded)
    known = class_ < classes
    total = tl.zeros((padded, block), dtype=tl.float32)
    plain = tl.zeros((padded,), dtype=tl.float32)
    for first in range(0, batch, images):
        row = device * batch + first + image[:, None]
        change = tl.load(of_logits + row * classes + class_[None, :], mask=known[None, :], other=0.0)
        signal = tl.load(features + row * channels + channel[None, :])
        total = tl.dot(change.T, signal, total, input_precision="ieee")
        plain += tl.sum(change, axis=0)
    place = (device * classes + class_[:, None]) * channels + channel[None, :]
    tl.store(of_linear + place, total, mask=known[:, None])
    if tl.program_id(0) % blocks == 0:
        tl.store(of_bias + device * classes + class_, plain, mask=known)
