"""Wayfare's tasks and the sizes of their networks, without PyTorch, which takes seconds to import.

`contacts` and `plan` need only the number of parameters. A test compares it with the networks themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from wayfare.errors import ScenarioError
from wayfare.learning.data import IMAGE_SETS
from wayfare.scenario.model import NO_BACKBONE, Learning


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTask:
    networks: tuple[str, ...]  # the default first
    augments: bool  # whether its samples can be shifted and mirrored
    classifies: bool = True  # whether a network's outputs are logits of the classes that a partition uses


KNOWN: Mapping[str, KnownTask] = {
    "fashion-small": KnownTask(networks=("mlp",), augments=False),
    "fashion": KnownTask(networks=("mlp", "cnn"), augments=True),
    "cifar10": KnownTask(networks=("resnet9", "cnn"), augments=True),
    "argoverse": KnownTask(networks=("lanegcn",), augments=True, classifies=False),
}
_EMBEDDED_PIXELS, _EMBEDDED_CLASSES = 14 * 14, 10


def checked_network(learning: Learning) -> str:
    """The network of one of Wayfare's tasks. Settings that do not fit it raise ScenarioError."""
    known = KNOWN[learning.task]
    if learning.network not in ("auto", *known.networks):
        rule = f"must be {' or '.join(known.networks)} for the task {learning.task}"
        raise ScenarioError("learning.network", learning.network, rule)
    if learning.augment and not known.augments:
        raise ScenarioError("learning.augment", learning.augment, f"{learning.task} has no images to shift and mirror")
    if learning.local_loss == "logit-adjusted" and not known.classifies:
        rule = f"needs classes, but {learning.task} has none; use plain or prox"
        raise ScenarioError("learning.local_loss", learning.local_loss, rule)
    return known.networks[0] if learning.network == "auto" else learning.network


def vector_sizes(learning: Learning) -> tuple[int, int]:
    """Parameters and statistics of a scenario's network.

    PyTorch is imported only for LaneGCN, a backbone, your own network, and settings that may be invalid.
    """
    if learning.task in KNOWN and learning.backbone == NO_BACKBONE and not learning.recalibrate_statistics:
        network = checked_network(learning)
        image, classes = (1, _EMBEDDED_PIXELS, 1), _EMBEDDED_CLASSES
        if learning.task in IMAGE_SETS:
            image, classes = IMAGE_SETS[learning.task].image, len(IMAGE_SETS[learning.task].classes)
        match network:
            case "mlp":
                return _perceptron((math.prod(image), *learning.hidden, classes)), 0
            case "cnn":
                return _small_cnn(image, classes), 0
            case "resnet9":
                return _resnet9(classes, batch=learning.normalisation == "batch")
    from wayfare.learning.tasks import model_of

    model = model_of(learning)
    return model.parameters, model.statistics


def _perceptron(sizes: Sequence[int]) -> int:
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(sizes))


def _small_cnn(image: tuple[int, int, int], classes: int, first: int = 16, second: int = 32, hidden: int = 64) -> int:
    channels, height, width = image
    convolutions = (9 * channels + 1) * first + (9 * first + 1) * second
    return convolutions + _perceptron((second * (height // 4) * (width // 4), hidden, classes))


def _resnet9(classes: int, *, batch: bool, width: int = 64) -> tuple[int, int]:
    a, b, c, d = width, 2 * width, 4 * width, 8 * width
    pairs = (3, a), (a, b), (b, b), (b, b), (b, c), (c, d), (d, d), (d, d)
    parameters = sum(9 * inputs * outputs for inputs, outputs in pairs) + _perceptron((d, classes))
    # A running mean and variance for every channel.
    return parameters, 2 * sum(outputs for _, outputs in pairs) if batch else 0
