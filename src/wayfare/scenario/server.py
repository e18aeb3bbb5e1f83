"""What the server makes of the updates that arrive."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from wayfare.scenario.section import LARGEST, SMALLEST, Positive, Section


def _step(value: Any) -> Any:
    """One rule for both shapes, so that a message never names the branch of a union."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and SMALLEST <= value <= LARGEST
    if value != "auto" and not is_number:
        raise ValueError(f'must be a number of at least {SMALLEST:g} and at most {LARGEST:g}, or "auto"')
    return value


Step: TypeAlias = Annotated[float | Literal["auto"], BeforeValidator(_step)]
Decay: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Optimizer: TypeAlias = Literal["sgd", "momentum", "adam"]

# What `auto` means; benchmarks and results are in docs/results/beyond.md.
AUTO_STEPS: dict[Optimizer, float] = {"sgd": 1.0, "momentum": 0.3, "adam": 0.003}


class Server(Section):
    """How the global model takes a step: with d the mean over the fleet of what arrived in a round,

    - ``sgd``: w <- w - step d, the paper's rule at a step of 1;
    - ``momentum``: m <- momentum m + d, w <- w - step m;
    - ``adam``: m <- momentum m + (1 - momentum) d, v <- second_moment v + (1 - second_moment) d^2,
      w <- w - step m / (sqrt(v) + epsilon).

    Statistics of batch normalisation are averaged whatever the optimiser, and rounds in which nothing arrives change
    nothing.
    """

    # Which of the three rules the server uses.
    optimizer: Optimizer = "sgd"
    # The step of the rule; `auto` is 1 for `sgd`, 0.3 for `momentum` and 0.003 for `adam`.
    step: Step = "auto"
    # How much of m the next round keeps.
    momentum: Decay = 0.9
    # How much of v the next round keeps.
    second_moment: Decay = 0.99
    # Keeps the step of `adam` finite where v is 0.
    epsilon: Positive = 1e-3
    # The model that is judged and handed on in the end is the mean of the global model over about so many rounds;
    # devices train from the global model itself. 0: it is the global model.
    average_rounds: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    # How the mean of a round counts devices: all alike (1/N), or each by its share of the samples that devices hold.
    weighting: Literal["equal", "samples"] = "equal"

    @property
    def step_size(self) -> float:
        """The step, with `auto` resolved."""
        return AUTO_STEPS[self.optimizer] if self.step == "auto" else self.step

    @property
    def is_plain(self) -> bool:
        """Whether updates are added as they are (Algorithm 1)."""
        return self.optimizer == "sgd" and self.step_size == 1
