"""ResNet-9, the network of the paper's CIFAR-10 experiments: 8 convolutions and a linear layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor, nn

from wayfare.learning.models.layers import Layers

Normalisation: TypeAlias = Literal["batch", "group"]

_GROUPS = 32


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *stages: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*stages)

    def forward(self, signal: Tensor) -> Tensor:
        return signal + self.inner(signal)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Resnet9(Layers):
    """Bias-free 3x3 convolutions, each with a normalisation without affine parameters and ReLU.

    With ``width`` 64: 3-64, 64-128, (128-128, 128-128) residual, 128-256, 256-512, (512-512, 512-512) residual and a
    512-10 linear layer, s = 6,568,650. Images have 32 x 32 pixels; max pooling halves them three times and then reduces
    4 x 4 to 1.
    """

    normalisation: Normalisation = "batch"
    classes: int = 10
    width: int = 64

    @property
    def convolutions(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of every convolution, in order."""
        a, b, c, d = self.width, 2 * self.width, 4 * self.width, 8 * self.width
        return [(3, a), (a, b), (b, b), (b, b), (b, c), (c, d), (d, d), (d, d)]

    def build(self) -> nn.Module:
        stages = [self._block(inputs, outputs) for inputs, outputs in self.convolutions]
        return nn.Sequential(
            *stages[0],
            *stages[1],
            nn.MaxPool2d(2),
            Residual(*stages[2], *stages[3]),
            *stages[4],
            nn.MaxPool2d(2),
            *stages[5],
            nn.MaxPool2d(2),
            Residual(*stages[6], *stages[7]),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(8 * self.width, self.classes),
        )

    def _block(self, inputs: int, outputs: int) -> list[nn.Module]:
        normalisation = (
            nn.BatchNorm2d(outputs, affine=False)
            if self.normalisation == "batch"
            else nn.GroupNorm(min(_GROUPS, outputs), outputs, affine=False)
        )
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), normalisation, nn.ReLU()]
