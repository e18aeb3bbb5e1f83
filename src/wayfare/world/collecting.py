"""The world of a method whose vector holds class statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from wayfare.codec import make_link
from wayfare.learning.models.base import Model
from wayfare.learning.sums import Sums, SumsModel, vectors_of
from wayfare.learning.tasks.base import Classification
from wayfare.learning.tasks.own import OwnTask
from wayfare.methods import Method
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.world.draw import World


def link_of(scenario: Scenario, model: Model) -> Link:
    """The link of a scenario for the vectors of a model."""
    if not isinstance(model, SumsModel):
        return make_link(scenario, model.parameters, model.statistics)
    return make_link(scenario, model.parameters, sums=model.layout.entries, first_sums=model.layout.first)


def world_for(world: World, method: Method) -> World:
    """The same world with the vector of a method: a model, or class statistics of the same samples."""
    collection, task = method.local.collects(), world.task
    if collection is None or isinstance(task.model, SumsModel):
        return world
    inputs, _, classes = vectors_of(task, method.name)
    layout = Sums(
        collection=collection,
        classes=classes,
        features=inputs.shape[1],
        samples=float(np.mean([len(held) for held in world.held])),
    )
    model = SumsModel(layout)
    assert isinstance(task, Classification | OwnTask)
    return replace(
        world,
        task=replace(task, model=model),
        link=link_of(world.scenario, model),
        initial_model=torch.zeros(model.parameters),
    )
