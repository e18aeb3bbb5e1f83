"""A backbone: a frozen network with its preprocessing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, eq=False)
class Backbone:
    """Turns images into vectors of ``features`` entries.

    ``module`` maps (n, 3, pixels, pixels) to (n, features). Pixel values are scaled as (byte - mean) / deviation,
    channel by channel.
    """

    name: str
    module: nn.Module
    features: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    def __post_init__(self) -> None:
        self.module.requires_grad_(False).eval()

    def prepare(self, images: Tensor, pixels: int) -> Tensor:
        """Bytes (n, channels, height, width) as the network takes them: three channels, resized, scaled.

        Grey images repeat their channel. Resizing is bicubic, with anti-aliasing where it shrinks.
        """
        colour = images.float().expand(-1, 3, -1, -1)
        if colour.shape[-2:] != (pixels, pixels):
            size = (pixels, pixels)
            # Bicubic interpolation overshoots at edges.
            colour = nn.functional.interpolate(colour, size, mode="bicubic", antialias=True).clamp(0, 255)
        mean, deviation = (torch.tensor(values, device=images.device).view(3, 1, 1) for values in self._scale)
        return (colour - mean) / deviation

    def __call__(self, images: Tensor, pixels: int) -> Tensor:
        """Features of images, each vector with mean 0 and deviation 1.

        Scaling each vector by itself needs no statistics of a data set, which no device of a fleet could know.
        """
        return nn.functional.layer_norm(self.module(self.prepare(images, pixels)).float(), (self.features,))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the weights and the preprocessing."""
        content = hashlib.sha256(repr((self.name, self.features, self._scale, str(self.module))).encode())
        for name, tensor in sorted(self.module.state_dict().items()):
            content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            content.update(tensor.cpu().contiguous().numpy().tobytes())
        return content.hexdigest()

    @property
    def _scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.mean, self.deviation
