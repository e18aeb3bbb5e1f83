"""What the operations of a stacked step share: the devices, their weights, and how weights are updated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wayfare.learning.chance import seeded_generators


@dataclass(slots=True, kw_only=True)
class StackedStep:
    """One step of n devices."""

    count: int  # n
    weights: Sequence[Tensor]  # (n, *shape) of every trained parameter
    statistics: Sequence[Tensor]  # (n, *shape) of every running mean and variance, updated in place
    # Weights in `fused` are updated by the backward pass of their product: w <- w - rate share gradient.
    rate: float = 0.0
    shares: Tensor | None = None
    trigger: Tensor | None = None  # requires a gradient, so that the backward pass visits fused products
    seeds: Sequence[int] = ()  # of the draws of every device
    _generators: list[torch.Generator] = field(default_factory=list)

    def scaled(self, gradient: Tensor) -> Tensor:
        """A gradient (n, ...) times the factors of the learning rate, if it is not constant."""
        if self.shares is None:
            return gradient
        return gradient * self.shares.to(gradient).view(-1, *[1] * (gradient.dim() - 1))

    def kept(self, like: Tensor, axis: int, probability: float, order: Sequence[int] | None = None) -> Tensor:
        """The mask of dropout for samples along an axis, scaled, with the draws that `reference` makes.

        PyTorch fills the mask of one device in the order of memory. ``order`` lists the axes that ``like`` has there in
        `reference`, from the outermost; it is ascending by default.
        """
        shape, order = list(like.shape), list(order or range(like.dim()))
        shape[axis] //= self.count
        mask = torch.empty(self.count, *(shape[each] for each in order), dtype=like.dtype)
        for part, generator in zip(mask, self._keyed(), strict=True):
            part.bernoulli_(1 - probability, generator=generator)
        logical = mask.div_(1 - probability).permute(0, *(1 + order.index(each) for each in range(like.dim())))
        return folded(logical, axis)

    @contextmanager
    def drawing(self, device: int) -> Iterator[None]:
        """Let PyTorch's default generator make the draws of a device."""
        own = self._keyed()[device]
        with seeded_generators(torch.device("cpu")):
            torch.default_generator.set_state(own.get_state())
            yield
            own.set_state(torch.default_generator.get_state())

    def _keyed(self) -> list[torch.Generator]:
        """The generator of every device. It continues from one operation to the next."""
        if not self._generators:
            self._generators = [torch.Generator().manual_seed(seed) for seed in self.seeds]
        return self._generators


def unfolded(samples: Tensor, axis: int, count: int) -> Tensor:
    """Separate devices: (..., n B, ...) -> (..., n, B, ...), a view."""
    apart: Tensor = samples.unflatten(axis, (count, -1))
    return apart


def folded(stack: Tensor, axis: int) -> Tensor:
    """Join devices: (n, ..., B, ...) -> (..., n B, ...), with the samples along an axis."""
    return stack.movedim(0, axis).flatten(axis, axis + 1)
