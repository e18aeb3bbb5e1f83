"""The scenario section `server`: how the server applies updates."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from wayfare.scenario.section import LARGEST, SMALLEST, Positive, Section


def _step(value: Any) -> Any:
    """Check both types with one rule, so that a message never names the branch of a union."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and SMALLEST <= value <= LARGEST
    if value != "auto" and not is_number:
        raise ValueError(f'must be a number of at least {SMALLEST:g} and at most {LARGEST:g}, or "auto"')
    return value


Step: TypeAlias = Annotated[float | Literal["auto"], BeforeValidator(_step)]
Decay: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
_DEGREES = ("latitude_deg", "longitude_deg")
Optimizer: TypeAlias = Literal["sgd", "momentum", "adam"]

# The steps of `auto`; docs/results/beyond.md shows how they were chosen.
AUTO_STEPS: dict[Optimizer, float] = {"sgd": 1.0, "momentum": 0.3, "adam": 0.003}


class Server(Section):
    """How the server updates the global model, with d the mean over the fleet of the updates of a round:

    - ``sgd``: w <- w - step d, the paper's rule at a step of 1;
    - ``momentum``: m <- momentum m + d, w <- w - step m;
    - ``adam``: m <- momentum m + (1 - momentum) d, v <- second_moment v + (1 - second_moment) d^2,
      w <- w - step m / (sqrt(v) + epsilon).

    Every optimiser averages the statistics of batch normalisation. Rounds without arrivals change nothing.
    """

    # The optimiser of the server.
    optimizer: Optimizer = "sgd"
    # The step size; `auto` is 1 for `sgd`, 0.3 for `momentum` and 0.003 for `adam`.
    step: Step = "auto"
    # Decay of m per round.
    momentum: Decay = 0.9
    # Decay of v per round.
    second_moment: Decay = 0.99
    # Keeps the step of `adam` finite if v is 0.
    epsilon: Positive = 1e-3
    # Evaluate and record the mean of the global model over about this many rounds. Devices still receive the global
    # model itself. 0: no average.
    average_rounds: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    # The weight of a device in the mean of a round: equal (1/N), or its share of all samples.
    weighting: Literal["equal", "samples"] = "equal"

    @model_validator(mode="before")
    @classmethod
    def _no_position(cls, given: Any) -> Any:
        if isinstance(given, dict) and (misplaced := sorted({"kind", "name", "x_m", "y_m", *_DEGREES} & given.keys())):
            raise ValueError(f"{', '.join(misplaced)}: its position is set in mobility.server")
        return given

    @property
    def step_size(self) -> float:
        """The step, with `auto` resolved."""
        return AUTO_STEPS[self.optimizer] if self.step == "auto" else self.step

    @property
    def is_plain(self) -> bool:
        """Whether updates are added as they are (Algorithm 1)."""
        return self.optimizer == "sgd" and self.step_size == 1
