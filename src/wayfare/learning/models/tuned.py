"""A head and the last blocks of a pre-trained network, of which only a part is trained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.errors import ScenarioError
from wayfare.learning.backbones.base import Backbone, normalised
from wayfare.learning.backbones.chain import NORMS
from wayfare.learning.models.adapters import adapters_of, with_adapters
from wayfare.learning.models.base import read_vector, trainable
from wayfare.learning.models.mlp import Mlp
from wayfare.scenario.model import Trained

# What each way of training needs in the trained blocks.
_NEEDS: dict[Trained, str] = {
    "norms": "normalisation",
    "adapters": "linear layer or convolution",
    "last-block": "parameters",
    "everything": "parameters",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What is trained besides the head, as in the scenario."""

    trained: Trained
    blocks: int
    rank: int
    alpha: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Tuned:
    """The blocks of a backbone from ``cut`` on, a norm without parameters, and a head.

    The vector holds the trained entries of the blocks, then the head as `Mlp` arranges it. Pre-trained entries start
    at their values, so that the network starts with the features of the frozen backbone.

    Batch normalisation keeps the statistics of the pre-training, in training too. They are constants: minibatches of a
    device with few classes would spoil them, and nothing but parameters travels.
    """

    backbone: Backbone
    tuning: Tuning
    head: Mlp

    @property
    def cut(self) -> int:
        """The index of the first trained block; 0 is the image."""
        if self.tuning.trained == "everything":
            return 0
        cuts = self.backbone.cuts
        if not cuts:
            rule = f"{self.backbone.name} is not a chain of layers, so it cannot be cut; must be head or everything"
            raise ScenarioError("learning.trained", self.tuning.trained, rule)
        if self.tuning.blocks > len(cuts):
            rule = f"must be at most {len(cuts)}, the blocks of {self.backbone.name}"
            raise ScenarioError("learning.trained_blocks", self.tuning.blocks, rule)
        return cuts[-self.tuning.blocks]

    @cached_property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in trainable(self._template).values())

    @property
    def statistics(self) -> int:
        return 0

    def module(self) -> nn.Module:
        return copy.deepcopy(self._template)

    def initial(self, rng: np.random.Generator) -> Tensor:
        """Pre-trained values, adapters without effect, and the head as it starts on frozen features."""
        module = self.module()
        head = self.head.initial(rng)
        with torch.no_grad():
            for adapter in adapters_of(module):
                values = rng.uniform(-adapter.bound, adapter.bound, adapter.down.shape)
                adapter.down.copy_(torch.from_numpy(values))
        return torch.cat([read_vector(module)[: -len(head)], head])

    @cached_property
    def _template(self) -> nn.Module:
        if any(isinstance(layer, torch.jit.ScriptModule) for layer in self.backbone.module.modules()):
            rule = f"{self.backbone.name} has scripted layers (TorchScript), which cannot be changed; must be head"
            raise ScenarioError("learning.trained", self.tuning.trained, rule)
        blocks = nn.Sequential(*self._blocks())
        count = _CHOICES[self.tuning.trained](blocks, self.tuning)
        if not count:
            number = self.tuning.blocks
            which = "the last block" if number == 1 else f"the last {number} blocks"
            rule = (
                f"{which} of {self.backbone.name} {'has' if number == 1 else 'have'} no {_NEEDS[self.tuning.trained]}; "
                f"choose something else, or more learning.trained_blocks (at most {len(self.backbone.cuts)})"
            )
            raise ScenarioError("learning.trained", self.tuning.trained, rule)
        self._check_start(blocks)
        return _Network(blocks, self.head.module())

    def _check_start(self, blocks: nn.Module) -> None:
        """Some layers use the weight of a layer inside them directly, and then no adapter can stand beside it.

        Parameters without effect on the features, such as those of GoogLeNet's auxiliary classifiers, are frozen.
        """
        try:
            image = self.backbone.trial_image
            found = blocks(nn.Sequential(*self.backbone.folded_blocks[: self.cut])(image))
            same = torch.allclose(found, self.backbone.module(image), rtol=1e-3, atol=1e-3)
            trained = list(trainable(blocks).values())
            for parameter, gradient in zip(
                trained, torch.autograd.grad(found.sum(), trained, allow_unused=True), strict=True
            ):
                parameter.requires_grad_(gradient is not None)
        except (AttributeError, RuntimeError, TypeError):
            same = False
        if not same:
            rule = f"a layer of {self.backbone.name} cannot be changed in this way"
            raise ScenarioError("learning.trained", self.tuning.trained, rule)

    def _blocks(self) -> list[nn.Module]:
        """Copies of the blocks from the cut on. Normalisations are folded unless they are trained."""
        cut = self.cut
        if self.tuning.trained == "everything" and not self.backbone.blocks:
            return [copy.deepcopy(self.backbone.module)]
        kept = self.backbone.folded_blocks if self.tuning.trained == "adapters" else self.backbone.blocks
        return [copy.deepcopy(block) for block in kept[cut:]]


class _Network(nn.Module):
    """Blocks, whose vectors are shifted and scaled as cached features are, and a head."""

    def __init__(self, blocks: nn.Module, head: nn.Module) -> None:
        super().__init__()
        for layer in blocks.modules():
            # Statistics of the pre-training are constants.
            layer._non_persistent_buffers_set |= set(layer._buffers)
        self.blocks, self.head = blocks, head
        self.train()

    def forward(self, signal: Tensor) -> Tensor:
        logits: Tensor = self.head(normalised(self.blocks(signal)))
        return logits

    def train(self, mode: bool = True) -> _Network:
        """Blocks stay in evaluation mode."""
        super().train(mode)
        self.blocks.eval()
        return self


def _norms(blocks: nn.Module, tuning: Tuning) -> int:
    return _unfreeze([layer for layer in blocks.modules() if isinstance(layer, NORMS)])


def _adapters(blocks: nn.Module, tuning: Tuning) -> int:
    return with_adapters(blocks, tuning.rank, tuning.alpha)


def _all(blocks: nn.Module, tuning: Tuning) -> int:
    return _unfreeze([blocks])


def _unfreeze(layers: list[nn.Module]) -> int:
    parameters = [parameter.requires_grad_() for layer in layers for parameter in layer.parameters()]
    return len(parameters)


_CHOICES: dict[Trained, Callable[[nn.Module, Tuning], int]] = {
    "norms": _norms,
    "adapters": _adapters,
    "last-block": _all,
    "everything": _all,
}
