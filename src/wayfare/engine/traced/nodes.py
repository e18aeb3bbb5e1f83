"""Questions about single operations of a traced network."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from wayfare.engine.traced.convolved import Convolution, Pooling
from wayfare.engine.traced.probing import NotStackableError, probes_of

RELUS = functional.relu, torch.relu, "relu"
# Operations without parameters that treat every channel alike.
BY_CHANNEL = frozenset(
    (
        *("relu", "sigmoid", "tanh", "clamp", "contiguous", "add", "mul", operator.add, operator.sub, operator.mul),
        *(operator.iadd, operator.truediv, operator.neg, torch.add, torch.sub, torch.mul, torch.div, torch.clamp),
        *(torch.relu, torch.sigmoid, torch.tanh, functional.relu, functional.relu6, functional.hardtanh),
        *(functional.gelu, functional.silu, functional.elu, functional.leaky_relu, functional.hardswish),
        *(functional.mish, functional.selu, functional.sigmoid, functional.tanh, functional.softplus),
        *(functional.celu, functional.hardsigmoid, functional.logsigmoid, functional.softsign),
        *(functional.max_pool1d, functional.max_pool2d, functional.max_pool3d),
        *(functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d),
        *(functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d),
        *(functional.adaptive_max_pool1d, functional.adaptive_max_pool2d, functional.adaptive_max_pool3d),
        functional.interpolate,
    )
)
# They return a new tensor, whatever the samples are.
CREATES = frozenset(("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"))


def tensors_of(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def axis_of(node: fx.Node, one: Tensor, two: Tensor) -> int | None:
    """The axis whose length depends on the number of samples."""
    if one.dim() != two.dim():
        raise NotStackableError(f"{name_of(node)} depends on the number of samples")
    differing = [axis for axis in range(one.dim()) if one.shape[axis] != two.shape[axis]]
    if len(differing) > 1:
        raise NotStackableError(f"{name_of(node)} pairs the samples of a minibatch")
    return differing[0] if differing else None


def name_of(node: fx.Node) -> str:
    """An operation, as in a program."""
    target: Any = node.target
    return f"{target if isinstance(target, str) else getattr(target, '__name__', target)}()"


def argument_of(node: fx.Node, place: int, name: str) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def is_plain_lookup(node: fx.Node) -> bool:
    """Whether an embedding, if this is one, only looks up rows."""
    if node.target is not functional.embedding:
        return True
    extras = (3, "max_norm"), (5, "scale_grad_by_freq")
    return not any(argument_of(node, place, name) for place, name in extras)


def is_unused_answer(node: fx.Node) -> bool:
    """Whether a node only answered a question about a shape while the network was traced."""
    return not node.users and not tensors_of(probes_of(node)[0])


def memory_order(tensor: Tensor) -> list[int]:
    """The axes of a tensor in memory, from the outermost."""
    return sorted(range(tensor.dim()), key=lambda axis: -tensor.stride()[axis])


def pool_before_relu(graph: fx.Graph) -> None:
    """Exchange ReLU and the max pooling after it: they commute, and pooling first leaves fewer values."""
    for node in graph.nodes:
        relu = node.args[0] if node.target is functional.max_pool2d else None
        if not isinstance(relu, fx.Node) or relu.target not in (functional.relu, torch.relu):
            continue
        shared = argument_of(relu, 1, "inplace") and len(relu.args[0].users) > 1  # type: ignore[union-attr]
        if len(relu.users) > 1 or shared or argument_of(node, 6, "return_indices"):
            continue
        node.update_arg(0, relu.args[0])
        node.replace_all_uses_with(relu)
        relu.update_arg(0, node)
        relu.meta["probes"] = node.meta["probes"]
        node.append(relu)


def convolution_from(node: fx.Node) -> tuple[Convolution, list[fx.Node]] | None:
    """A convolution with the pooling and ReLU after it that nothing else uses, and their nodes.

    None if its padding is a word, or its input has no axis of samples.
    """
    axes = probes_of(argument_of(node, 1, "weight"))[0].dim() - 2
    stride, padding = _each(argument_of(node, 3, "stride"), axes, 1), _each(argument_of(node, 4, "padding"), axes, 0)
    dilation = _each(argument_of(node, 5, "dilation"), axes, 1)
    if stride is None or padding is None or dilation is None or probes_of(node)[0].dim() != axes + 2:
        return None
    followers: list[fx.Node] = []
    pooling, user = None, _only_user(node)
    if axes == 2 and user is not None and user.target is functional.max_pool2d:
        pooling = _pooling(user)
    if pooling is not None and user is not None:
        followers.append(user)
        user = _only_user(user)
    if user is not None and user.target in RELUS:
        followers.append(user)
    relu = len(followers) > (pooling is not None)
    groups = argument_of(node, 6, "groups") or 1
    form = Convolution(stride=stride, padding=padding, dilation=dilation, groups=groups, pooling=pooling, relu=relu)
    return form, followers


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _pooling(node: fx.Node) -> Pooling | None:
    """The arguments of a max pooling, unless it also returns indices."""
    if argument_of(node, 6, "return_indices"):
        return None
    kernel = _each(argument_of(node, 1, "kernel_size"), 2, None)
    stride = _each(argument_of(node, 2, "stride") or kernel, 2, None)
    padding, dilation = _each(argument_of(node, 3, "padding"), 2, 0), _each(argument_of(node, 4, "dilation"), 2, 1)
    if kernel is None or stride is None or padding is None or dilation is None:
        return None
    ceil_mode = bool(argument_of(node, 5, "ceil_mode"))
    return Pooling(kernel=kernel, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode)


def _each(value: Any, axes: int, default: int | None) -> list[int] | None:
    """One number for each axis; None if the value is something else."""
    value = default if value is None else value
    numbers = [value] * axes if isinstance(value, int) else value
    if not isinstance(numbers, tuple | list) or not all(isinstance(number, int) for number in numbers):
        return None
    return list(numbers) if len(numbers) == axes else None
