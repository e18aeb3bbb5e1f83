"""One step of ResNet-9 for many devices at a time: forward pass, gradients and update, in kernels over all devices.

Signals keep the layout of `convolutions` from layer to layer. Every buffer is allocated once, with its border of zeros,
and holds the first devices of a stack, so that a step can be captured in a graph for any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wayfare.engine.base import split
from wayfare.engine.batched.activations import (
    activate,
    activate_and_pool_all,
    deactivate,
    gradient_means,
)
from wayfare.engine.batched.convolutions import Tile, convolve, tiles_per_device
from wayfare.engine.batched.copies import load_kernels, read_kernels
from wayfare.engine.batched.head import linear_gradients
from wayfare.engine.batched.inputs import neighbourhoods
from wayfare.engine.batched.moments import finish_moments
from wayfare.engine.batched.tiles import Format, forward_tile, weight_tile
from wayfare.engine.batched.updates import update
from wayfare.engine.batched.weight_gradients import Update, WeightTile, weight_gradient
from wayfare.learning.models.resnet9 import Resnet9

COLOURS = 3
# The 27 values around a position, and zeros up to a power of two.
_FIRST_INPUTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A convolution with its normalisation, ReLU, residual sum and pooling. The last layer pools all positions."""

    inputs: int
    outputs: int
    side: int  # of the images that it reads
    pool: int = 1
    adds: int | None = None  # the layer whose result is added


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Convolutions in order, then a linear layer."""

    layers: tuple[Layer, ...]
    classes: int
    momentum: float = 0.1
    eps: float = 1e-5

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the trained entries of one network, in the order of its vector."""
        kernels = [(layer.outputs, layer.inputs, 3, 3) for layer in self.layers]
        return [*kernels, (self.classes, self.layers[-1].outputs), (self.classes,)]

    @property
    def statistics(self) -> list[tuple[int, ...]]:
        """The shapes of running means and variances."""
        return [(layer.outputs,) for layer in self.layers for _ in range(2)]


def plan_of(model: Resnet9) -> Plan:
    sides, pools, adds = (32, 32, 16, 16, 16, 8, 4, 4), (1, 2, 1, 1, 2, 2, 1, 1), {3: 1, 7: 5}
    layers = [
        Layer(inputs=inputs, outputs=outputs, side=side, pool=pool, adds=adds.get(number))
        for number, ((inputs, outputs), side, pool) in enumerate(zip(model.convolutions, sides, pools, strict=True))
    ]
    return Plan(layers=tuple(layers), classes=model.classes)


def _taps_and_inputs(number: int, layer: Layer) -> tuple[int, int]:
    """The first layer, with few inputs, is a product of single positions with their neighbourhoods."""
    return (9, layer.inputs) if number else (1, _FIRST_INPUTS)


class Weights:
    """The trained entries of all devices, or vectors of their shape, in the layouts of the kernels."""

    def __init__(self, plan: Plan, rows: int, where: torch.device) -> None:
        self._shapes = plan.shapes
        shapes = [(layer.outputs, *_taps_and_inputs(number, layer)) for number, layer in enumerate(plan.layers)]
        self.stacks = [torch.zeros(rows, *shape, device=where) for shape in (*shapes, *plan.shapes[-2:])]

    def of(self, count: int) -> list[Tensor]:
        """The first rows of the stacks."""
        return [stack[:count] for stack in self.stacks]

    def load(self, block: Tensor, first: int = 0) -> None:
        """Copy flat vectors (devices, parameters) to the rows from the first one on."""
        pieces, stacks = split(block, self._shapes), [stack[first : first + len(block)] for stack in self.stacks]
        for piece, stack in zip(pieces[1:-2], stacks[1:-2], strict=True):
            load_kernels(piece, stack)
        for view, piece in self._others(pieces, stacks):
            view.copy_(piece)

    def read(self, block: Tensor, first: int = 0) -> None:
        """Copy rows from the first one on out to flat vectors."""
        pieces, stacks = split(block, self._shapes), [stack[first : first + len(block)] for stack in self.stacks]
        for piece, stack in zip(pieces[1:-2], stacks[1:-2], strict=True):
            read_kernels(stack, piece)
        for view, piece in self._others(pieces, stacks):
            piece.copy_(view)

    @staticmethod
    def _others(pieces: Sequence[Tensor], stacks: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """The first kernel, whose stack has zeros at the end, and the linear layer."""
        first = stacks[0][:, :, 0, : 9 * COLOURS].unflatten(2, (3, 3, COLOURS)).permute(0, 1, 4, 2, 3)
        return [(first, pieces[0]), (stacks[-2], pieces[-2]), (stacks[-1], pieces[-1])]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buffers:
    """The signals of one layer: y, z, their gradients, and copies turned for gradients of weights."""

    signal: Tensor
    result: Tensor | None
    result_turned: Tensor | None
    gradient: Tensor
    gradient_turned: Tensor | None
    of_result: Tensor | None
    moments: Tensor
    normal: Tensor
    means: Tensor
    forward: Tile
    backward: Tile
    weight: WeightTile

    def of(self, count: int) -> _Buffers:
        """Those of the first devices."""
        return replace(
            self,
            signal=self.signal[:count],
            result=_first(self.result, count),
            result_turned=_first(self.result_turned, count),
            gradient=self.gradient[:count],
            gradient_turned=_first(self.gradient_turned, count),
            of_result=_first(self.of_result, count),
            moments=self.moments[:count],
            normal=self.normal[:count],
            means=self.means[:count],
        )


def _first(tensor: Tensor | None, count: int) -> Tensor | None:
    return None if tensor is None else tensor[:count]


class Network:
    """Weights and running statistics of networks, in rows, and buffers for steps of up to ``devices`` of them."""

    def __init__(
        self, plan: Plan, kind: Format, devices: int, batch: int, where: torch.device, rows: int | None = None
    ) -> None:
        self.kind, self.batch, self.plan, self._layers = kind, batch, plan, plan.layers
        rows = devices if rows is None else rows
        self.weights = Weights(plan, rows, where)
        self._parameters = sum(math.prod(shape) for shape in plan.shapes)
        self._statistics = [torch.zeros(rows, *shape, device=where) for shape in plan.statistics]
        # What convolutions read: forward as stored or in fewer bits, backward turned or as forward.
        self._copies = [
            None if kind.dtype == torch.float32 else torch.zeros_like(stack, dtype=kind.dtype)
            for stack in self.weights.stacks[: len(self._layers)]
        ]
        self._turned = [
            torch.zeros(rows, layer.inputs, 9, layer.outputs, device=where) if kind.turned and number else None
            for number, layer in enumerate(self._layers)
        ]
        side = plan.layers[0].side
        shape = devices, side, side, batch, _FIRST_INPUTS
        self._inputs = self._padded(shape, where)
        self._inputs_turned = self._padded_turned(shape, where)
        self._features = torch.zeros(devices, batch, self._layers[-1].outputs, device=where)
        self._chosen = torch.zeros(devices, batch, self._layers[-1].outputs, dtype=torch.int8, device=where)
        self.buffers: list[_Buffers] = []
        for layer in self._layers:
            self.buffers.append(self._buffers_of(layer, devices, where))

    def _padded(self, shape: Sequence[int], where: torch.device) -> Tensor:
        devices, height, width, batch, channels = shape
        return torch.zeros(devices, height, width + 1, batch, channels, dtype=self.kind.dtype, device=where)

    def _padded_turned(self, shape: Sequence[int], where: torch.device) -> Tensor | None:
        devices, height, width, batch, channels = shape
        if not self.kind.turned:
            return None
        return torch.zeros(devices, channels, height, width + 1, batch, dtype=self.kind.dtype, device=where)

    def _buffers_of(self, layer: Layer, devices: int, where: torch.device) -> _Buffers:
        kind, number = self.kind, len(self.buffers)
        last, side = number == len(self._layers) - 1, layer.side // layer.pool
        dense = devices, layer.side, layer.side, self.batch, layer.outputs
        pooled = devices, side, side, self.batch, layer.outputs
        signal, row = self._padded(dense, where), layer.side * self.batch
        taps, inputs = _taps_and_inputs(number, layer)
        forward = forward_tile(kind, row, inputs, layer.outputs)
        of_result = None if last else self._padded(pooled, where)
        if layer.adds is not None and not last:
            # The gradient of a sum is also the gradient of what is added, to which a later kernel adds.
            of_result = self.buffers[layer.adds].of_result
        return _Buffers(
            signal=signal,
            result=None if last else self._padded(pooled, where),
            result_turned=None if last else self._padded_turned(pooled, where),
            gradient=self._padded(dense, where),
            gradient_turned=self._padded_turned(dense, where),
            of_result=of_result,
            moments=torch.zeros(devices, tiles_per_device(signal, forward), 2, layer.outputs, device=where),
            normal=torch.zeros(devices, 2, layer.outputs, device=where),
            means=torch.zeros(devices, 2, layer.outputs, device=where),
            forward=forward,
            backward=forward_tile(kind, row, layer.outputs, inputs),
            weight=weight_tile(kind, self.batch, layer.side, inputs, layer.outputs, taps),
        )

    def load(self, block: Tensor, first: int = 0) -> None:
        """Copy models (devices, parameters + statistics) to the rows from the first one on."""
        self.weights.load(block[:, : self._parameters], first)
        pieces = split(block[:, self._parameters :], self.plan.statistics)
        torch._foreach_copy_([each[first : first + len(block)] for each in self._statistics], pieces)
        rows = torch.arange(first, first + len(block), dtype=torch.int32, device=block.device)
        for number in range(len(self._layers)):
            self._update_kernel(number, None, block.new_zeros(len(block)), rows)

    def read(self, block: Tensor, first: int = 0) -> None:
        """Copy the models in rows from the first one on out."""
        self.weights.read(block[:, : self._parameters], first)
        pieces = split(block[:, self._parameters :], self.plan.statistics)
        torch._foreach_copy_(pieces, [each[first : first + len(block)] for each in self._statistics])

    def update(self, directions: Sequence[Tensor], rates: Tensor, rows: Tensor | None = None) -> None:
        """w <- w - rate v, with one rate per device."""
        for number in range(len(self._layers)):
            self._update_kernel(number, directions[number], rates, rows)
        self._update_linear(directions, rates, rows)

    def _update_linear(self, directions: Sequence[Tensor], rates: Tensor, rows: Tensor | None) -> None:
        *_, linear, bias = self.weights.stacks
        update(linear.unsqueeze(2), directions[-2], rates, rows=rows)
        update(bias[:, None, None], directions[-1], rates, rows=rows)

    def _update_kernel(self, number: int, directions: Tensor | None, rates: Tensor, rows: Tensor | None = None) -> None:
        """Update a kernel, unless its directions are None, and write what convolutions read."""
        copy, turned = self._copies[number], self._turned[number]
        if directions is not None or copy is not None or turned is not None:
            update(
                self.weights.stacks[number],
                directions,
                rates,
                rows=rows,
                copy=copy,
                turned=turned,
                rounded=self.kind.rounded,
            )

    def step(
        self, images: Tensor, labels: Tensor, offsets: Tensor | None, rates: Tensor, rows: Tensor | None = None
    ) -> None:
        """A plain gradient step: as `gradients` and `update`, but most gradients are never stored."""
        gradients = self.gradients(images, labels, offsets, rates, rows)
        for number, here in enumerate(self.buffers):
            if here.weight.parts > 1:
                self._update_kernel(number, gradients[number], rates, rows)
        self._update_linear(gradients, rates, rows)

    def gradients(
        self,
        images: Tensor,
        labels: Tensor,
        offsets: Tensor | None,
        rates: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> list[Tensor]:
        """The gradients of the mean cross-entropy of each device, as `Weights.stacks`. Advances running statistics.

        Images are (devices, batch, colours, height, width), labels (devices, batch). ``offsets`` (devices, classes) are
        added to the logits. With ``rates``, kernels with tiles of one part are updated instead. ``rows`` (devices,) are
        those of the devices; without them, devices have the first rows in order.
        """
        count = len(labels)
        buffers = [each.of(count) for each in self.buffers]
        self._forward(images, buffers, rows)
        features, (*_, linear, bias) = self._features[:count], self.weights.stacks
        of_features, of_linear, of_bias = linear_gradients(features, linear, bias, labels, offsets, rows)
        return [*self._backward(of_features, buffers, rates, rows), of_linear, of_bias]

    def _forward(self, images: Tensor, buffers: Sequence[_Buffers], rows: Tensor | None) -> None:
        count, kind = len(images), self.kind
        planes = images.permute(0, 2, 3, 4, 1).contiguous()
        signal = self._inputs[:count]
        turned = _first(self._inputs_turned, count)
        neighbourhoods(planes, signal, turned, rounded=kind.rounded)
        for number, (layer, here) in enumerate(zip(self._layers, buffers, strict=True)):
            copy = self._copies[number]
            kernel = self.weights.stacks[number] if copy is None else copy
            convolve(signal, kernel, here.signal, here.forward, here.moments, rows=rows)
            running, positions = (
                (self._statistics[2 * number], self._statistics[2 * number + 1]),
                here.forward.positions,
            )
            finish_moments(here.moments, here.normal, running, positions, self.plan.momentum, self.plan.eps, rows)
            added = None if layer.adds is None else buffers[layer.adds].result
            if here.result is None:
                assert added is not None
                activate_and_pool_all(here.signal, here.normal, added, self._features[:count], self._chosen[:count])
            else:
                activate(here.signal, here.normal, here.result, here.result_turned, added=added, rounded=kind.rounded)
                signal = here.result

    def _backward(
        self, of_features: Tensor, buffers: Sequence[_Buffers], rates: Tensor | None, rows: Tensor | None
    ) -> list[Tensor]:
        count, kind, found = len(of_features), self.kind, []
        for number in reversed(range(len(self._layers))):
            layer, here = self._layers[number], buffers[number]
            positions = layer.side**2 * self.batch
            # Only gradients of signals read the gradient as it is, if those of weights read it turned.
            out = None if kind.turned and number == 0 else here.gradient
            if here.of_result is None or here.result is None:
                assert layer.adds is not None
                chosen, of_added = self._chosen[:count], buffers[layer.adds].of_result
                gradient_means(of_features, here.signal, here.means, positions, here.normal, chosen)
                deactivate(
                    of_features,
                    here.signal,
                    here.normal,
                    here.means,
                    out,
                    here.gradient_turned,
                    chosen=chosen,
                    of_added=of_added,
                    rounded=kind.rounded,
                )
            else:
                if layer.adds is None:
                    gradient_means(here.of_result, here.result, here.means, positions, None)
                else:
                    gradient_means(here.of_result, here.signal, here.means, positions, here.normal)
                deactivate(
                    here.of_result,
                    here.signal,
                    here.normal,
                    here.means,
                    out,
                    here.gradient_turned,
                    pool=layer.pool,
                    rounded=kind.rounded,
                )
            # Gradients of signals first: they need the weights before an update.
            if number:
                self._of_signal(number, buffers, rows)
            found.append(self._of_weights(number, buffers, rates, rows))
        return found[::-1]

    def _of_weights(
        self, number: int, buffers: Sequence[_Buffers], rates: Tensor | None, rows: Tensor | None
    ) -> Tensor:
        here, count = buffers[number], len(buffers[number].signal)
        taps, _ = _taps_and_inputs(number, self._layers[number])
        update = None
        if rates is not None and here.weight.parts == 1:
            update = Update(
                weights=self.weights.stacks[number],
                rates=rates,
                rows=rows,
                copy=self._copies[number],
                turned=self._turned[number],
                rounded=self.kind.rounded,
            )
        if here.gradient_turned is not None:
            before = buffers[number - 1].result_turned if number else _first(self._inputs_turned, count)
            assert before is not None
            return weight_gradient(here.gradient_turned, before, taps, here.weight, turned=True, update=update)
        signal = buffers[number - 1].result if number else self._inputs[:count]
        assert signal is not None
        return weight_gradient(here.gradient, signal, taps, here.weight, update=update)

    def _of_signal(self, number: int, buffers: Sequence[_Buffers], rows: Tensor | None) -> None:
        here, out = buffers[number], buffers[number - 1].of_result
        assert out is not None
        turned, copy = self._turned[number], self._copies[number]
        # The gradient of what was added is there already.
        added = any(layer.adds == number - 1 for layer in self._layers)
        if turned is not None:
            convolve(here.gradient, turned, out, here.backward, rows=rows, added=added)
        else:
            kernel = self.weights.stacks[number] if copy is None else copy
            convolve(here.gradient, kernel, out, here.backward, rows=rows, backward=True, added=added)
