"""The world of a method whose vector holds class statistics."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from wayfare.arrays import Ints
from wayfare.codec import make_link
from wayfare.errors import ScenarioError
from wayfare.learning.models.base import Model
from wayfare.learning.partition import class_counts
from wayfare.learning.sums import Sums, SumsModel, task_of_sums, vectors_of, with_model
from wayfare.learning.tasks import class_names
from wayfare.learning.tasks.division import listed
from wayfare.methods import Collection, Method
from wayfare.radio import Link
from wayfare.scenario import Scenario
from wayfare.streams import FLEET, Stream, generator
from wayfare.world.draw import World

_log = logging.getLogger("wayfare")

# How many times the deviation of the features the scale may be. At 32 times, the error of rounding is about 8 times the
# error of sampling in class means, and 1,000 times in products.
_COARSEST = 32
# About how many samples tell the deviation of the features.
_MEASURED = 1000


@dataclass(frozen=True, slots=True)
class Withheld:
    """Classes of which devices hold samples, but none as many as ``min_count``: their statistics are never sent."""

    min_count: int
    classes: tuple[str, ...]

    def __str__(self) -> str:
        return f"classes {listed(self.classes)}"

    @property
    def reason(self) -> str:
        return f"statistics never choose classes of which no device has min_count = {self.min_count:,} samples"


def link_of(scenario: Scenario, model: Model) -> Link:
    """The link of a scenario for the vectors of a model."""
    if not isinstance(model, SumsModel):
        return make_link(scenario, model.parameters, model.statistics)
    return make_link(scenario, model.parameters, sums=model.layout.entries, first_sums=model.layout.first)


def principal_axes(inputs: Tensor, samples: int, seed: int) -> Tensor | None:
    """The principal axes of some samples as columns, those of the largest variance first; None without samples."""
    if samples == 0:
        return None
    chosen = generator(seed, Stream.PILOT_SAMPLES, FLEET).choice(len(inputs), min(samples, len(inputs)), replace=False)
    values = inputs[torch.from_numpy(chosen)].double()
    axes: Tensor = torch.linalg.svd(values - values.mean(0), full_matrices=True).Vh
    return axes.T.float()


def _check_steps(inputs: Tensor, collection: Collection, scheme: str) -> None:
    """Reject steps so coarse that statistics would be rounded to 0, which no number of devices makes up for."""
    some = inputs[:: max(len(inputs) // _MEASURED, 1)]
    size, scale = float(some.var(0, correction=0).mean().sqrt()), collection.scale
    rule = f"{scheme} would round away the statistics of features that deviate by {size:.2g}"
    if 0 < size < scale / _COARSEST:
        raise ScenarioError("scale", scale, f"{rule}; set class-statistics(scale={size:.2g})")
    # Steps grow with both.
    most = Collection.coarseness * _COARSEST * size / scale
    if 0 < most < collection.coarseness:
        raise ScenarioError("coarseness", collection.coarseness, f"{rule}; must be at most {most:.2g}")


def withheld_classes(world: World) -> Withheld | None:
    """What no device of a world for statistics can send; None if every class that devices hold has statistics."""
    if not isinstance(world.task.model, SumsModel):
        return None
    most, least = _most_samples(world), world.task.model.layout.collection.min_count
    names = class_names(world.task)
    # Groups that replace the classes in a partition may be fewer than the classes.
    withheld = np.flatnonzero((most > 0) & (most < least))
    found = tuple(names[label] if label < len(names) else str(label) for label in withheld)
    return Withheld(least, found) if found else None


def _most_samples(world: World) -> Ints:
    """The largest number of samples of each class on a device."""
    _, labels, classes = vectors_of(world.task, world.task.name)
    counts = class_counts(labels.cpu().numpy(), classes, world.held)
    return np.asarray(counts.max(axis=0))


def _check_counts(world: World, min_count: int, scheme: str) -> None:
    """Raise ScenarioError if no device can ever send statistics; warn if classes are withheld on all devices."""
    most = int(_most_samples(world).max())
    if most < min_count:
        rule = f"{scheme}: no device would ever send statistics, because none has more than {most:,} samples of a class"
        raise ScenarioError("min_count", min_count, rule)
    if withheld := withheld_classes(world):
        _warn(f"{scheme}, seed {world.seed}: {withheld.reason}: {withheld}")


@lru_cache
def _warn(message: str) -> None:
    """Warn once per process: in the field, model and engine have worlds of their own."""
    _log.warning("%s", message)


def world_for(world: World, method: Method) -> World:
    """The same world with the vector of a method: a model, or class statistics of the same samples."""
    collection, task = method.local.collects(), world.task
    if collection is None or isinstance(task.model, SumsModel):
        return world
    task, trained = task_of_sums(task, collection, method.name)
    inputs, _, classes = vectors_of(task, method.name)
    _check_steps(inputs, collection, method.name)
    layout = Sums(
        collection=collection,
        classes=classes,
        features=inputs.shape[1],
        samples=float(np.mean([len(held) for held in world.held])),
        basis=principal_axes(inputs, collection.pilot, world.seed),
    )
    model = SumsModel(layout, trained)
    found = replace(
        world,
        task=with_model(task, model),
        link=link_of(world.scenario, model),
        initial_model=model.initial(generator(world.seed, Stream.INITIAL_MODEL, FLEET)),
    )
    _check_counts(found, collection.min_count, method.name)
    return found
