"""A network as a chain of blocks, so that it can be cut into a frozen part and a trained part."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

NORMS = _BatchNorm, nn.LayerNorm, nn.GroupNorm


class Pooling(nn.Module):
    """The mean over all pixels: (n, channels, height, width) to (n, channels)."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))


@torch.no_grad()
def chain_of(module: nn.Module, image: Tensor) -> tuple[nn.Module, ...]:
    """The blocks of a network whose children apply one after the other, or () if they do not.

    Some networks pool or flatten between their children. The chain is tried on an image, so that no network is taken
    for a chain by mistake.
    """
    blocks = tuple(_flat(module if isinstance(module, nn.Sequential) else module.children()))
    ends: tuple[tuple[nn.Module, ...], ...] = ((), (nn.Flatten(),), (Pooling(),))
    expected = module(image)
    for end in ends:
        try:
            found = nn.Sequential(*blocks, *end)(image)
            same = found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
        except Exception:
            # Layers raise many kinds of errors for inputs that they do not take, and some give no tensor.
            continue
        if blocks and same:
            return *blocks, *end
    return ()


def _flat(layers: Iterator[nn.Module] | nn.Sequential) -> Iterator[nn.Module]:
    for layer in layers:
        # Subclasses of Sequential may compute something else.
        if type(layer) is nn.Sequential:
            yield from _flat(layer)
        else:
            yield layer


def weighted(blocks: Sequence[nn.Module]) -> list[int]:
    """The indices of blocks that have parameters. A normalisation belongs to the block before it."""
    found: list[int] = []
    for index, block in enumerate(blocks):
        if any(True for _ in block.parameters()) and not (found and isinstance(block, NORMS)):
            found.append(index)
    return found


def folded(module: nn.Module) -> nn.Module:
    """A copy with every normalisation folded into the convolution before it: the same function in less time.

    A convolution of another class may treat its kernel in its own way; the caller compares both networks.
    """
    module = copy.deepcopy(module).eval()
    for layers in [layer for layer in module.modules() if isinstance(layer, nn.Sequential)]:
        for index, (convolution, norm) in enumerate(pairwise(list(layers))):
            if isinstance(convolution, nn.Conv2d) and type(norm) is nn.BatchNorm2d and norm.track_running_stats:
                layers[index], layers[index + 1] = fuse_conv_bn_eval(convolution, norm), nn.Identity()
    return module


@torch.no_grad()
def gives_the_same(one: nn.Module, other: nn.Module, image: Tensor) -> bool:
    found, expected = one(image), other(image)
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-3, atol=1e-4)
