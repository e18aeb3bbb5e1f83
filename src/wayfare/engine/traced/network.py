"""From the traced operations of a network to operations that n devices share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, fx, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from wayfare.engine.traced import layers, recurrent
from wayfare.engine.traced.convolved import convolve
from wayfare.engine.traced.forms import CELLS, CONVOLUTIONS, DROPOUTS, POINTWISE, PRODUCTS, RANDOM, WEIGHTED
from wayfare.engine.traced.nodes import (
    BY_CHANNEL,
    CREATES,
    RELUS,
    argument_of,
    axis_of,
    convolution_from,
    is_plain_lookup,
    is_unused_answer,
    memory_order,
    name_of,
    pool_before_relu,
    tensors_of,
)
from wayfare.engine.traced.perceptron import perceptron_sizes
from wayfare.engine.traced.probing import NotStackableError, probes_of, traced
from wayfare.engine.traced.program import (
    Operation,
    Slot,
    Split,
    StackedNetwork,
    along,
    apart,
    attended,
    constant,
    mapped,
    method,
    normalised,
    recurred,
    weight,
)
from wayfare.learning.models.base import statistics, trainable

_PREFIX = "network."


@dataclass(frozen=True, slots=True)
class _Kind:
    """Where the samples are in each tensor of a value, and whether it is one per device, without samples."""

    axes: tuple[int | None, ...]
    by_device: bool


def stacked_network(network: nn.Module, inputs: tuple[Tensor, Tensor], *, fuse: bool) -> StackedNetwork:
    """Trace a network in training mode with two minibatches of different sizes.

    ``fuse``: products update their weights in the backward pass, where nothing else uses them. Raises NotStackableError
    with the reason if devices cannot share its operations.
    """
    root, graph = traced(network, inputs)
    pool_before_relu(graph)
    try:
        return _Builder(root, fuse=fuse).built(graph)
    except NotStackableError as error:
        raise NotStackableError(str(error), traced=True) from error


@dataclass(slots=True)
class _Builder:
    root: nn.Module
    fuse: bool
    trained: list[str] = field(init=False)
    running: list[str] = field(init=False)
    operations: list[Operation] = field(default_factory=list)
    slots: dict[fx.Node, Slot] = field(default_factory=dict)
    joined: dict[fx.Node, Slot] = field(default_factory=dict)  # the same values with joined channels
    kinds: dict[fx.Node, _Kind] = field(default_factory=dict)
    fused: set[int] = field(default_factory=set)
    draws: bool = False
    casts: bool = False
    slower: str | None = None
    entries: int = 0

    def __post_init__(self) -> None:
        network = self.root.get_submodule(_PREFIX.removesuffix("."))
        self.trained = [_PREFIX + name for name in trainable(network)]
        self.running = [_PREFIX + name for name in statistics(network)]

    def built(self, graph: fx.Graph) -> StackedNetwork:
        output: Any = None
        samples = 1
        for node in graph.nodes:
            if node.op == "output":
                output = node.args[0]
            elif node.op == "placeholder":
                samples = len(probes_of(node)[0])
                self.kinds[node], self.slots[node] = _Kind((0,), by_device=False), Slot(0)
            elif node not in self.slots and node not in self.joined and not is_unused_answer(node):
                self._add(node)
        leaves = tree_leaves(output)
        if not all(isinstance(each, fx.Node) and {*self.kinds[each].axes} == {0} for each in leaves):
            raise NotStackableError("its outputs are not one entry for each sample")
        return StackedNetwork(
            output=self._filled(output),
            operations=tuple(self.operations),
            fused=frozenset(self.fused),
            draws=self.draws,
            sample_entries=self.entries // samples,
            perceptron=perceptron_sizes(graph, self.trained),
            casts=self.casts,
            slower=self.slower,
        )

    def _add(self, node: fx.Node) -> None:
        kind = self.kinds[node] = self._kind(node)
        sizes = zip(tensors_of(probes_of(node)[0]), kind.axes, strict=True)
        self.entries = max(self.entries, *(tensor.numel() for tensor, axis in sizes if axis is not None), 0)
        real = next(self.root.parameters()).dtype
        self.draws |= node.meta["draws"]
        self.casts |= any(each.is_floating_point() and each.dtype != real for each in tensors_of(probes_of(node)[0]))
        in_channels = self._in_channels(node)
        if in_channels is None:
            self.slots[node] = self._append(self._operation(node, kind))
        else:
            self.joined[node] = self._append(in_channels)

    def _count(self, node: fx.Node, inside: int) -> None:
        """Note that a layer uses the memory of this many of its results, which should stay in the cache."""
        self.entries = max(self.entries, inside * tensors_of(probes_of(node)[0])[0].numel())

    def _append(self, operation: Operation) -> Slot:
        self.operations.append(operation)
        return Slot(len(self.operations))

    def _slot(self, node: fx.Node) -> Slot:
        """The value of a node, with separate samples."""
        if node not in self.slots:
            self.slots[node] = self._append(Operation(layers.separate_channels, (self.joined[node],)))
        return self.slots[node]

    def _joined_slot(self, node: fx.Node) -> Slot:
        """The value of a node, with joined channels if it has samples."""
        if not self._is_sampled(node):
            return self._slot(node)
        if node not in self.joined:
            self.joined[node] = self._append(Operation(layers.join_channels, (self.slots[node],)))
        return self.joined[node]

    def _filled(self, value: Any) -> Any:
        return fx.node.map_arg(value, self._slot)  # type: ignore[arg-type]

    def _filled_joined(self, value: Any) -> Any:
        return fx.node.map_arg(value, self._joined_slot)  # type: ignore[arg-type]

    def _kind(self, node: fx.Node) -> _Kind:
        one, two = (tensors_of(value) for value in probes_of(node))
        if len(one) != len(two):
            raise NotStackableError(f"{name_of(node)} depends on the number of samples")
        axes = tuple(axis_of(node, first, second) for first, second in zip(one, two, strict=True))
        sources = [self.kinds[each] for each in node.all_input_nodes]
        has_samples = any(axis is not None for axis in axes)
        if any(axis is not None for source in sources for axis in source.axes) and one and not has_samples:
            if node.target not in CREATES:
                raise NotStackableError(f"{name_of(node)} combines the samples of a minibatch")
            return _Kind(axes, by_device=False)
        by_device = node.target in self.trained or any(source.by_device for source in sources)
        return _Kind(axes, by_device=by_device and bool(one) and not has_samples)

    def _in_channels(self, node: fx.Node) -> Operation | None:
        """The operation on joined channels, if it has such a form; convolutions and norms have no other."""
        target: Any = node.target
        first = node.args[0] if node.args else None
        if not isinstance(first, fx.Node) or not self._is_sampled(first) or self._axis(first) or self._rank(first) < 3:
            return None
        if target in CONVOLUTIONS and self._are_parameters(node, 1):
            return self._convolution(node)
        if first not in self.joined:
            return None
        if target is functional.group_norm and self._are_parameters(node, 2):
            args, kwargs = self._filled_joined(node.args), self._filled_joined(node.kwargs)
            return Operation(layers.joined_group_norm, args, kwargs)
        if target in DROPOUTS and node.meta["draws"] and self._rank(first) == (DROPOUTS[target] or self._rank(first)):
            form = partial(layers.joined_dropout, order=memory_order(probes_of(first)[0]), whole=bool(DROPOUTS[target]))
            return Operation(form, self._filled_joined(node.args), self._filled_joined(node.kwargs))
        if target is functional.batch_norm and not argument_of(node, 5, "training"):
            return Operation(
                layers.joined_frozen_norm, self._filled_joined(node.args), self._filled_joined(node.kwargs)
            )
        alike = all(each in self.joined and self._rank(each) == self._rank(first) for each in node.all_input_nodes)
        if target in BY_CHANNEL and alike and len(self.kinds[node].axes) == 1:
            call = partial(method, target) if node.op == "call_method" else target
            form = partial(layers.by_channel, call)
            return Operation(form, self._filled_joined(node.args), self._filled_joined(node.kwargs), stacked=False)
        if node.op == "call_module" and isinstance(self._layer(node), nn.modules.batchnorm._BatchNorm):
            return self._normalisation(node)
        return None

    def _convolution(self, node: fx.Node) -> Operation:
        """A convolution of joined channels. On a CPU it also updates its kernels, and takes pooling and ReLU in."""
        self._count(node, 2)  # the result and its gradient
        found = None if probes_of(node)[0].is_cuda else convolution_from(node)
        if found is None or not self._fuses(node):
            return Operation(CONVOLUTIONS[node.target], *map(self._filled_joined, (node.args, node.kwargs)))
        form, followers = found
        args = self._filled_joined((node.args[0], argument_of(node, 1, "weight"), argument_of(node, 2, "bias")))
        for each in followers:
            self.kinds[each], self.joined[each] = self._kind(each), Slot(len(self.operations) + 1)
        return Operation(partial(convolve, form), args)

    def _operation(self, node: fx.Node, kind: _Kind) -> Operation:
        target: Any = node.target
        args, kwargs = self._filled(node.args), self._filled(node.kwargs)
        match node.op:
            case "get_attr" if target in self.trained:
                return Operation(partial(weight, self.trained.index(target)))
            case "get_attr" if target in self.running:
                raise NotStackableError(f"its statistic {target.removeprefix(_PREFIX)} is read outside normalisation")
            case "get_attr":
                return Operation(partial(constant, self.root, target), stacked=False)
            case "call_module":
                return self._of_layer(node, args, kwargs)
        first = node.args[0] if node.args else None
        if node.op == "call_method" and target.endswith("_") and isinstance(first, fx.Node) and first.op == "get_attr":
            raise NotStackableError(f"it changes {first.target} in place")
        by_device = any(self.kinds[each].by_device for each in node.all_input_nodes)
        if node.meta["draws"] and (by_device or target not in RANDOM):
            return self._mapped(node, kind, apart)
        if by_device:
            return self._with_parameters(node, kind)
        if target is functional.scaled_dot_product_attention or node.meta["draws"]:
            if target is functional.dropout:
                kwargs = {**kwargs, "order": memory_order(probes_of(first)[0])}  # type: ignore[arg-type]
            return Operation(partial(along, RANDOM[target], self._axis(first)), args, kwargs)
        return Operation(partial(method, target) if node.op == "call_method" else target, args, kwargs, stacked=False)

    def _with_parameters(self, node: fx.Node, kind: _Kind) -> Operation:
        """The stacked form of an operation with parameters of a device, or its `vmap`."""
        target: Any = node.target
        args, kwargs = self._filled(node.args), self._filled(node.kwargs)
        one, two = (*node.args, None, None)[:2]
        if target in WEIGHTED and self._is_sampled(one) and is_plain_lookup(node):
            form, place = WEIGHTED[target]
            if self._are_parameters(node, place):
                if target is functional.linear and self._fuses(node):
                    kwargs = {**kwargs, "fused": True, "relu": self._takes_relu(node, kind)}
                return Operation(partial(along, form, self._axis(one)), args, kwargs)
        if target in PRODUCTS and self._is_sampled(one) and self._is_parameter(two) and self._rank(two) == 2:
            return Operation(partial(along, layers.product, self._axis(one)), args)
        if target in CELLS and not kwargs and self._is_cell(node):
            return Operation(CELLS[target], args)
        if target in POINTWISE and not kwargs and self._aligns(one, two):
            first = self._is_parameter(one)
            form = layers.pointwise(POINTWISE[target])
            return Operation(partial(along, form, self._axis(two if first else one)), args, {"parameter_first": first})
        return self._mapped(node, kind, mapped)

    def _mapped(self, node: fx.Node, kind: _Kind, form: Callable[..., Any]) -> Operation:
        """An operation for each device: under `vmap`, or `apart` if it draws."""
        call: Any = partial(method, str(node.target)) if node.op == "call_method" else node.target
        splits = [self._split(node, each) for each in tree_leaves((node.args, dict(node.kwargs)))]
        args = self._filled(node.args), dict(self._filled(node.kwargs))
        return Operation(partial(form, call, splits, kind.axes), args)

    def _is_cell(self, node: fx.Node) -> bool:
        """Whether a recurrent cell has samples (n B, features), states and its own weights."""
        signals, weights = tree_leaves(node.args[:2]), [each for each in node.args[2:] if each is not None]
        sampled = all(self._is_sampled(each) and self._axis(each) == 0 and self._rank(each) == 2 for each in signals)
        return sampled and all(map(self._is_parameter, weights))

    def _split(self, node: fx.Node, value: Any) -> Split:
        if not isinstance(value, fx.Node):
            return Split()
        kind, (one, two) = self.kinds[value], probes_of(value)
        if not kind.axes:
            return Split(counts=one != two)
        if len(kind.axes) > 1:
            raise NotStackableError(f"{name_of(node)} takes a parameter and several results of {name_of(value)}")
        order = memory_order(one) if node.meta["draws"] else ()
        return Split(axis=kind.axes[0], by_device=kind.by_device, order=tuple(order))

    def _layer(self, node: fx.Node) -> nn.Module:
        return self.root.get_submodule(str(node.target))

    def _indices(self, node: fx.Node) -> dict[str, int]:
        """The indices of a layer's parameters among the weights."""
        layer = self._layer(node)
        names = {each: f"{node.target}.{each}" for each, _ in layer.named_parameters()}
        if isinstance(self._layer(node), nn.modules.batchnorm._BatchNorm):
            names = {each: name for each, name in names.items() if name in self.trained}
        if not set(names.values()) <= set(self.trained):
            raise NotStackableError(f"{self._called(node)} has trained and frozen parameters")
        return {each: self.trained.index(name) for each, name in names.items()}

    def _called(self, node: fx.Node) -> str:
        return f"{str(node.target).removeprefix(_PREFIX)} ({type(self._layer(node)).__name__})"

    def _of_layer(self, node: fx.Node, args: Any, kwargs: Any) -> Operation:
        layer, indices = self._layer(node), self._indices(node)
        if not self._is_sampled(node.args[0]):
            raise NotStackableError(f"{self._called(node)} is applied to parameters")
        match layer:
            case nn.modules.batchnorm._BatchNorm():
                # Samples (n B, C), or channels that are not joined yet.
                self._joined_slot(node.args[0])  # type: ignore[arg-type]
                return Operation(layers.separate_channels, (self._append(self._normalisation(node)),))
            case nn.RNNBase() if layer.proj_size or self._rank(node.args[0]) != 3:
                raise NotStackableError(f"{self._called(node)} has a projection, or inputs without samples")
            case nn.RNNBase():
                self._count(node, 4)  # gates
                if recurrent.is_faster_alone(layer, cuda=tensors_of(probes_of(node)[0])[0].is_cuda):
                    self.slower = f"{self._called(node)} takes less time on a CPU one device after another"
                return Operation(partial(recurred, layer, indices), args, kwargs)
            case nn.MultiheadAttention():
                self._check_attention(node, layer)
                self._count(node, 6)  # queries, keys, values and their gradients
                return Operation(partial(attended, layer, indices, self._fuses_attention(node, indices)), args, kwargs)
            case _:
                raise NotStackableError(f"{self._called(node)} has no stacked form")

    def _normalisation(self, node: fx.Node) -> Operation:
        layer = self._layer(node)
        assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
        if layer.momentum is None:
            raise NotStackableError(f"{self._called(node)} averages over all minibatches")
        moments = None
        if layer.running_mean is not None:
            first = self.running.index(f"{node.target}.running_mean")
            moments = first, self.running.index(f"{node.target}.running_var")
        return Operation(partial(normalised, layer, self._indices(node), moments), self._filled_joined(node.args))

    def _check_attention(self, node: fx.Node, layer: nn.MultiheadAttention) -> None:
        if layer.bias_k is not None or layer.add_zero_attn or layer.in_proj_weight is None:
            raise NotStackableError(f"{self._called(node)} has inputs of several sizes, or added keys")
        mask = argument_of(node, 5, "attn_mask")
        if isinstance(mask, fx.Node) and (self._is_sampled(mask) or self.kinds[mask].by_device):
            raise NotStackableError(f"{self._called(node)} has a mask for each sample")

    def _is_sampled(self, value: Any) -> bool:
        return isinstance(value, fx.Node) and len(self.kinds[value].axes) == 1 and self.kinds[value].axes[0] is not None

    def _is_parameter(self, value: Any) -> bool:
        return isinstance(value, fx.Node) and self.kinds[value].by_device and len(self.kinds[value].axes) == 1

    def _are_parameters(self, node: fx.Node, place: int) -> bool:
        """Whether the weight at a position, and the bias after it, belong to a device; either may be missing."""
        found = argument_of(node, place, "weight"), argument_of(node, place + 1, "bias")
        if node.target is functional.embedding:
            found = found[:1]  # type: ignore[assignment]
        return all(each is None or self._is_parameter(each) for each in found)

    def _axis(self, node: Any) -> int:
        axis = self.kinds[node].axes[0]
        assert axis is not None
        return axis

    def _rank(self, value: Any) -> int:
        probe = probes_of(value)[0] if isinstance(value, fx.Node) else None
        return probe.dim() if isinstance(probe, Tensor) else -1

    def _aligns(self, one: Any, two: Any) -> bool:
        """Whether values are samples and a parameter that is the same for all samples of a device."""
        samples, parameter = (one, two) if self._is_sampled(one) else (two, one)
        if not self._is_sampled(samples) or not self._is_parameter(parameter):
            return False
        axis, rank, shape = self._axis(samples), self._rank(samples), probes_of(parameter)[0].shape
        # The parameter must not reach the axis of the samples, or have length 1 there.
        return len(shape) < rank - axis or (axis == 0 and len(shape) == rank and shape[0] == 1)

    def _fuses(self, node: fx.Node) -> bool:
        """Whether only this product uses its weights; then its backward pass may update them."""
        weights: Sequence[Any] = [argument_of(node, 1, "weight"), argument_of(node, 2, "bias")]
        used = [each for each in weights if each is not None]
        if not self.fuse or any(each.op != "get_attr" or len(each.users) > 1 for each in used):
            return False
        self.fused.update(self.trained.index(each.target) for each in used)
        return True

    def _fuses_attention(self, node: fx.Node, indices: Mapping[str, int]) -> bool:
        """Whether the products of self-attention may update their weights: it is applied once, to one input."""
        calls = [each for each in node.graph.nodes if each.target == node.target]
        one_input = len({*node.args[:3]}) == 1 and len(node.args) >= 3
        if not self.fuse or len(calls) > 1 or not one_input:
            return False
        self.fused.update(indices.values())
        return True

    def _takes_relu(self, node: fx.Node, kind: _Kind) -> bool:
        """Whether only a ReLU uses a product; then it is part of the product."""
        users = list(node.users)
        if len(users) != 1 or users[0].target not in RELUS:
            return False
        self.kinds[users[0]], self.slots[users[0]] = kind, Slot(len(self.operations) + 1)
        return True
