"""Checks of a network with one training pass of a few samples, before any run."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from wayfare.errors import InputError
from wayfare.learning.chance import seeded_generators
from wayfare.learning.models.base import statistics, trainable
from wayfare.learning.models.wrapped import Wrapped, same, whole_buffers


def reject_parameters(module: nn.Module, where: str) -> None:
    """Raise InputError for parameters whose shape is not known yet, or that are no single-precision numbers."""
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise InputError(
                f"{where}: the shape of the parameter {name} is not known before a first pass; give the layer its "
                "input size, or pass a network that has seen one batch"
            )
        if parameter.requires_grad and parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise InputError(
                f"{where}: the parameter {name} has type {kind}; Wayfare trains in float32: build the network in it, "
                "for example with network.float()"
            )


def constants_of(model: Wrapped, inputs: Tensor, where: str) -> frozenset[str]:
    """The floating-point buffers that training passes do not change, such as a causal mask.

    Raises InputError if the network has nothing to train, if constants differ between its copies, or if it keeps state
    that no vector holds.
    """
    module = model.module().train()
    if not trainable(module):
        raise InputError(f"{where}: no parameter of the network has requires_grad=True; there is nothing to train")
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad(), seeded_generators(inputs.device) as set_seed:
        set_seed(0)
        module(inputs)
        # The first pass may fill a cache.
        numbers = _numbers(module)
        module(inputs)
    for name, number in _numbers(module).items():
        # NaN differs from itself, so an equal object counts as equal.
        if name in numbers and numbers[name] is not number and numbers[name] != number:
            raise InputError(
                f"{where}: training changes the attribute {name} of the network; a model carries only parameters and "
                "buffers: keep it in a floating-point buffer"
            )
    _reject_counts(module, before, where)
    after, normalising = statistics(module), _buffers_of_normalisation(module)
    for name, buffer in module.named_buffers():
        # A table that grows with the inputs can be computed again; a buffer of constant size is state.
        kept_size = buffer.is_floating_point() and name in before and buffer.shape == before[name].shape
        if name not in after and kept_size and not same(before[name], buffer):
            raise InputError(f"{where}: training changes the buffer {name}; register it with persistent=True")
    constants = frozenset(
        name for name in after if name not in normalising and name in before and same(before[name], after[name])
    )
    _reject_differences(model.module(), model.module(), constants, where)
    return constants


def _numbers(module: nn.Module) -> dict[str, float]:
    """The attributes of all layers that are numbers."""
    return {
        f"{prefix}.{name}" if prefix else name: value
        for prefix, layer in module.named_modules()
        for name, value in vars(layer).items()
        if isinstance(value, int | float)
    }


def _reject_counts(module: nn.Module, before: dict[str, Tensor], where: str) -> None:
    """Raise InputError if results depend on integers that training changes."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.training and layer.momentum is None and layer.track_running_stats:
            raise InputError(
                f"{where}: momentum = None of {name} ({type(layer).__name__}): must be a number, such as 0.1; an "
                "average over all minibatches needs their number, which no model carries"
            )
    for name, buffer in whole_buffers(module).items():
        if name in before and not same(before[name], buffer):
            kind = str(buffer.dtype).removeprefix("torch.")
            raise InputError(
                f"{where}: training changes the buffer {name} of type {kind}; a model carries only real numbers: make "
                "it a floating-point buffer"
            )


def _buffers_of_normalisation(module: nn.Module) -> set[str]:
    """Running means and variances. They are statistics, even if the first samples do not change them."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in module.named_modules()
        if isinstance(layer, _NormBase) and layer.training
        for name, _ in layer.named_buffers(recurse=False)
    }


def _reject_differences(one: nn.Module, other: nn.Module, constants: frozenset[str], where: str) -> None:
    """Raise InputError if frozen parameters or constants differ between two copies of a network."""
    trained, others = trainable(one), {**dict(other.named_parameters()), **dict(other.named_buffers())}
    fixed: dict[str, Tensor] = {name: entry for name, entry in one.named_parameters() if name not in trained}
    fixed |= {name: buffer for name, buffer in one.named_buffers() if name in constants}
    for name, entry in fixed.items():
        if not same(entry, others[name]):
            raise InputError(
                f"{where}: {name} is not trained and differs each time the network is built; load it from a file, or "
                "draw it from PyTorch's default generator"
            )
