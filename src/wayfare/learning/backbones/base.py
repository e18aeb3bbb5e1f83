"""A backbone: a pre-trained network with its preprocessing."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from wayfare.errors import ScenarioError
from wayfare.learning.backbones.chain import chain_of, folded, gives_the_same, weighted


@dataclass(frozen=True, kw_only=True, eq=False)
class Backbone:
    """Turns images into vectors of ``features`` entries.

    ``module`` maps (n, 3, pixels, pixels) to (n, features). Pixel values are scaled as (byte - mean) / deviation,
    channel by channel. ``chain`` is the same network as blocks that apply one after the other, with their
    normalisations. Without it, Wayfare tries whether the children of the module are such a chain.

    Backbones stay in evaluation mode, also where they are trained: batch normalisation uses the statistics of the
    pre-training, which are constants and do not travel, and dropout is off.
    """

    name: str
    module: nn.Module
    features: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    chain: tuple[nn.Module, ...] = ()
    # The size of images on which networks are tried; some take only one size.
    trial_pixels: int = 64
    # The code of the module, if it is not part of a library: a change of it counts like a change of weights.
    code: str = ""

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            is_zero = name == "deviation" and 0 in values
            if len(values) != 3 or not all(math.isfinite(value) for value in values) or is_zero:
                raise ScenarioError(name, values, "must be three finite numbers, deviations other than 0")
        if self.interpolation not in ("bicubic", "bilinear"):
            raise ScenarioError("interpolation", self.interpolation, "must be bicubic or bilinear")
        for module in (self.module, *self.chain):
            # Scripted modules have no `requires_grad_`.
            for parameter in module.eval().parameters():
                parameter.requires_grad_(False)

    def prepare(self, images: Tensor, pixels: int) -> Tensor:
        """Bytes (n, channels, height, width) as the network takes them: three channels, resized, scaled.

        Grey images repeat their channel. The whole image is resized, with anti-aliasing where it shrinks.
        """
        colour = images.float().expand(-1, 3, -1, -1)
        if colour.shape[-2:] != (pixels, pixels):
            size = (pixels, pixels)
            # Bicubic interpolation overshoots at edges.
            colour = nn.functional.interpolate(colour, size, mode=self.interpolation, antialias=True).clamp(0, 255)
        mean, deviation = (_on(images.device, values) for values in self._scale)
        return (colour - mean) / deviation

    def check_pixels(self, pixels: int) -> None:
        """Raise ScenarioError if the network does not take images of a size."""
        try:
            with torch.inference_mode():
                found = self.module(torch.zeros(1, 3, pixels, pixels))
        except Exception as error:
            # Networks raise many kinds of errors for a wrong size.
            rule = f"{self.name} does not take images of this size: {error}"
            raise ScenarioError("learning.backbone_pixels", pixels, rule) from None
        if found.shape != (1, self.features):
            rule = f"{self.name} gives {found.numel()} features for this size, but {self.features} for another"
            raise ScenarioError("learning.backbone_pixels", pixels, rule)

    def __call__(self, images: Tensor, pixels: int) -> Tensor:
        """Features of images, each vector with mean 0 and deviation 1."""
        return normalised(self.module(self.prepare(images, pixels)))

    @cached_property
    def blocks(self) -> tuple[nn.Module, ...]:
        """The network as a chain; empty if it is none."""
        return self.chain or chain_of(self.module, self.trial_image)

    @property
    def folded_blocks(self) -> tuple[nn.Module, ...]:
        """The chain with its normalisations folded into convolutions, where that gives the same features."""
        return _folded_blocks(self, self.digest)

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """Where the chain can be cut: ``cuts[-n]`` is the index of the first of the last n blocks with parameters."""
        return tuple(weighted(self.blocks))

    @property
    def digest(self) -> str:
        """SHA-256 of the weights and the preprocessing, at every call anew: the weights of a module can change."""
        described = self.name, self.features, self._scale, str(self.module)
        # Only what differs from the default counts, so that older caches stay valid.
        others = tuple(value for value in (self.code, self.interpolation) if value not in ("", "bicubic"))
        content = hashlib.sha256(repr(described + others).encode())
        for name, tensor in sorted(self.module.state_dict().items()):
            content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            # NumPy does not know all types of PyTorch.
            content.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return content.hexdigest()

    @property
    def _scale(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.mean, self.deviation

    @property
    def trial_image(self) -> Tensor:
        """An image without symmetry, to try networks on."""
        pixels = torch.arange(3 * self.trial_pixels**2, dtype=torch.float32)
        return torch.sin(pixels * 0.37).view(1, 3, self.trial_pixels, self.trial_pixels)


@lru_cache(maxsize=2)
def _folded_blocks(backbone: Backbone, digest: str) -> tuple[nn.Module, ...]:
    """Folding copies the weights, so it is repeated when they change."""
    plain = nn.Sequential(*backbone.blocks)
    fast = folded(plain)
    return tuple(fast) if gives_the_same(fast, plain, backbone.trial_image) else backbone.blocks  # type: ignore[arg-type]


@cache
@torch.inference_mode(False)
def _on(device: torch.device, values: tuple[float, ...]) -> Tensor:
    """Values of the channels on a device. They are copied there once: a captured graph cannot read host memory."""
    return torch.tensor(values, device=device).view(3, 1, 1)


def normalised(features: Tensor) -> Tensor:
    """Feature vectors shifted and scaled to mean 0 and deviation 1.

    Scaling each vector by itself needs no statistics of a data set, which no device of a fleet could know.
    """
    return nn.functional.layer_norm(features.float() if features.dtype.itemsize < 4 else features, features.shape[1:])
