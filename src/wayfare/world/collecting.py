"""The world of a method whose vector holds class statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from wayfare.codec import make_link
from wayfare.learning.sums import Sums, SumsModel, vectors_of
from wayfare.learning.tasks.base import Classification
from wayfare.learning.tasks.own import OwnTask
from wayfare.methods import Method
from wayfare.world.draw import World


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
    link = make_link(world.scenario, model.parameters, sums=layout.entries, first_sums=layout.first)
    return replace(world, task=replace(task, model=model), link=link, initial_model=torch.zeros(model.parameters))
