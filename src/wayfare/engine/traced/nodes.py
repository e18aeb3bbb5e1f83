"""Questions about single operations of a traced network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from wayfare.engine.traced.probing import NotStackableError, probes_of


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
    extras = (3, "max_norm"), (5, "scale_grad_by_freq"), (6, "sparse")
    return not any(argument_of(node, place, name) for place, name in extras)


def is_unused_answer(node: fx.Node) -> bool:
    """Whether a node only answered a question about a shape while the network was traced."""
    return not node.users and not tensors_of(probes_of(node)[0])


def has_draws(node: fx.Node) -> bool:
    """Whether dropout, or attention with dropout, draws."""
    if node.target is functional.dropout:
        probability, training = argument_of(node, 1, "p"), argument_of(node, 2, "training")
        return probability != 0 and (training is None or bool(training))
    return bool(argument_of(node, 4, "dropout_p"))


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
