"""Settings without effect: they are rejected where the user sets them.

A scenario itself may hold them, so that one file serves several values of the setting that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wayfare.errors import ScenarioError
from wayfare.scenario.model import NO_BACKBONE, Learning, Scenario


@dataclass(frozen=True, slots=True)
class _Need:
    """Which fields decide whether a setting of `learning` has an effect, and what the first of them must be."""

    decided_by: tuple[str, ...]
    is_met: Callable[[Learning], bool]
    needed: str
    where: str = ""


_ADAPTERS = _Need(("trained",), lambda learning: learning.trained == "adapters", "adapters")
_NEEDS: Mapping[str, _Need] = {
    "learning.backbone_pixels": _Need(
        ("backbone",), lambda learning: learning.backbone != NO_BACKBONE, "a pre-trained network"
    ),
    "learning.trained_blocks": _Need(
        ("trained",), lambda learning: learning.trained not in ("head", "everything"), "norms, adapters or last-block"
    ),
    "learning.adapter_rank": _ADAPTERS,
    "learning.adapter_alpha": _ADAPTERS,
    "learning.normalisation": _Need(("backbone",), lambda learning: learning.backbone == NO_BACKBONE, "none"),
    "learning.hidden": _Need(
        ("network", "backbone"),
        lambda learning: learning.backbone == NO_BACKBONE or learning.network == "mlp",
        "mlp",
        " on top of a backbone",
    ),
}


def reject_unused(given: Mapping[str, Any], scenarios: Sequence[Scenario]) -> None:
    """Raise ScenarioError for the first of the given settings that has an effect in none of the scenarios."""
    for field, value in given.items():
        need = _NEEDS.get(field)
        if need is None or any(need.is_met(scenario.learning) for scenario in scenarios):
            continue
        learning, decider = scenarios[0].learning.model_dump(), need.decided_by[0]
        reason = f"has no effect with learning.{decider} = {learning[decider]}{need.where}; it needs {need.needed}"
        raise ScenarioError(field, value, reason)


def undecided(given: Mapping[str, Any], decided: Collection[str]) -> dict[str, Any]:
    """The given settings without those for which a field among ``decided`` says whether they have an effect."""
    return {
        field: value
        for field, value in given.items()
        if field in _NEEDS and not {f"learning.{decider}" for decider in _NEEDS[field].decided_by} & set(decided)
    }
