"""Contact and inter-contact time against speed (Fig. 4), for every model with a speed.

In theory both are proportional to 1 / speed (Corollary 1: c = C / v, lambda = Lambda / v), so the products C and
Lambda are reported too. They are constant if the law holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from wayfare.contacts.draw import draw_plan
from wayfare.contacts.statistics import plan_statistics
from wayfare.errors import ScenarioError
from wayfare.scenario import Scenario
from wayfare.scenario.mobility import AnyMobility
from wayfare.scenario.section import Section

SPEEDS_MPS = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
# Each device travels this far at every speed, about 60 times the mean distance between two contacts in the paper.
TRAVEL_M = 200_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPoint:
    """One model at one speed; times are None if no complete one was drawn."""

    model: str
    speed_mps: float
    contacts: int
    contact_s: float | None
    inter_contact_s: float | None

    @property
    def contact_m(self) -> float | None:
        """C = c v, in metres."""
        return None if self.contact_s is None else self.contact_s * self.speed_mps

    @property
    def inter_contact_m(self) -> float | None:
        """Lambda = lambda v, in metres."""
        return None if self.inter_contact_s is None else self.inter_contact_s * self.speed_mps


def speed_models() -> dict[str, type[Section]]:
    """Every mobility section with a speed, by name."""
    return {
        kind.model_fields["model"].default: kind for kind in get_args(AnyMobility) if "speed_mps" in kind.model_fields
    }


def contact_times_by_speed(
    scenario: Scenario, *, speeds_mps: Sequence[float] = SPEEDS_MPS, models: Sequence[str] | None = None, seed: int
) -> Iterator[SpeedPoint]:
    """One point for each model and speed, drawn lazily, with the scenario's fleet and range."""
    known = speed_models()
    for model in models if models is not None else known:
        if model not in known:
            raise ScenarioError("model", model, f"has no speed; choose from {', '.join(known)}")
        for speed_mps in speeds_mps:
            if not speed_mps > 0:
                raise ScenarioError("speed_mps", speed_mps, "must be above 0")
            yield _point(scenario, model, known[model], speed_mps, seed)


def _point(scenario: Scenario, model: str, kind: type[Section], speed_mps: float, seed: int) -> SpeedPoint:
    rounds = max(round(TRAVEL_M / speed_mps / scenario.round_s), 1)
    whole = scenario.contacts.model_copy(update={"max_exchange_s": None})
    mobility = _at_speed(scenario, kind, speed_mps)
    drawn = scenario.model_copy(update={"mobility": mobility, "rounds": rounds, "contacts": whole})
    statistics = plan_statistics(draw_plan(drawn, seed))
    return SpeedPoint(
        model=model,
        speed_mps=speed_mps,
        contacts=statistics.contacts,
        contact_s=statistics.contact.mean_s,
        inter_contact_s=statistics.inter_contact.mean_s,
    )


def _at_speed(scenario: Scenario, kind: type[Section], speed_mps: float) -> Section:
    """The scenario's section if it is of this kind, otherwise the defaults, at another speed."""
    section: Any = scenario.mobility if isinstance(scenario.mobility, kind) else kind()
    factor = speed_mps / section.speed_mps
    # Scale all other speeds, such as its deviation, too.
    changed = {name: getattr(section, name) * factor for name in kind.model_fields if name.endswith("_mps")}
    at_speed: Section = section.model_copy(update={**changed, "speed_mps": speed_mps})
    return at_speed
