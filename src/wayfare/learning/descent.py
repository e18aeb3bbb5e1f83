"""How a local rule turns gradients into local steps. Engines implement what the rule declares.

One step of a device, with w its parameters, eta the learning rate and s_r the factor of the schedule in round r:

    g <- grad f(w) + pull (w - received) + correction
    g <- g min(1, clip_norm / |g|)
    g <- g + weight_decay w
    v <- momentum v + g
    w <- w - eta s_r v

v is 0 when a device receives a model. |g| is the norm over all parameters. The normalisation statistics at the end of a
vector are not parameters, so none of these lines applies to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wayfare.errors import ScenarioError
from wayfare.methods import LocalRule
from wayfare.scenario.model import Learning


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """What a local step applies besides the gradient; by default, nothing."""

    pull: float = 0.0  # mu of mu/2 |w - received|^2
    corrected: bool = False  # add a vector of the device to every gradient
    clip_norm: float | None = None  # scale longer gradients down to this norm
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
            raise ScenarioError("descent.steps_per_round", self.steps_per_round, "must be an integer of at least 1")

    @property
    def is_plain(self) -> bool:
        """Whether every round is one plain gradient step."""
        return self == Descent()

    @property
    def pulls_at_most(self) -> bool:
        """Whether g is the gradient plus at most a pull; fast engines then update weights without computing g."""
        return not self.corrected and self.clip_norm is None and not self.weight_decay and not self.momentum


def descent_of(learning: Learning, rule: LocalRule) -> Descent:
    """The descent of a local rule in a scenario; `local_loss = "prox"` also is a pull."""
    pull = rule.pull()
    if learning.local_loss == "prox":
        if pull:
            raise ScenarioError("learning.local_loss", "prox", "the method already has a pull; choose another loss")
        pull = learning.prox_strength
    if learning.learning_rate * pull > 1:
        rule_ = f"times learning_rate ({learning.learning_rate}) must not exceed 1: a step would overshoot"
        raise ScenarioError("pull", pull, rule_)
    return Descent(
        pull=pull,
        corrected=rule.corrects,
        clip_norm=rule.clip_norm,
        weight_decay=rule.weight_decay,
        momentum=rule.momentum,
        steps_per_round=rule.steps_per_round,
    )
