"""How a local rule turns gradients into local steps; engines implement what it declares.

One step of one device, with w its parameters, eta the learning rate and s_r the share of it that round r has:

    g <- grad f(w) + pull (w - received) + correction
    g <- g min(1, clip_norm / |g|)
    g <- g + weight_decay w
    v <- momentum v + g
    w <- w - eta s_r v

v begins at zero when a device receives a model. |g| is the norm over all parameters of the device. The statistics of
normalisation at the end of a vector are not parameters: no line above applies to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wayfare.errors import ScenarioError
from wayfare.methods import LocalRule
from wayfare.scenario.model import Learning


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """What a local step uses besides the gradient; by default, nothing."""

    pull: float = 0.0  # mu of mu/2 |w - received|^2
    corrected: bool = False  # a vector of the device is added to every gradient
    clip_norm: float | None = None  # longer gradients are scaled down to this length
    weight_decay: float = 0.0
    momentum: float = 0.0
    steps_per_round: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.pull < math.inf:
            raise ScenarioError("descent.pull", self.pull, "must be a finite number of at least 0")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ScenarioError("descent.clip_norm", self.clip_norm, "must be a finite number above 0, or None")
        if not 0 <= self.weight_decay < math.inf:
            raise ScenarioError("descent.weight_decay", self.weight_decay, "must be a finite number of at least 0")
        if not 0 <= self.momentum < 1:
            raise ScenarioError("descent.momentum", self.momentum, "must be at least 0 and below 1")
        if not isinstance(self.steps_per_round, int) or self.steps_per_round < 1:
            raise ScenarioError("descent.steps_per_round", self.steps_per_round, "must be a whole number of at least 1")

    @property
    def is_plain(self) -> bool:
        """Whether nothing is declared: every round is one step along the gradient."""
        return self == Descent()

    @property
    def pulls_at_most(self) -> bool:
        """Whether g is the gradient, or the gradient and a pull; fast engines then update weights without forming g."""
        return not self.corrected and self.clip_norm is None and not self.weight_decay and not self.momentum


def descent_of(learning: Learning, rule: LocalRule) -> Descent:
    """The descent of a local rule in a scenario, whose `local_loss = "prox"` is a pull too."""
    pull = rule.pull()
    if learning.local_loss == "prox":
        if pull:
            raise ScenarioError("learning.local_loss", "prox", "the method has a pull of its own; take another loss")
        pull = learning.prox_strength
    if learning.learning_rate * pull > 1:
        rule_ = f"times learning_rate ({learning.learning_rate}) must not exceed 1: a step would go beyond its goal"
        raise ScenarioError("pull", pull, rule_)
    return Descent(
        pull=pull,
        corrected=rule.corrects,
        clip_norm=rule.clip_norm,
        weight_decay=rule.weight_decay,
        momentum=rule.momentum,
        steps_per_round=rule.steps_per_round,
    )
