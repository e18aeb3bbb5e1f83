"""From a trained part of a backbone to operations that all devices share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from wayfare.engine.traced.nodes import RELUS, argument_of, axis_of, is_unused_answer, name_of, tensors_of
from wayfare.engine.traced.probing import NotStackableError, probes_of, traced
from wayfare.engine.traced.program import Operation, Slot, StackedNetwork, constant, method
from wayfare.engine.traced.stepping import StackedStep
from wayfare.engine.tuned.layers import Form, convolution, linear
from wayfare.engine.tuned.weights import Adapter, Entry, LayerWeights, Norm
from wayfare.learning.models.adapters import LowRank
from wayfare.learning.models.base import trainable

_PREFIX = "network."
_RELU6 = 6.0


def tuned_network(
    module: nn.Module, inputs: tuple[Tensor, Tensor], *, signals: torch.dtype, kernels: bool
) -> StackedNetwork:
    """Trace a trained part of a backbone, and its head, with two minibatches of different sizes.

    ``signals`` is the type between layers. ``kernels``: Triton can compile for the device of the inputs. Raises
    NotStackableError with the reason if an operation is unknown.
    """
    trained = list(trainable(module))
    adapters = _take_adapters(module, trained)
    root, graph = traced(module, inputs, whole_norms=True)
    builder = _Builder(root, trained, adapters, signals=signals, kernels=kernels)
    try:
        return builder.built(graph)
    except NotStackableError as error:
        raise NotStackableError(str(error), traced=True) from error


def _take_adapters(module: nn.Module, trained: Sequence[str]) -> dict[str, Adapter]:
    """Put the layer inside every adapter in its place; return adapters by the name of the layer."""
    found: dict[str, Adapter] = {}
    for name, layer in list(module.named_modules()):
        if isinstance(layer, LowRank):
            found[name] = Adapter(trained.index(f"{name}.down"), trained.index(f"{name}.up"), layer.scale)
            module.set_submodule(name, layer.layer)
    return found


@dataclass(slots=True)
class _Builder:
    root: nn.Module
    trained: list[str]
    adapters: dict[str, Adapter]
    signals: torch.dtype
    kernels: bool
    operations: list[Operation] = field(default_factory=list)
    slots: dict[fx.Node, Slot] = field(default_factory=dict)
    # The limits of ReLUs through which the convolution after them passes gradients.
    gates: dict[fx.Node, float] = field(default_factory=dict)
    # Nodes that are part of another operation.
    absorbed: set[fx.Node] = field(default_factory=set)
    largest: int = 0
    total: int = 0

    def built(self, graph: fx.Graph) -> StackedNetwork:
        output: Any = None
        for node in graph.nodes:
            if node.op == "output":
                output = fx.node.map_arg(node.args[0], self._slot)  # type: ignore[arg-type]
            elif node.op == "placeholder":
                self.slots[node] = self._append(Operation(partial(_cast, self.signals), (Slot(0),), stacked=False))
            elif node not in self.absorbed and not is_unused_answer(node):
                self._add(node)
        samples = len(probes_of(next(iter(graph.nodes)))[0])
        return StackedNetwork(
            operations=self.operations,
            output=output,
            fused=frozenset(),
            draws=False,
            sample_entries=self.largest // samples,
            total_entries=self.total // samples,
            perceptron=None,
            casts=False,
        )

    def _append(self, operation: Operation) -> Slot:
        self.operations.append(operation)
        return Slot(len(self.operations))

    def _slot(self, node: fx.Node) -> Slot:
        return self.slots[node]

    def _add(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            # Trained parameters have a form only inside the layers below.
            if not self._is_trained(node) and self._constant_users(node):
                self.slots[node] = self._append(
                    Operation(partial(constant, self.root, str(node.target)), stacked=False)
                )
            return
        self._check_samples(node)
        if node.target is functional.pad and self._is_border(node):
            return
        if node.target is functional.conv2d:
            self._add_convolution(node)
        elif node.target is functional.linear:
            source: Any = node.args[0]
            self._finish(node, node, Operation(partial(_linear, self._weights(node)), (self._slot(source),)))
        elif node.op == "call_module":
            signal: Any = node.args[0]
            self._finish(node, node, Operation(partial(_normalised, self._norm(node)), (self._slot(signal),)))
        else:
            self._add_shared(node)

    def _add_shared(self, node: fx.Node) -> None:
        """An operation without trained parameters takes the samples of all devices as one minibatch."""
        trained = [each for each in node.all_input_nodes if self._is_trained(each)]
        if trained:
            name = str(trained[0].target).removeprefix(_PREFIX)
            raise NotStackableError(f"{name_of(node)} with {name} has no stacked form")
        if node.meta["draws"]:
            raise NotStackableError("it draws random numbers")
        call: Any = partial(method, str(node.target)) if node.op == "call_method" else node.target
        args: Any = fx.node.map_arg(node.args, self._slot)  # type: ignore[arg-type]
        kwargs: Any = fx.node.map_arg(dict(node.kwargs), self._slot)  # type: ignore[arg-type]
        self._finish(node, node, Operation(call, args, kwargs, stacked=False))

    def _add_convolution(self, node: fx.Node) -> None:
        """A convolution with the border before it, and the normalisation and ReLU after it."""
        form, source = self._form(node)
        last, norm = node, None
        user = _only_user(last)
        if user is not None and user.op == "call_module":
            last, norm = user, self._norm(user)
            user = _only_user(last)
        limit = -1.0 if user is None else _limit(user)
        if user is not None and limit >= 0:
            last = user
        gated = limit >= 0 and self._feeds_kernel(last)
        if gated:
            self.gates[last] = limit
        form = replace(form, limit=limit, gate=self.gates.get(source, -1.0), gated=gated)
        call = partial(_convolution, self._weights(node, norm), form, self.kernels)
        self._finish(node, last, Operation(call, (self._slot(source),)))

    def _form(self, node: fx.Node) -> tuple[Form, fx.Node]:
        """A convolution, and what it is applied to: before the border, if that is a node of its own."""
        source: Any = node.args[0]
        padding = _padding(node)
        if source.target is functional.pad and self._is_border(source):
            border = argument_of(source, 1, "pad")
            padding = (padding[0] + border[0], padding[1] + border[1], padding[2] + border[2], padding[3] + border[3])
            source = source.args[0]
        weight: Tensor = probes_of(argument_of(node, 1, "weight"))[0]
        form = Form(
            kernel=(weight.shape[2], weight.shape[3]),
            stride=_pair(argument_of(node, 3, "stride"), 1),
            padding=padding,
            dilation=_pair(argument_of(node, 5, "dilation"), 1),
            groups=argument_of(node, 6, "groups") or 1,
        )
        return form, source

    def _feeds_kernel(self, node: fx.Node) -> bool:
        """Whether only a product or a depthwise convolution uses a result."""
        user = _only_user(node)
        if user is not None and user.target is functional.pad and self._is_border(user):
            user = _only_user(user)
        if user is None or user.target is not functional.conv2d:
            return False
        channels, outputs = (probes_of(each)[0].shape[1] for each in (node, user))
        form = self._form(user)[0]
        return form.is_product or form.is_depthwise(channels, outputs)

    def _finish(self, first: fx.Node, last: fx.Node, operation: Operation) -> None:
        """Note an operation that stands for a chain of nodes."""
        entries = sum(tensor.numel() for tensor in tensors_of(probes_of(last)[0]))
        self.largest, self.total = max(self.largest, entries), self.total + entries
        slot, node = self._append(operation), first
        self.slots[node] = slot
        while node is not last:
            user = _only_user(node)
            assert user is not None
            node = user
            self.slots[node] = slot
            self.absorbed.add(node)

    def _weights(self, node: fx.Node, norm: Norm | None = None) -> LayerWeights:
        weight, bias = argument_of(node, 1, "weight"), argument_of(node, 2, "bias")
        if not isinstance(weight, fx.Node) or weight.op != "get_attr":
            raise NotStackableError(f"{name_of(node)} has a computed weight")
        layer = str(weight.target).removeprefix(_PREFIX).rpartition(".")[0]
        found = LayerWeights(
            weight=self._entry(weight),
            bias=None if bias is None else self._entry(bias),
            adapter=self.adapters.get(layer),
            norm=norm,
        )
        if found.is_trained:
            return found
        with torch.no_grad():
            kernel, shift = found.of(StackedStep(count=1, weights=(), statistics=()))
        return LayerWeights(weight=kernel[0], bias=None if shift is None else shift[0])

    def _norm(self, node: fx.Node) -> Norm:
        layer = self.root.get_submodule(str(node.target))
        if not isinstance(layer, _BatchNorm) or layer.training or layer.running_mean is None:
            raise NotStackableError(f"{str(node.target).removeprefix(_PREFIX)} has no stacked form")
        assert layer.running_var is not None
        names = [f"{node.target}.{each}".removeprefix(_PREFIX) for each in ("weight", "bias")]
        scale, shift = (
            self.trained.index(name) if name in self.trained else value.detach() if value is not None else None
            for name, value in zip(names, (layer.weight, layer.bias), strict=True)
        )
        inverse = torch.rsqrt(layer.running_var + layer.eps)
        return Norm(scale=scale, shift=shift, mean=layer.running_mean.clone(), inverse=inverse)

    def _entry(self, node: Any) -> Entry:
        if self._is_trained(node):
            return self.trained.index(str(node.target).removeprefix(_PREFIX))
        value: Tensor = constant(self.root, str(node.target))
        return value.detach()

    def _is_trained(self, node: fx.Node) -> bool:
        return node.op == "get_attr" and str(node.target).removeprefix(_PREFIX) in self.trained

    def _constant_users(self, node: fx.Node) -> bool:
        return any(user.target not in (functional.conv2d, functional.linear) for user in node.users)

    def _is_border(self, node: fx.Node) -> bool:
        """Whether a node adds zeros around images, only for a convolution."""
        user = _only_user(node)
        mode, value = argument_of(node, 2, "mode") or "constant", argument_of(node, 3, "value") or 0
        sizes = argument_of(node, 1, "pad")
        plain = mode == "constant" and value == 0 and isinstance(sizes, tuple | list) and len(sizes) == 4
        return plain and user is not None and user.target is functional.conv2d

    def _check_samples(self, node: fx.Node) -> None:
        """Samples must be the first axis, so that minibatches of devices are one minibatch."""
        one, two = (tensors_of(value) for value in probes_of(node))
        axes = [axis_of(node, first, second) for first, second in zip(one, two, strict=True)]
        if any(axis is None or axis for axis in axes):
            raise NotStackableError(f"{name_of(node)} combines or moves the samples of a minibatch")


def _cast(signals: torch.dtype, inputs: Tensor) -> Tensor:
    """In one pass, with channels last."""
    return inputs.to(signals, memory_format=torch.channels_last if inputs.dim() == 4 else torch.preserve_format)


def _linear(weights: LayerWeights, step: StackedStep, signal: Tensor) -> Tensor:
    weight, bias = weights.of(step)
    return linear(signal, weight, bias, step.count)


def _convolution(weights: LayerWeights, form: Form, kernels: bool, step: StackedStep, signal: Tensor) -> Tensor:
    weight, bias, factor = weights.apart(step)
    return convolution(signal, weight, bias, form, step.count, kernels=kernels, factor=factor)


def _normalised(norm: Norm, step: StackedStep, signal: Tensor) -> Tensor:
    """Normalisation that does not follow a convolution, of signals (n x batch, channels, ...)."""
    apart = signal.unflatten(0, (step.count, -1))
    factor, shift = (each.view(len(each), 1, -1, *[1] * (signal.dim() - 2)) for each in norm.of(step))
    found: Tensor = (apart * factor + shift).to(signal.dtype).flatten(0, 1)
    return found


def _only_user(node: fx.Node) -> fx.Node | None:
    """The node that uses a result, if it is one alone. Questions about a shape do not count."""
    users = [user for user in node.users if not _only_asks(user)]
    return users[0] if len(users) == 1 else None


def _only_asks(node: fx.Node) -> bool:
    """Whether a node answered a question about a shape, and no tensor depends on it."""
    asks = node.op != "output" and not tensors_of(probes_of(node)[0])
    return asks and all(map(_only_asks, node.users))


def _limit(node: fx.Node) -> float:
    """Where a ReLU is cut off; negative if a node is something else."""
    if node.target in RELUS:
        return math.inf
    if node.target is functional.relu6:
        return _RELU6
    bounds = argument_of(node, 1, "min_val"), argument_of(node, 2, "max_val")
    return _RELU6 if node.target is functional.hardtanh and bounds == (0.0, _RELU6) else -1.0


def _pair(value: Any, default: int) -> tuple[int, int]:
    value = default if value is None else value
    found = (value, value) if isinstance(value, int) else tuple(value)
    if len(found) != 2 or not all(isinstance(each, int) for each in found):
        raise NotStackableError(f"a convolution has the stride or dilation {value}")
    return found[0], found[1]


def _padding(node: fx.Node) -> tuple[int, int, int, int]:
    value = argument_of(node, 4, "padding")
    if isinstance(value, str):
        raise NotStackableError(f"a convolution has the padding {value}")
    rows, columns = _pair(value, 0)
    return columns, columns, rows, rows
