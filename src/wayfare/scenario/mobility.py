"""How devices move: one section for each model, told apart by `model`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from wayfare.scenario.section import NonNegative, Positive, Section


class ExponentialMobility(Section):
    """Alternating renewal contacts (Section III-B): contact ~ exp(c), inter-contact ~ exp(lambda)."""

    model: Literal["exponential"] = "exponential"
    contact_s: Positive = 4.0
    inter_contact_s: Positive = 100.0


class WaypointMobility(Section):
    """Random waypoint for devices and server (Section VI-A)."""

    model: Literal["waypoint"] = "waypoint"
    width_m: Positive = 1000.0
    height_m: Positive = 1000.0
    speed_mps: Positive = 20.0
    # Per leg uniform in speed * [1 - spread, 1 + spread]. Never 1: with legs of speed 0 the mean speed decays for ever.
    speed_spread: Annotated[float, Field(ge=0, lt=1)] = 0.5
    # Uniform in [0, pause_max_s].
    pause_max_s: NonNegative = 5.0


Mobility: TypeAlias = Annotated[ExponentialMobility | WaypointMobility, Field(discriminator="model")]
