"""Draws the world of a scenario and a seed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from torch import Tensor

from wayfare.arrays import Floats, Ints
from wayfare.codec import make_link
from wayfare.contacts import ContactPlan, Opportunities, draw_plan, forecast_s, opportunities
from wayfare.control.budgets import draw_budgets
from wayfare.engine import Compute, LocalTraining
from wayfare.errors import ScenarioError
from wayfare.learning.batches import Batches, check_batch_size
from wayfare.learning.descent import descent_of
from wayfare.learning.local_loss import make_local_loss
from wayfare.learning.schedule import Schedule
from wayfare.learning.tasks import Evaluation, Task, load_task
from wayfare.methods import Method
from wayfare.radio import Link, gains_per_watt
from wayfare.scenario import Scenario
from wayfare.streams import FLEET, Stream, generator
from wayfare.world.holding import held_samples
from wayfare.world.whereabouts import Whereabouts, find_whereabouts

_log = logging.getLogger("wayfare")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that a scenario and a seed fix before training."""

    scenario: Scenario
    seed: int
    plan: ContactPlan
    meets: Opportunities
    forecast_s: Floats  # the length of each opportunity as devices predict it
    gains_per_watt: Floats
    budgets_joules: Floats
    link: Link
    task: Task
    held: list[Ints]
    batches: Batches
    initial_model: Tensor
    # Evaluations of the initial model, which is equal for every scheme.
    initial_evaluations: dict[Compute, Evaluation] = field(default_factory=dict, init=False, compare=False)
    _whereabouts: list[Whereabouts] = field(default_factory=list, init=False, compare=False, repr=False)

    def whereabouts(self, row: int) -> tuple[tuple[float, float] | None, float | None]:
        """Position and speed of the device when an opportunity begins; None if its mobility has no positions."""
        if not self._whereabouts:
            self._whereabouts.append(find_whereabouts(self.scenario, self.seed, self.plan, self.meets))
        return self._whereabouts[0].at(row)


@lru_cache(maxsize=2)
def draw_world(scenario: Scenario, seed: int, task: Task | None = None) -> World:
    """Draw the world of a scenario, optionally with another task. All schemes in a process share it."""
    if seed < 0:
        raise ScenarioError("seed", seed, "must be at least 0")
    task = task or load_task(scenario.learning)
    held = held_samples(scenario, task, seed)
    check_batch_size(scenario.learning.batch_size, held, len(task.class_of_samples()))
    plan = draw_plan(scenario, seed)
    meets = opportunities(plan, scenario.round_s, scenario.rounds)
    if not len(meets):
        # Warn before the run, because training may take hours.
        _log.warning("seed %s: no device meets the server in %g s, so the fleet learns nothing", seed, plan.duration_s)
    return World(
        scenario=scenario,
        seed=seed,
        plan=plan,
        meets=meets,
        forecast_s=forecast_s(meets, scenario.contacts.forecast_error, seed),
        gains_per_watt=gains_per_watt(meets, scenario.radio, seed),
        budgets_joules=draw_budgets(scenario.fleet, seed),
        link=make_link(scenario, task.model.parameters, task.model.statistics),
        task=task,
        held=held,
        batches=_batches(scenario, held, seed),
        initial_model=task.model.initial(generator(seed, Stream.INITIAL_MODEL, FLEET)),
    )


def _batches(scenario: Scenario, held: list[Ints], seed: int) -> Batches:
    learning = scenario.learning
    return Batches(held, learning.batch_size, scenario.rounds, seed, augment=learning.augment)


def local_training(world: World, method: Method, compute: Compute | None = None) -> LocalTraining:
    scenario, compute = world.scenario, compute or Compute()
    learning, task = scenario.learning, world.task.to(compute.device)
    return LocalTraining(
        task=task,
        # Its own object: a run drops the minibatches that it has used, and other runs may be at other rounds.
        batches=_batches(scenario, world.held, world.seed),
        learning_rate=learning.learning_rate,
        compute=compute,
        schedule=Schedule(learning.schedule, scenario.rounds),
        local_loss=make_local_loss(learning, task, world.held, compute.device),
        descent=descent_of(learning, method.local),
    )


def last_common_round(world: World) -> int:
    """The last round that is equal in a longer run; after it, the end of the run truncates a contact."""
    plan = world.plan.with_server()
    cut = plan.start_s[plan.end_s >= plan.duration_s]
    return min(int(cut.min() // world.scenario.round_s), world.scenario.rounds) if len(cut) else world.scenario.rounds


def world_digests(world: World) -> dict[str, str]:
    """A digest of every part of a world; a run resumes only in the same world."""
    meets = world.meets
    parts: dict[str, Iterable[np.ndarray]] = {
        "contacts": (meets.round, meets.device, meets.contact_s, meets.distance_m),
        "forecasts": (world.forecast_s,),
        "channels": (world.gains_per_watt,),
        "budgets": (world.budgets_joules,),
        "samples": world.held,
    }
    if not world.link.sums:
        # Sums start at 0 in every world.
        parts["initial model"] = (world.initial_model.numpy(),)
    return {name: digest(arrays) for name, arrays in parts.items()}


def digest(arrays: Iterable[np.ndarray]) -> str:
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()[:16]
