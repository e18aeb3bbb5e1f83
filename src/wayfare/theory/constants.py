"""Estimate the constants of the assumptions in a run, to compare a bound with the measured gradient.

The run is repeated with a task that computes the gradient at every evaluation. Every estimate is the largest value
found, so it is a lower bound of the true constant, and the resulting bound is, if anything, too low.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wayfare.arrays import Floats, Ints
from wayfare.learning.models.base import load_vector, read_vector, trainable
from wayfare.learning.tasks import Task
from wayfare.learning.tasks.base import Evaluation
from wayfare.methods import make_method
from wayfare.scenario import Scenario
from wayfare.simulator import ContactEvent, EvaluationEvent, MetricEvent, Observer, Simulation
from wayfare.theory.bounds import BoundVariant, mobility_coefficient, theorem_1_gradient
from wayfare.threads import one_thread
from wayfare.world import World, draw_world

# Training samples per device for its gradient: enough for a mean, and little work.
_SAMPLES = 512
_LOOKS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Estimates of L, G^2, sigma^2 (Assumptions 1 and 2) and of F(w0) - F*."""

    smoothness: float  # L, the largest |grad F_n(w) - grad F_n(w')| / |w - w'| of any pair
    gradient_sq: float  # G^2, the largest |grad f_n|^2 of a minibatch
    noise_sq: float  # sigma^2, the largest |grad f_n - grad F_n|^2 of a minibatch
    initial_gap: float  # F(w0) minus the smallest loss

    def rate_is_small_enough(self, learning_rate: float) -> bool:
        """Whether eta <= 1 / (2 L), as the theorems require."""
        return learning_rate <= 1.0 / (2.0 * self.smoothness)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """The gradient of the training loss along a run, and the statistics of its contacts."""

    scenario: Scenario
    scheme: str
    seed: int
    rounds: Ints
    gradient_sq: Floats  # |grad F(w)|^2 of the global model at those rounds
    loss: Floats  # F(w)
    constants: Constants
    kept_share: float  # mean k/s over contacts: the measured gamma
    staleness_square: float  # mean theta^2 over contacts

    def mean_gradient_sq(self) -> Floats:
        """The mean of |grad F|^2 up to each recorded round except the first: the quantity that the theorems bound."""
        steps = np.diff(self.rounds)
        return np.asarray(np.cumsum(self.gradient_sq[:-1] * steps) / np.cumsum(steps))

    def bound(self, variant: BoundVariant) -> Floats:
        """Theorem 1 after each recorded round except the first, with Lemmas 1 and 4 for unrecorded quantities."""
        eta, constants = self.scenario.learning.learning_rate, self.constants
        gamma = self.kept_share if variant != "printed" else 1.0
        coefficient = mobility_coefficient(max(gamma, 1e-9), variant)
        return theorem_1_gradient(
            initial_gap=constants.initial_gap,
            learning_rate=eta,
            rounds=self.rounds[1:],
            smoothness=constants.smoothness,
            noise_sq=constants.noise_sq,
            devices=self.scenario.fleet.devices,
            divergence=coefficient * self.staleness_square * eta**2 * constants.gradient_sq,
            variant=variant,
        )


class _Watch(Observer):
    """Contacts and gradients so far; shared by all copies of a watched task."""

    def __init__(self, world: World, on_round: Callable[[int], None] | None) -> None:
        self._world, self._on_round = world, on_round
        self._held = [torch.from_numpy(np.asarray(held[:_SAMPLES])) for held in world.held]
        self.rounds: list[int] = []
        self.entries: list[int] = []
        self.staleness: list[int] = []
        self.gradients: Sequence[Tensor] = ()  # of every device at the previous model
        self.model: Tensor | None = None
        self.gradient_sq: list[float] = []
        self.loss: list[float] = []
        self.smoothness = self.largest_sq = self.noise_sq = 0.0

    def look(self, task: Task, module: nn.Module) -> None:
        """Compute the gradients of all devices at a model, secants to the previous model, and one local step each."""
        model = read_vector(module)
        probe = task.model.module().to(model).train()
        found, losses = zip(*(_gradient(task, probe, model, samples) for samples in self._held), strict=True)
        mean = torch.stack(found).mean(dim=0)
        self.gradient_sq.append(float(mean.double().square().sum()))
        self.loss.append(float(np.mean(losses)))
        if self.model is not None:
            away = float((model - self.model)[: len(mean)].double().norm())
            for now, before in zip(found, self.gradients, strict=True):
                self._secant(now, before, away)
        for device, gradient in enumerate(found):
            self._step(task, probe, model, device, gradient)
        self.model, self.gradients = model, found

    def on_contact(self, event: ContactEvent) -> None:
        self.entries.append(event.entries)
        self.staleness.append(event.staleness_rounds)

    def on_evaluation(self, event: EvaluationEvent, others: Sequence[MetricEvent]) -> None:
        self.rounds.append(event.round)
        # The initial model is not evaluated again until an update arrives.
        if len(self.loss) < len(self.rounds):
            self.gradient_sq.append(self.gradient_sq[-1])
            self.loss.append(self.loss[-1])

    def on_round(self, round_: int) -> None:
        if self._on_round:
            self._on_round(round_)

    def _step(self, task: Task, probe: nn.Module, model: Tensor, device: int, gradient: Tensor) -> None:
        round_ = 1 + len(self.loss) % self._world.scenario.rounds
        samples = torch.from_numpy(self._world.batches.of(device, round_, 1)[0])
        drawn, _ = _gradient(task, probe, model, samples)
        self.largest_sq = max(self.largest_sq, float(drawn.double().square().sum()))
        self.noise_sq = max(self.noise_sq, float((drawn - gradient).double().square().sum()))
        size = float(gradient.double().norm())
        # A short step along the gradient, where curvature is largest, but long enough to exceed rounding.
        reach = 1e-2 * float(model.double().norm()) / size if size > 0 else 0.0
        if reach > 0:
            moved = model.clone()
            moved[: len(gradient)] -= reach * gradient
            there, _ = _gradient(task, probe, moved, self._held[device])
            self._secant(there, gradient, reach * size)

    def _secant(self, one: Tensor, other: Tensor, away: float) -> None:
        if away > 0:
            self.smoothness = max(self.smoothness, float((one - other).double().norm()) / away)


class _Watched:
    """A task that also computes gradients at every evaluation."""

    def __init__(self, task: Task, watch: _Watch) -> None:
        self._task, self._watch = task, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def evaluate(self, module: nn.Module) -> Evaluation:
        with torch.enable_grad():
            self._watch.look(self._task, module)
        return self._task.evaluate(module)

    def to(self, device: torch.device) -> _Watched:
        return _Watched(self._task.to(device), self._watch)


def measure_run(
    scenario: Scenario, scheme: str = "mads", *, seed: int = 0, on_round: Callable[[int], None] | None = None
) -> MeasuredRun:
    """Repeat a run and compute gradients at about 16 evaluations."""
    every = -(-scenario.rounds // _LOOKS)
    learning = scenario.learning.model_copy(update={"evaluate_every_rounds": every})
    scenario = scenario.model_copy(update={"learning": learning})
    world = draw_world(scenario, seed)
    watch = _Watch(world, on_round)
    watched: Any = _Watched(world.task, watch)
    with one_thread():
        Simulation(replace(world, task=watched), make_method(scheme, scenario), watch).run()
    share = np.mean(watch.entries) / world.link.parameters if watch.entries else math.nan
    return MeasuredRun(
        scenario=scenario,
        scheme=scheme,
        seed=seed,
        rounds=np.array(watch.rounds, dtype=np.int64),
        gradient_sq=np.array(watch.gradient_sq),
        loss=np.array(watch.loss),
        constants=Constants(
            smoothness=watch.smoothness,
            gradient_sq=watch.largest_sq,
            noise_sq=watch.noise_sq,
            initial_gap=watch.loss[0] - min(watch.loss),
        ),
        kept_share=float(share),
        staleness_square=float(np.mean(np.square(watch.staleness))) if watch.staleness else math.nan,
    )


def _gradient(task: Task, module: nn.Module, model: Tensor, samples: Tensor) -> tuple[Tensor, float]:
    load_vector(module, model)
    loss = task.loss(module, samples.to(model.device))
    parts = torch.autograd.grad(loss, list(trainable(module).values()))
    return torch.cat([part.reshape(-1) for part in parts]), float(loss.detach())
