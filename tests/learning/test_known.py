"""The sizes of Wayfare's networks are known without PyTorch."""

from __future__ import annotations

import pytest

from wayfare.errors import ScenarioError
from wayfare.learning.known import KNOWN, vector_sizes
from wayfare.learning.tasks import model_of
from wayfare.scenario.model import Learning


@pytest.mark.parametrize(
    "learning",
    [
        *(Learning(task=task, network=network) for task, known in KNOWN.items() for network in known.networks),
        Learning(hidden=()),
        Learning(task="fashion", hidden=(9, 8, 7)),
        Learning(task="cifar10", normalisation="group"),
        Learning(task="cifar10", recalibrate_statistics=100),
    ],
    ids=lambda learning: f"{learning.task} {learning.network} {learning.hidden} {learning.normalisation}",
)
def test_the_sizes_are_those_of_the_network(learning: Learning) -> None:
    model = model_of(learning)
    assert vector_sizes(learning) == (model.parameters, model.statistics)


@pytest.mark.parametrize(
    ("learning", "problem"),
    [
        (Learning(network="resnet9"), "learning.network = 'resnet9': must be mlp for the task fashion-small"),
        (Learning(augment=True), "learning.augment = True: fashion-small has no images to shift and mirror"),
        (Learning(recalibrate_statistics=100), "learning.recalibrate_statistics = 100: needs batch normalisation"),
    ],
)
def test_settings_that_do_not_fit_the_network_are_rejected(learning: Learning, problem: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        vector_sizes(learning)
    assert str(caught.value).startswith(problem)
