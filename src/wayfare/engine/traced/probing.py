"""Trace a network with two minibatches of different sizes, which shows where the samples are at every operation."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from wayfare.learning.chance import generator_state, seeded_generators

# Layers that have a stacked form as a whole. All others are traced down to functions.
LEAVES = nn.modules.batchnorm._BatchNorm, nn.RNNBase, nn.MultiheadAttention
# What may be asked of a tensor without reading its values.
_QUESTIONS = frozenset(
    (
        *("size", "dim", "numel", "ndimension", "is_floating_point", "is_contiguous", "stride", "nelement"),
        torch.is_floating_point,
    )
)
_PROPERTIES = (
    *("ndim", "dtype", "device", "layout", "itemsize", "requires_grad", "names"),
    *("is_cuda", "is_nested", "is_sparse", "is_quantized", "is_mkldnn", "is_meta", "is_mps"),
)


class NotStackableError(Exception):
    """Why a network cannot be stacked, in one line. ``traced``: its operations are known all the same."""

    def __init__(self, reason: str, *, traced: bool = False) -> None:
        super().__init__(reason)
        self.traced = traced


class _Root(nn.Module):
    """A network with one argument; its others keep their defaults."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Any:
        return self.network(inputs)


def traced(
    network: nn.Module, inputs: tuple[Tensor, Tensor], *, whole_norms: bool = False
) -> tuple[nn.Module, fx.Graph]:
    """The operations of a network in training mode.

    ``node.meta["probes"]`` holds their results for both inputs, and ``node.meta["draws"]`` whether they draw random
    numbers. ``whole_norms``: frozen batch normalisation is a layer too, not a function. Raises NotStackableError if the
    operations depend on values, or on the size of a minibatch.
    """
    root = _Root(network)
    for name, layer in network.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            raise NotStackableError(f"{name or 'it'} is compiled by torch.jit")
    try:
        # The generators belong to one thread at a time, so no two threads trace at once.
        with seeded_generators(inputs[0].device) as set_seed, torch.no_grad():
            set_seed(0)
            tracer = _Tracer(root, inputs, whole_norms=whole_norms)
            with _sizes_in_tuples():
                graph = tracer.trace(root)
            tracer.reject_other_draws()
            for name, buffer in network.named_buffers():
                if isinstance(buffer, fx.Proxy):
                    raise NotStackableError(f"it assigns its buffer {name}")
            return root, graph
    except NotStackableError:
        raise
    except Exception as error:  # a user's code may raise anything when it is traced
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise NotStackableError(f"its operations cannot be traced ({reason[0]})") from error


@contextmanager
def _sizes_in_tuples() -> Iterator[None]:
    """Let `torch.zeros(x.size(0), 3)` be traced. PyTorch accepts a traced size at the start only inside a tuple."""

    def in_tuple(create: Callable[..., Any]) -> Callable[..., Any]:
        def created(*size: Any, **options: Any) -> Any:
            return create(size, **options) if size and isinstance(size[0], _Value) else create(*size, **options)

        return created

    creators = {"zeros": torch.zeros, "ones": torch.ones, "rand": torch.rand, "randn": torch.randn}
    for name, create in creators.items():
        setattr(torch, name, in_tuple(create))
    try:
        yield
    finally:
        for name, create in creators.items():
            setattr(torch, name, create)


def probes_of(node: fx.Node) -> tuple[Any, Any]:
    one, two = node.meta["probes"]
    return one, two


class _Value(fx.Proxy):
    """A traced value. Its shape is known except for the number of samples."""

    def __getattr__(self, name: str) -> Any:
        if name == "shape":
            return self.size()
        if name in _PROPERTIES and isinstance(probes_of(self.node)[0], Tensor):
            return getattr(probes_of(self.node)[0], name)
        return super().__getattr__(name)

    def __len__(self) -> int:
        one, two = (len(value) for value in probes_of(self.node))
        if one != two:
            raise NotStackableError("it calls len() on a minibatch; write x.size(0)")
        return one


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True

    def __init__(self, root: nn.Module, inputs: tuple[Tensor, Tensor], *, whole_norms: bool) -> None:
        super().__init__()
        self._whole_norms = whole_norms
        self._inputs, self._thread = inputs, threading.get_ident()
        self._drawn = generator_state(inputs[0].device)
        # While a network is traced, its own layers return traced values.
        self._copy = copy.deepcopy(root)
        for layer in self._copy.modules():
            if isinstance(layer, nn.RNNBase):
                # On a GPU, PyTorch warns of weights that are not in one piece, as after a copy.
                layer.flatten_parameters()

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # Tracing replaces the calls of all modules of the process, and runs in other threads call theirs meanwhile.
        return super().call_module(m, forward, args, kwargs) if self._is_here() else forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return super().getattr(attr, attr_val, parameter_proxy_cache) if self._is_here() else attr_val

    def _is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_frozen_norm = isinstance(m, nn.modules.batchnorm._BatchNorm) and not m.training
        return isinstance(m, LEAVES) and (self._whole_norms or not is_frozen_norm)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any | None = None,
    ) -> fx.Node:
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        if kind != "output":
            # Not every node becomes a proxy: a tensor that the network creates does not, nor a data class of outputs.
            self.reject_other_draws()
            node.meta["probes"] = tuple(self._probe(node, which) for which in (0, 1))
            node.meta["draws"] = self._draws()
        return node

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
        proxy_factory_fn: Callable[[fx.Node], fx.Proxy] | None = None,
    ) -> Any:
        proxy = super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
        return proxy if kind == "output" else self._known(proxy)

    def _draws(self) -> bool:
        """Whether anything has drawn random numbers since the last call."""
        before, self._drawn = self._drawn, generator_state(self._inputs[0].device)
        return not torch.equal(before, self._drawn)

    def reject_other_draws(self) -> None:
        """Raise NotStackableError for draws that no traced operation makes: the same result would serve every step."""
        if self._draws():
            raise NotStackableError("it draws random numbers that do not depend on its inputs")

    def to_bool(self, obj: fx.Proxy) -> bool:
        raise NotStackableError("it branches on values")

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        value: Any = obj
        return iter([value[index] for index in range(len(value))])

    def _probe(self, node: fx.Node, which: int) -> Any:
        given: Any = fx.node.map_arg((node.args, dict(node.kwargs)), lambda it: it.meta["probes"][which])
        (args, kwargs), target = given, cast(Any, node.target)
        match node.op:
            case "placeholder":
                return self._inputs[which]
            case "get_attr":
                return _attribute(self._copy if _has(self._copy, target) else self.root, target)
            case "call_module":
                return self._copy.get_submodule(target).forward(*args, **kwargs)
            case "call_method":
                return getattr(args[0], target)(*args[1:], **kwargs)
            case _:
                return target(*args, **kwargs)

    def _known(self, proxy: Any) -> Any:
        """A proxy, or its value if it is no tensor and does not depend on the number of samples."""
        node, (one, two) = proxy.node, probes_of(proxy.node)
        if type(one) in (tuple, list) and any(isinstance(leaf, Tensor) for leaf in tree_leaves(one)):
            return type(one)(proxy[at] for at in range(len(one)))
        if one is None:
            return None
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(one)):
            return proxy
        asked = [value for value in _arguments(node) if isinstance(value, Tensor)]
        if asked and node.target not in _QUESTIONS:
            raise NotStackableError(f"it reads values ({getattr(node.target, '__name__', node.target)})")
        if isinstance(one, tuple):
            known = zip(one, two, strict=True)
            return tuple(first if first == second else proxy[at] for at, (first, second) in enumerate(known))
        return one if one == two else proxy


def _arguments(node: fx.Node) -> list[Any]:
    """The results for the first input of a node's arguments."""
    return tree_leaves([each.meta["probes"][0] for each in node.all_input_nodes])


def _has(root: nn.Module, name: str) -> bool:
    owner, _, attribute = name.rpartition(".")
    try:
        return hasattr(root.get_submodule(owner), attribute)
    except AttributeError:
        return False


def _attribute(root: nn.Module, name: str) -> Any:
    owner, _, attribute = name.rpartition(".")
    found = getattr(root.get_submodule(owner), attribute)
    return found.detach() if isinstance(found, Tensor) else found
