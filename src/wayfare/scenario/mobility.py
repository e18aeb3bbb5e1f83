"""How devices move: one section for each model, told apart by `model`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator

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


TraceFormat: TypeAlias = Literal["auto", "sumo-fcd", "ns2", "one", "gps", "csv-motion", "contacts", "plan"]


class TraceMobility(Section):
    """Motion or contacts out of a file: a SUMO run, an ns-2 script, GPS logs, a list of contacts, a saved plan."""

    model: Literal["trace"] = "trace"
    file: Annotated[str, Field(min_length=1)]
    format: TraceFormat = "auto"
    # The name of the node that is the server; `auto` is the node with the most contacts.
    server: Annotated[str, Field(min_length=1)] = "auto"
    # Between two fixes further apart than this a node counts as absent.
    max_gap_s: Positive = 300.0
    # A fix that could only be reached faster than this is an outlier.
    max_speed_mps: Positive = 70.0
    # Only what lies inside x_min, y_min, x_max, y_max counts.
    box_m: tuple[float, float, float, float] | None = None
    # The time of the trace at which a run begins.
    start_s: float = 0.0
    # Bad lines are skipped and counted instead of refused.
    lenient: bool = False

    @field_validator("box_m")
    @classmethod
    def _ordered(cls, box_m: tuple[float, float, float, float] | None) -> tuple[float, float, float, float] | None:
        if box_m is not None and not (box_m[0] < box_m[2] and box_m[1] < box_m[3]):
            raise ValueError("must be x_min, y_min, x_max, y_max with x_min < x_max and y_min < y_max")
        return box_m


Mobility: TypeAlias = Annotated[ExponentialMobility | WaypointMobility | TraceMobility, Field(discriminator="model")]
