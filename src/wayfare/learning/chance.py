"""Random layers such as dropout: a run seeds PyTorch's default generators from its streams at every step.

A layer that draws from another source, such as NumPy or its own generator, cannot be seeded, so a run with it could
not be repeated.
"""

from __future__ import annotations

import copy
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

# All threads share PyTorch's default generators, so only one at a time may seed them or draw from them.
_drawing = threading.RLock()
_GENERATORS = torch.Generator, np.random.Generator, np.random.RandomState, random.Random


@contextmanager
def seeded_generators(where: torch.device) -> Iterator[Callable[[int], None]]:
    """Yield a function that seeds PyTorch's default generators, and restore their states afterwards."""
    on_cuda = where.type == "cuda"
    index = (torch.cuda.current_device() if where.index is None else where.index) if on_cuda else 0
    generators = [torch.default_generator, *([torch.cuda.default_generators[index]] if on_cuda else [])]

    def set_seed(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(seed)

    with _drawing, torch.random.fork_rng(devices=[index] if on_cuda else []):
        yield set_seed


@contextmanager
def private_draws() -> Iterator[None]:
    """Draws on the CPU from PyTorch's default generator, such as those of new layers, that change nothing elsewhere.

    Other threads wait that seed generators or watch them, and its state is restored afterwards.
    """
    with _drawing, torch.random.fork_rng(devices=[]):
        yield


def generator_state(where: torch.device) -> Tensor:
    """The state of PyTorch's default generators, which changes with every draw."""
    states = [torch.default_generator.get_state()]
    if where.type == "cuda":
        states.append(torch.cuda.get_rng_state(where))
    return torch.cat(states)


@dataclass(frozen=True, slots=True)
class RandomLayers:
    """The layers of a network that draw random numbers, as `path (class)`."""

    keyed: tuple[str, ...] = ()  # from PyTorch's default generators
    others: tuple[str, ...] = ()  # from any other source


def random_layers(module: nn.Module, loss: Callable[[nn.Module], Tensor], where: torch.device) -> RandomLayers:
    """Find the layers that draw random numbers in training, by computing a loss twice with the same seed.

    A layer counts if it changes the state of a generator, has its own generator, or gives another result the second
    time.
    """
    watch = _Watch(module)
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 - what layers may draw from
    losses = []
    with seeded_generators(where) as set_seed:
        start = copy.deepcopy(module.state_dict())
        for _ in range(2):
            set_seed(0)
            module.load_state_dict(start)
            watch.begin()
            before = _states(where)
            losses.append([loss(module).detach()])
            after = _states(where)
    np.random.set_state(numpy_state)  # noqa: NPY002
    random.setstate(python_state)
    watch.end()
    owned = [
        name for name, layer in watch.names.items() if any(isinstance(it, _GENERATORS) for it in vars(layer).values())
    ]
    others = [*owned, *watch.elsewhere]
    if not others and (before[1] != after[1] or not _same(losses[:1], losses[1:])):
        others = ["the network or its loss"]
    keyed = watch.keyed if watch.keyed or torch.equal(before[0], after[0]) else ["the network or its loss"]
    return RandomLayers(tuple(dict.fromkeys(keyed)), tuple(dict.fromkeys(others)))


class _Watch:
    def __init__(self, module: nn.Module) -> None:
        # Scripted layers allow no hooks. What they draw counts for the layer around them.
        self.names = {
            f"{name or 'the network'} ({type(layer).__name__})": layer
            for name, layer in module.named_modules()
            if not isinstance(layer, torch.jit.ScriptModule)
        }
        self.keyed: list[str] = []
        self.elsewhere: list[str] = []
        self._open: list[tuple[Any, int]] = []
        self._outputs: list[list[Any]] = []
        self._handles = [
            handle
            for name, layer in self.names.items()
            for handle in (
                layer.register_forward_pre_hook(self._enter),
                layer.register_forward_hook(self._leaver(name)),
            )
        ]

    def begin(self) -> None:
        self._open.clear()
        self._outputs.append([])

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, layer: nn.Module, inputs: Any) -> None:
        self._open.append((_states(_place(inputs)), len(self.keyed) + len(self.elsewhere)))

    def _leaver(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def leave(layer: nn.Module, inputs: Any, outputs: Any) -> None:
            before, found = self._open.pop()
            leaves = [leaf.detach().clone() for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
            passed, first = self._outputs[-1], self._outputs[0]
            passed.append(leaves)
            if len(self.keyed) + len(self.elsewhere) > found:
                return  # A layer inside it draws.
            after = _states(_place(inputs))
            if not torch.equal(before[0], after[0]):
                self.keyed.append(name)
            elif before[1] != after[1] or not (self.elsewhere or _same(first[len(passed) - 1 :][:1], [leaves])):
                self.elsewhere.append(name)

        return leave


def _place(inputs: Any) -> torch.device:
    return next((leaf.device for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)), torch.device("cpu"))


def _states(where: torch.device) -> tuple[Tensor, bytes]:
    """The states of PyTorch's default generators, and of the generators that a run cannot seed."""
    return generator_state(where), pickle.dumps((np.random.get_state(legacy=False), random.getstate()))  # noqa: NPY002


def _same(ones: Sequence[Sequence[Tensor]], others: Sequence[Sequence[Tensor]]) -> bool:
    """Whether results are equal, up to the rounding of a GPU that sums in another order."""
    pairs = [*zip_longest(chain(*ones), chain(*others))]
    return all(
        one is not None
        and other is not None
        and one.shape == other.shape
        and torch.allclose(one, other, rtol=1e-2 if one.is_cuda else 1e-5, equal_nan=True)
        for one, other in pairs
    )
