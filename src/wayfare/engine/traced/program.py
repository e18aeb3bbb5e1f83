"""A network as a list of operations, which n devices share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from wayfare.engine.traced import attention, layers, recurrent
from wayfare.engine.traced.stepping import StackedStep, folded, unfolded


@dataclass(frozen=True, slots=True)
class Slot:
    """The result of an earlier operation; the first is the input."""

    index: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A call with slots among its arguments."""

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    stacked: bool = True  # whether its first argument is the step


@dataclass(frozen=True, kw_only=True)
class StackedNetwork:
    """The operations of a network, for the parameters and samples of n devices."""

    operations: Sequence[Operation]
    output: Any
    fused: frozenset[int]  # weights that the backward pass updates itself
    draws: bool
    sample_entries: int  # entries of the largest result, for one sample
    total_entries: int = 0  # entries of all results, for one sample; 0 if not counted
    perceptron: tuple[int, ...] | None  # the sizes of its layers, if it is one
    slower: str | None = None  # why a plain loop over devices takes less time, if it does
    casts: bool  # whether it computes in another type than that of its parameters

    def __call__(self, inputs: Tensor, step: StackedStep) -> Any:
        values: list[Any] = [inputs]
        trains = torch.is_grad_enabled()
        for number, operation in enumerate(self.operations):
            args, kwargs = _filled(operation.args, values), _filled(operation.kwargs, values)
            values.append(operation.call(*((step,) if operation.stacked else ()), *args, **kwargs))
            for index in () if trains else self._unused[number]:
                values[index] = None
        return _filled(self.output, values)

    @cached_property
    def _unused(self) -> list[list[int]]:
        """For each operation, the results that no later one needs. Evaluations use their memory again."""
        last = {0: 0} | {number: number - 1 for number in range(1, len(self.operations) + 1)}
        for number, operation in enumerate(self.operations):
            last |= dict.fromkeys(_indices((operation.args, operation.kwargs)), number)
        kept = set(_indices(self.output))
        found: list[list[int]] = [[] for _ in self.operations]
        for index, number in last.items():
            if index not in kept:
                found[number].append(index)
        return found


def _indices(template: Any) -> Iterator[int]:
    """The slots in a template."""
    match template:
        case Slot():
            yield template.index
        case tuple() | list():
            for each in template:
                yield from _indices(each)
        case dict():
            yield from _indices(list(template.values()))
        case slice():
            yield from _indices((template.start, template.stop, template.step))


def _filled(template: Any, values: list[Any]) -> Any:
    match template:
        case Slot():
            return values[template.index]
        case tuple():
            return tuple(_filled(each, values) for each in template)
        case list():
            return [_filled(each, values) for each in template]
        case dict():
            return {name: _filled(each, values) for name, each in template.items()}
        case slice():
            return slice(*(_filled(each, values) for each in (template.start, template.stop, template.step)))
        case _:
            return template


def weight(index: int, step: StackedStep) -> Tensor:
    return step.weights[index]


def constant(root: nn.Module, name: str) -> Any:
    owner, _, attribute = name.rpartition(".")
    return getattr(root.get_submodule(owner), attribute)


def method(name: str, owner: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, name)(*args, **kwargs)


def along(form: Callable[..., Tensor], axis: int, step: StackedStep, *args: Any, **kwargs: Any) -> Tensor:
    """An operation on samples along an axis."""
    return form(step, axis, *args, **kwargs)


def normalised(
    layer: nn.modules.batchnorm._BatchNorm,
    indices: Mapping[str, int],
    moments: tuple[int, int] | None,
    step: StackedStep,
    inputs: Tensor,
) -> Tensor:
    frozen: dict[str, Tensor | None] = {"weight": layer.weight, "bias": layer.bias}
    scale, shift = (
        step.weights[indices[name]] if name in indices else None if entry is None else entry.expand(step.count, -1)
        for name, entry in frozen.items()
    )
    running = None if moments is None else (step.statistics[moments[0]], step.statistics[moments[1]])
    return layers.batch_norm(step, layer, inputs, scale, shift, running)


def recurred(
    layer: nn.RNNBase, indices: Mapping[str, int], step: StackedStep, inputs: Tensor, initial: Any = None
) -> tuple[Tensor, Any]:
    weights = [[step.weights[indices[name]] for name in names] for names in layer._all_weights]
    return recurrent.recurrent(step, layer, inputs, initial, weights)


def attended(
    layer: nn.MultiheadAttention, indices: Mapping[str, int], fused: bool, step: StackedStep, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    weights = {name: step.weights[index] for name, index in indices.items()}
    return attention.multi_head(step, layer, weights, fused, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class Split:
    """How `mapped` gives an argument to each device: samples along an axis, by device, or a number of samples."""

    axis: int | None = None
    by_device: bool = False
    counts: bool = False
    order: tuple[int, ...] = ()  # the axes that a device's tensor has in memory in `reference`, if that matters


def mapped(
    call: Callable[..., Any],
    splits: Sequence[Split],
    joined: Sequence[int | None],
    step: StackedStep,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """One operation under `vmap`. Its arguments are split by device, its results joined again."""
    of_one_device, tensors = _split(call, splits, step, (args, kwargs))
    return _join(torch.vmap(of_one_device, randomness="error")(*tensors), joined)


def apart(
    call: Callable[..., Any],
    splits: Sequence[Split],
    joined: Sequence[int | None],
    step: StackedStep,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """One operation that draws random numbers, device by device, with the draws that `reference` makes."""
    of_one_device, tensors = _split(call, splits, step, (args, kwargs))
    orders = [split.order for split in splits if split.axis is not None or split.by_device]
    found = []
    for device in range(step.count):
        own = [_in_order(tensor[device], order) for tensor, order in zip(tensors, orders, strict=True)]
        with step.drawing(device):
            found.append(of_one_device(*own))
    return _join(tree_map(lambda *parts: torch.stack(parts), *found), joined)


def _in_order(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """A tensor whose axes have an order in memory, in which random numbers are drawn."""
    return tensor.permute(*order).contiguous().permute(*(order.index(axis) for axis in range(tensor.dim())))


def _split(
    call: Callable[..., Any], splits: Sequence[Split], step: StackedStep, given: Any
) -> tuple[Callable[..., Any], list[Tensor]]:
    """A call for one device, and the tensors that it takes, by device."""
    leaves, form = tree_flatten(given)
    tensors: dict[int, Tensor] = {}
    for at, (leaf, split) in enumerate(zip(leaves, splits, strict=True)):
        if split.axis is not None:
            tensors[at] = unfolded(leaf, split.axis, step.count).movedim(split.axis, 0)
        elif split.by_device:
            tensors[at] = leaf
        elif split.counts:
            leaves[at] = leaf // step.count

    def of_one_device(*own: Tensor) -> Any:
        filled = list(leaves)
        for at, tensor in zip(tensors, own, strict=True):
            filled[at] = tensor
        rebuilt, named = tree_unflatten(filled, form)
        return call(*rebuilt, **named)

    return of_one_device, list(tensors.values())


def _join(found: Any, joined: Sequence[int | None]) -> Any:
    """Results by device, with the samples of all devices along one axis."""
    results, shape = tree_flatten(found)
    found = [result if axis is None else folded(result, axis) for result, axis in zip(results, joined, strict=True)]
    return tree_unflatten(found, shape)
